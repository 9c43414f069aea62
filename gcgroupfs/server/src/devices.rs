//! The devices of this machine, as NVML lists them. Without NVML or a GPU there are none, and the daemon runs
//! on.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device as Handle, Nvml};
use tracing::{debug, info, warn};

use crate::overhead::{self, Source};
use crate::xid;
use gcgroupfs_model::tree::{Device, DeviceSample, Tree};

/// Time between attempts to reach a driver that was not there at the daemon's start.
const RETRY: Duration = Duration::from_secs(5);

/// Lists the devices in NVML's order (that of PCI addresses). A GPU in MIG mode is replaced by its instances,
/// in their order, since it cannot be used as a whole; the daemon never changes that mode.
///
/// NVML stays initialised as long as the returned [`Holders`].
pub fn find() -> (Option<Holders>, Vec<Device>) {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) => {
            warn!("no devices: {error}");
            return (None, Vec::new());
        }
    };
    let found = list(&nvml);
    found.iter().for_each(log);
    (Some(Holders::new(nvml, &found)), found)
}

/// Starts to measure the devices. Without `holders`, tries to reach the driver again every 5 s, and then adds
/// its devices.
///
/// # Errors
/// A thread cannot be started.
pub fn measure(tree: Arc<Tree>, holders: Option<Holders>) -> io::Result<()> {
    if let Some(holders) = holders {
        xid::watch(tree.clone())?;
        return overhead::watch(tree, holders);
    }
    let wait = move || {
        let nvml = loop {
            thread::sleep(RETRY);
            if let Ok(nvml) = Nvml::init() {
                break nvml;
            }
        };
        info!("the driver is there now");
        let holders = Holders::new(nvml, &[]);
        match xid::watch(tree.clone()).and_then(|()| overhead::watch(tree.clone(), holders)) {
            Ok(()) => tree.ask_devices(),
            Err(error) => warn!("cannot begin to measure: {error}"),
        }
    };
    thread::Builder::new().name("driver".to_owned()).spawn(wait)?;
    Ok(())
}

/// The driver and its GPUs, for people.
#[derive(Debug)]
pub struct Summary {
    /// Version of the driver.
    pub driver: String,
    /// Names of the devices, in NVML's order.
    pub names: Vec<String>,
}

/// Returns what NVML says about the machine.
///
/// # Errors
/// NVML's error: there is no library or no driver.
pub fn summary() -> Result<Summary, NvmlError> {
    let nvml = Nvml::init()?;
    Ok(Summary {
        driver: nvml.sys_driver_version()?,
        names: list(&nvml).into_iter().map(|device| device.name).collect(),
    })
}

/// Returns the driver's major version, as 570; `None` without a driver.
pub fn driver_major() -> Option<u32> {
    let version = Nvml::init().and_then(|nvml| nvml.sys_driver_version()).ok()?;
    version.split('.').next()?.parse().ok()
}

fn log(device: &Device) {
    info!(
        "device {}: {} {} {}",
        device.index, device.uuid_text, device.pci, device.name
    );
}

/// Returns the present devices.
fn list(nvml: &Nvml) -> Vec<Device> {
    let count = nvml.device_count().unwrap_or_else(|error| {
        warn!("no devices: {error}");
        0
    });
    let mut found = Vec::new();
    for index in 0..count {
        let gpu = nvml.device_by_index(index);
        let gpu = gpu.and_then(|gpu| Ok((gpu.pci_info()?.bus_id, parts(gpu)?)));
        let (pci, parts) = gpu.unwrap_or_else(|error| (String::new(), vec![Err(error)]));
        if parts.is_empty() {
            info!("device {index} is in MIG mode and has no instances");
        }
        for part in parts {
            let part = part.and_then(|handle| describe(found.len(), &handle, &pci));
            // A device that cannot be examined (fallen off the bus) keeps its index, so that indexes mean the
            // same as in NVML.
            found.push(part.unwrap_or_else(|error| {
                warn!("device {index} is not governed: {error}");
                unknown(found.len())
            }));
        }
    }
    found
}

/// `NVML_DEVICE_MIG_ENABLE`.
const IN_MIG_MODE: u32 = 1;

