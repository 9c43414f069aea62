//! Device enumeration and properties.

use core::ffi::{c_int, c_uint};

use simgpu::{Device, Machine};

use crate::call::{Error, Handle, Out, Result, Text, nvml, padded, version};

/// `nvmlEnableState_t`.
const DISABLED: c_uint = 0;
const ENABLED: c_uint = 1;

/// PCI id: vendor NVIDIA in the lower half, an unused device number in the upper.
const PCI_ID: u32 = 0xffff_10de;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlPciInfo_t` of version 1, the beginning of the later versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciV1 {
    bus_id: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
}

/// `nvmlPciInfo_t` of version 2, without the reserved words at its end.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciV2 {
    begin: PciV1,
    subsystem: c_uint,
}

/// `nvmlPciInfo_t` of version 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciV3 {
    begin: PciV1,
    subsystem: c_uint,
    bus_id: [u8; 32],
}

/// `nvmlPciInfoExt_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciExt {
    version: c_uint,
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    subsystem: c_uint,
    base_class: c_uint,
    sub_class: c_uint,
    bus_id: [u8; 32],
}

fn memory(device: Device<'_>) -> Memory {
    let (total, used) = (device.memory_total(), device.memory_used());
    Memory {
        total,
        free: total.saturating_sub(used),
        used,
    }
}

fn pci(device: Device<'_>) -> PciV3 {
    let address = device.pci_address();
    // Version 1 has a four-digit domain.
    let begin = PciV1 {
        bus_id: padded(address.get(4..).unwrap_or_default()),
        domain: 0,
        bus: device.pci_bus(),
        device: 0,
        id: PCI_ID,
    };
    PciV3 {
        begin,
        subsystem: 0,
        bus_id: padded(&address),
    }
}

/// Returns domain, bus and the rest of a PCI address in any notation.
fn pci_parts(address: &str) -> Option<(u32, u32, String)> {
    let mut parts = address.rsplit(':');
    let (slot, bus, domain) = (parts.next()?, parts.next()?, parts.next().unwrap_or("0"));
    let number = |text| u32::from_str_radix(text, 16).ok();
    parts
        .next()
        .is_none()
        .then_some((number(domain)?, number(bus)?, slot.to_ascii_lowercase()))
}

fn find(machine: &Machine, is_it: impl Fn(&Device<'_>) -> bool) -> Result<Handle> {
    machine
        .devices()
        .find(is_it)
        .map(Handle::new)
        .ok_or(Error::NotFound)
}

fn number(index: usize) -> c_uint {
    c_uint::try_from(index).unwrap_or(c_uint::MAX)
}

nvml! {
    fn nvmlDeviceGetCount | nvmlDeviceGetCount_v2 (count: Out<c_uint>) =>
        |machine| count.put(number(machine.devices().count()));

    fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2 (index: c_uint, device: Out<Handle>) =>
        |machine| device.put(Handle::new(machine.device(index as usize).ok_or(Error::InvalidArgument)?));

    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) => |machine| {
        let uuid = uuid.get()?;
        let mut all = machine.devices().flat_map(|it| [it].into_iter().chain(it.instances()));
        let found = all.find(|it| it.uuid_string().eq_ignore_ascii_case(uuid));
        device.put(found.map(Handle::new).ok_or(Error::NotFound)?)
    };

    fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2 (address: Text, device: Out<Handle>) =>
        |machine| {
            let address = pci_parts(address.get()?).ok_or(Error::NotFound)?;
            device.put(find(machine, |it| pci_parts(&it.pci_address()).as_ref() == Some(&address))?)
        };

    /// No simulated device has a serial number.
    fn nvmlDeviceGetHandleBySerial(serial: Text, _device: Out<Handle>) =>
        |_| serial.get().and(Err(Error::NotFound));

    fn nvmlDeviceGetName(device: Handle, name: Out<u8>, length: c_uint) =>
        |machine| name.put_text(&device.device(machine)?.name(), length);

    fn nvmlDeviceGetUUID(device: Handle, uuid: Out<u8>, length: c_uint) =>
        |machine| uuid.put_text(&device.device(machine)?.uuid_string(), length);

    /// For an instance: its number within its parent device.
    fn nvmlDeviceGetIndex(device: Handle, index: Out<c_uint>) => |machine| {
        let device = device.device(machine)?;
        index.put(number(device.part_of().map_or(device.index(), |(_, instance)| instance)))
    };

    fn nvmlDeviceGetMinorNumber(device: Handle, minor: Out<c_uint>) =>
        |machine| minor.put(number(device.whole(machine)?.index()));

    fn nvmlDeviceGetPciInfo(device: Handle, info: Out<PciV1>) =>
        |machine| info.put(pci(device.whole(machine)?).begin);

    fn nvmlDeviceGetPciInfo_v2(device: Handle, info: Out<PciV2>) => |machine| {
        let PciV3 { begin, subsystem, .. } = pci(device.whole(machine)?);
        info.put(PciV2 { begin, subsystem })
    };

    fn nvmlDeviceGetPciInfo_v3(device: Handle, info: Out<PciV3>) =>
        |machine| info.put(pci(device.whole(machine)?));

    /// Base class 3 and subclass 2: a 3D controller.
    fn nvmlDeviceGetPciInfoExt(device: Handle, info: Out<PciExt>) => |machine| {
        let PciV3 { begin, subsystem, bus_id } = pci(device.whole(machine)?);
        let PciV1 { domain, bus, device, id, .. } = begin;
        let version = version::<PciExt>(1);
        if info.get()?.version != version {
            return Err(Error::VersionMismatch);
        }
        info.put(PciExt { version, domain, bus, device, id, subsystem, base_class: 3, sub_class: 2, bus_id })
    };

    fn nvmlDeviceGetMemoryInfo(device: Handle, info: Out<Memory>) =>
        |machine| info.put(memory(device.device(machine)?));

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, info: Out<MemoryV2>) => |machine| {
        let Memory { total, free, used } = memory(device.device(machine)?);
        let version = version::<MemoryV2>(2);
        if info.get()?.version != version {
            return Err(Error::VersionMismatch);
        }
        info.put(MemoryV2 { version, total, reserved: 0, free, used })
    };

    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<c_int>, minor: Out<c_int>) => |machine| {
        device.device(machine)?;
        major.put(simgpu::COMPUTE_CAPABILITY.0)?;
        minor.put(simgpu::COMPUTE_CAPABILITY.1)
    };

    /// Returns `NVML_COMPUTEMODE_DEFAULT`: any number of processes.
    fn nvmlDeviceGetComputeMode(device: Handle, mode: Out<c_uint>) =>
        |machine| device.device(machine).and_then(|_| mode.put(0));

    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<c_uint>) =>
        |machine| device.device(machine).and_then(|_| mode.put(ENABLED));

    fn nvmlDeviceGetDisplayMode | nvmlDeviceGetDisplayActive (
        device: Handle,
        state: Out<c_uint>,
    ) => |machine| device.device(machine).and_then(|_| state.put(DISABLED));

    /// Returns 0: no virtualization, no second GPU on the board.
    fn nvmlDeviceGetVirtualizationMode | nvmlDeviceGetMultiGpuBoard (device: Handle, answer: Out<c_uint>) =>
        |machine| device.device(machine).and_then(|_| answer.put(0));

    fn nvmlDeviceOnSameBoard(one: Handle, other: Handle, same: Out<c_int>) => |machine| {
        same.put(c_int::from(one.device(machine)?.index() == other.device(machine)?.index()))
    };
}
