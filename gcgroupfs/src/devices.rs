//! The GPUs of this machine, as NVML lists them. Without NVML or a GPU there are none, and the daemon runs on.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device as Handle, Nvml};
use tracing::{debug, info, warn};

use crate::overhead::Source;
use crate::tree::Device;

/// Lists the GPUs in NVML's order (that of their PCI addresses).
///
/// NVML stays initialised for the life of the daemon.
pub fn find() -> (Option<Nvml>, Vec<Device>) {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) => {
            warn!("no devices: {error}");
            return (None, Vec::new());
        }
    };
    let count = nvml.device_count().unwrap_or_else(|error| {
        warn!("no devices: {error}");
        0
    });
    let mut found = Vec::new();
    for index in 0..count {
        let device = nvml
            .device_by_index(index)
            .and_then(|handle| describe(found.len(), &handle));
        // One that cannot be looked at (fallen off the bus) keeps its place, so that indexes mean the same as in NVML.
        found.push(device.unwrap_or_else(|error| {
            warn!("device {index} is not governed: {error}");
            unknown(found.len())
        }));
    }
    for device in &found {
        info!(
            "device {}: {} {} {}",
            device.index, device.uuid_text, device.pci, device.name
        );
    }
    (Some(nvml), found)
}

fn describe(index: usize, handle: &Handle<'_>) -> Result<Device, NvmlError> {
    let uuid_text = handle.uuid()?;
    Ok(Device {
        index,
        uuid: parse_uuid(&uuid_text).ok_or(NvmlError::Unknown)?,
        pci: handle.pci_info()?.bus_id,
        name: handle.name()?,
        total: handle.memory_info()?.total,
        uuid_text,
    })
}

/// A place in the list that is known to be taken, and no more. No process ever meets its UUID.
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

/// Who holds how much on the devices, by NVML's account. Under MPS, and in some virtual machines, it does not say.
#[derive(Debug)]
pub struct Holders {
    nvml: Arc<Nvml>,
    /// Whether every pid there is means the same to us as to the driver.
    sees_everybody: bool,
}

impl Holders {
    pub fn new(nvml: Arc<Nvml>) -> Self {
        // The first pid namespace has a number of its own, PROC_PID_INIT_INO of the kernel.
        let sees_everybody = fs::read_link("/proc/self/ns/pid")
            .is_ok_and(|namespace| namespace == Path::new("pid:[4026531836]"));
        Self { nvml, sees_everybody }
    }

    fn ask(&self, device: usize) -> Result<HashMap<u32, Option<u64>>, NvmlError> {
        let handle = self
            .nvml
            .device_by_index(u32::try_from(device).unwrap_or(u32::MAX))?;
        let mut held = HashMap::new();
        // A process that also draws is in both lists, with all that it has in each.
        for list in [
            handle.running_compute_processes()?,
            handle.running_graphics_processes().unwrap_or_default(),
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
    fn held(&self, device: usize) -> Option<HashMap<u32, Option<u64>>> {
        let held = self
            .ask(device)
            .inspect_err(|error| debug!("device {device} does not say who holds what: {error}"))
            .ok()?;
        // In a container the driver may give us pids of outside, which may be those of others here.
        (self.sees_everybody || held.keys().all(|pid| exists(*pid))).then_some(held)
    }
}

fn exists(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| pid > 0 && kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
}

/// Reads `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` (or `MIG-…`).
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
    fn a_uuid_is_its_digits_in_order() {
        let uuid = parse_uuid("GPU-00112233-4455-6677-8899-aabbccddeeff");
        let bytes = [
            0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
        ];
        assert_eq!(uuid, Some(bytes));
    }

    #[test]
    fn anything_else_is_no_uuid() {
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