/// Returns the devices that a GPU offers to programs: itself, or its MIG instances.
fn parts(gpu: Handle<'_>) -> Result<Vec<Result<Handle<'_>, NvmlError>>, NvmlError> {
    // Older drivers and other GPUs do not support this query.
    if gpu.mig_mode().map_or(0, |mode| mode.current) != IN_MIG_MODE {
        return Ok(vec![Ok(gpu)]);
    }
    let instances = (0..gpu.mig_device_count()?).map(|number| gpu.mig_device_by_index(number));
    // There may be gaps between the numbers.
    let there = |instance: &Result<_, _>| !matches!(instance, Err(NvmlError::NotFound));
    Ok(instances.filter(there).collect())
}

/// Describes a device. `pci` is the address of the GPU, which an instance does not report.
fn describe(index: usize, handle: &Handle<'_>, pci: &str) -> Result<Device, NvmlError> {
    let uuid_text = handle.uuid()?;
    Ok(Device {
        index,
        uuid: parse_uuid(&uuid_text).ok_or(NvmlError::Unknown)?,
        pci: pci.to_owned(),
        name: handle.name()?,
        total: handle.memory_info()?.total,
        uuid_text,
    })
}

/// Returns a device that only occupies its index. No process ever matches its UUID.
fn unknown(index: usize) -> Device {
    let name = || "unknown".to_owned();
    Device {
        index,
        uuid: [0; 16],
        uuid_text: name(),
        pci: name(),
        total: 0,
        name: name(),
    }
}

/// Bytes that each process holds on each device, as NVML reports them. Under MPS, and in some virtual
/// machines, NVML does not report them.
#[derive(Debug)]
pub struct Holders {
    nvml: Nvml,
    /// UUID of each device, as NVML spells it.
    uuids: Vec<String>,
    /// Whether the daemon is in the first pid namespace, so that every pid of the driver means the same
    /// process here.
    sees_everybody: bool,
}

impl Holders {
    fn new(nvml: Nvml, devices: &[Device]) -> Self {
        // The first pid namespace has a fixed inode number, PROC_PID_INIT_INO of the kernel.
        let sees_everybody = fs::read_link("/proc/self/ns/pid")
            .is_ok_and(|namespace| namespace == Path::new("pid:[4026531836]"));
        let uuids = devices.iter().map(|device| device.uuid_text.clone()).collect();
        Self {
            nvml,
            uuids,
            sees_everybody,
        }
    }

    fn ask(&self, device: usize) -> Result<HashMap<u32, Option<u64>>, NvmlError> {
        let uuid = self.uuids.get(device).ok_or(NvmlError::NotFound)?;
        let handle = self.nvml.device_by_uuid(uuid.as_str())?;
        let mut held = HashMap::new();
        // Not version 3 of these functions: drivers 535.43 to 535.86 have longer entries in it, and drivers
        // after those and before 510 have none. A process that also draws is in both lists, with its total in
        // each.
        for list in [
            handle.running_compute_processes_v2()?,
            handle.running_graphics_processes_v2().unwrap_or_default(),
        ] {
            for process in list {
                let bytes = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                };
                let known = held.entry(process.pid).or_insert(bytes);
                *known = known.zip(bytes).map(|(one, other)| one.max(other));
            }
        }
        Ok(held)
    }
}

impl Source for Holders {
    fn new_devices(&mut self) -> Vec<Device> {
        let mut found = list(&self.nvml);
        found.retain(|device| device.uuid != [0; 16] && !self.uuids.contains(&device.uuid_text));
        for device in &mut found {
            device.index = self.uuids.len();
            self.uuids.push(device.uuid_text.clone());
            log(device);
        }
        found
    }

    fn used(&self, device: usize) -> Option<u64> {
        let handle = self.nvml.device_by_uuid(self.uuids.get(device)?.as_str());
        let memory = handle.and_then(|handle| handle.memory_info());
        memory.ok().map(|memory| memory.used)
    }

    fn free(&self, device: usize) -> Option<u64> {
        let handle = self.nvml.device_by_uuid(self.uuids.get(device)?.as_str());
        let memory = handle.and_then(|handle| handle.memory_info());
        memory
            .inspect_err(|error| debug!("device {device} does not report free memory: {error}"))
            .ok()
            .map(|memory| memory.free)
    }

    fn sample(&self, device: usize) -> DeviceSample {
        let uuid = self.uuids.get(device).map_or("", String::as_str);
        let Ok(handle) = self.nvml.device_by_uuid(uuid) else {
            return DeviceSample::default();
        };
        // Of an instance, NVML tells the memory only.
        DeviceSample {
            used: handle.memory_info().ok().map(|memory| memory.used),
            utilization: handle.utilization_rates().ok().map(|rates| rates.gpu),
            temperature: handle.temperature(TemperatureSensor::Gpu).ok(),
            power: handle.power_usage().ok(),
        }
    }

    fn held(&self, device: usize) -> Option<HashMap<u32, Option<u64>>> {
        let held = self
            .ask(device)
            .inspect_err(|error| debug!("device {device} does not report memory by process: {error}"))
            .ok()?;
        // In a container the driver may report pids of the outer namespace, which may belong to other
        // processes here.
        (self.sees_everybody || held.keys().all(|pid| exists(*pid))).then_some(held)
    }

    fn sees_everybody(&self) -> bool {
        self.sees_everybody
    }

    fn active(&self, device: usize, since: Duration) -> Option<HashSet<u32>> {
        let since = SystemTime::now().checked_sub(since)?;
        let since = since.duration_since(UNIX_EPOCH).ok()?.as_micros();
        let handle = self.nvml.device_by_uuid(self.uuids.get(device)?.as_str()).ok()?;
        // Fails for MIG instances, and also if there is no sample at all.
        let samples = handle.process_utilization_stats(u64::try_from(since).ok()?);
        let samples = samples
            .inspect_err(|error| debug!("device {device} does not report utilisation by process: {error}"))
            .ok()?;
        let works = samples
            .iter()
            .filter(|one| one.sm_util > 0 || one.mem_util > 0 || one.enc_util > 0 || one.dec_util > 0);
        Some(works.map(|one| one.pid).collect())
    }
}

fn exists(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| pid > 0 && kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
}

/// Parses `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` (or `MIG-…`).
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let (_, digits) = text.split_once('-')?;
    let groups: Vec<usize> = digits.split('-').map(str::len).collect();
    if groups != [8, 4, 4, 4, 12] {
        return None;
    }
    let digits = digits.replace('-', "");
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_is_its_digits_in_order() {
        let uuid = parse_uuid("GPU-00112233-4455-6677-8899-aabbccddeeff");
        let bytes = [
            0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
        ];
        assert_eq!(uuid, Some(bytes));
    }

    #[test]
    fn uuid_in_another_format_is_refused() {
        for text in [
            "",
            "GPU-",
            "GPU-0011223344556677-8899-aabbccddeeff",
            "GPU-0011223x-4455-6677-8899-aabbccddeeff",
        ] {
            assert_eq!(parse_uuid(text), None, "{text}");
        }
    }
}
