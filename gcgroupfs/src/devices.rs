//! The GPUs of this machine, as NVML lists them. Without NVML or a GPU there are none, and the daemon runs on.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device as Handle, Nvml};
use tracing::{info, warn};

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
