//! Room for a process's memory: on the devices, as NVML reports it, and on the host.

use nvml_wrapper::Nvml;
use parking_lot::Mutex;
use tracing::debug;

use gcgroupfs_model::tree::Tree;

use crate::host;

/// Part of the host's available memory, one in so many, that is left to others.
const MARGIN: u64 = 16;

/// NVML, loaded when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Room(Option<Nvml>);

impl Room {
    /// Returns whether a device has so many bytes free; true if that is unknown, since the driver checks it
    /// too.
    pub(super) fn has(&mut self, tree: &Tree, device: usize, bytes: u64) -> bool {
        if self.0.is_none() {
            self.0 = Nvml::init().inspect_err(|error| debug!("no NVML: {error}")).ok();
        }
        let (Some(nvml), Some(uuid)) = (&self.0, tree.uuid(device)) else {
            return true;
        };
        let memory = nvml.device_by_uuid(uuid).and_then(|device| device.memory_info());
        memory.map_or(true, |memory| memory.free >= bytes)
    }
}

/// Bytes that running suspensions move to the host.
static MOVING: Mutex<u64> = Mutex::new(0);

/// Room on the host that is reserved for a suspension until dropped.
#[derive(Debug)]
pub(super) struct HostRoom(u64);

impl HostRoom {
    /// Reserves room for so many bytes, beside that of the suspensions that are running.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn reserve(bytes: u64) -> Result<Self, String> {
        let mut moving = MOVING.lock();
        if let Some(available) = host::available_memory() {
            let spare = (available - available / MARGIN).saturating_sub(*moving);
            if bytes > spare {
                return Err(format!(
                    "the host has {spare} bytes to spare, and {bytes} are to be moved"
                ));
            }
        }
        *moving = moving.saturating_add(bytes);
        Ok(Self(bytes))
    }
}

impl Drop for HostRoom {
    fn drop(&mut self) {
        let mut moving = MOVING.lock();
        *moving = moving.saturating_sub(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_on_the_host_is_reserved_once() {
        let half = host::available_memory().unwrap() / 8 * 5;
        let first = HostRoom::reserve(half).unwrap();
        assert!(HostRoom::reserve(half).unwrap_err().contains("to spare"));
        drop(first);
        assert!(HostRoom::reserve(half).is_ok());
    }
}
