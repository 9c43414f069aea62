//! The devices, and the host that they are in.

use std::ops::Deref;
use std::time::Duration;

use gcgroup_abi::OTHER_DEVICE;

use super::identity::Identity;

/// One GPU, or one MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Slot in every block, and name of its directory. Equals its position in the tree's list.
    pub index: usize,
    /// UUID as returned by `cuDeviceGetUuid_v2`.
    pub uuid: [u8; 16],
    /// UUID as NVML spells it (`GPU-...`, `MIG-...`); key of the settings, which so survive a renumbering.
    pub uuid_text: String,
    /// PCI address of the GPU as NVML spells it (`00000000:01:00.0`), also for its instances.
    pub pci: String,
    /// Memory size in bytes; zero if unknown.
    pub total: u64,
    pub name: String,
}

impl Device {
    /// Returns whether it is a MIG instance.
    pub(super) fn is_instance(&self) -> bool {
        self.uuid_text.starts_with("MIG-")
    }
}

/// The host of the devices; its size and age bound the claims of processes.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// Bytes of memory.
    pub memory: u64,
    pub nr_cpus: u64,
    /// Unit of the start times of processes.
    pub ticks_per_second: u64,
    /// Returns the time since boot.
    pub uptime: fn() -> Duration,
    /// Returns `CLOCK_MONOTONIC` in nanoseconds, the clock of usage blocks.
    pub now: fn() -> u64,
    /// Returns the user to whom the process belongs now; `None`, for root, unless its real, effective and
    /// saved uid are equal. Does not wait for the process.
    pub user_of: fn(&Identity) -> Option<u32>,
}

/// The devices, each in its slot, and their host.
#[derive(Debug)]
pub(super) struct Devices {
    devices: Vec<Device>,
    pub(super) host: Host,
}

impl Devices {
    /// Numbers the devices, without those beyond the blocks' slots.
    pub(super) fn new(mut devices: Vec<Device>, host: Host) -> Self {
        devices.truncate(OTHER_DEVICE);
        for (index, device) in devices.iter_mut().enumerate() {
            device.index = index;
        }
        Self { devices, host }
    }

    /// Adds a device in the next slot.
    pub(super) fn push(&mut self, device: Device) {
        self.devices.push(device);
    }
}

impl Deref for Devices {
    type Target = [Device];

    fn deref(&self) -> &[Device] {
        &self.devices
    }
}
