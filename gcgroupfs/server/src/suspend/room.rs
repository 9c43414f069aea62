//! Room for a process's memory: on the devices, as NVML reports it, and on the host.

use nvml_wrapper::Nvml;
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

/// Returns why the host has no room for so many bytes; `None` if it has.
pub(super) fn missing_on_host(bytes: u64) -> Option<String> {
    let available = host::available_memory()?;
    let spare = available - available / MARGIN;
    (bytes > spare).then(|| format!("the host has {spare} bytes to spare, and {bytes} are to be moved"))
}
