//! NVML as seen by a limited process: its limit instead of the device's memory, and only itself in process
//! lists.
//!
//! `seen` determines what the process may see of a device; the other modules answer NVML's calls with it. A
//! process that has no limit or is not governed (such as `nvidia-smi` started without a limit) sees NVML's
//! own answers. Errors are NVML's own.

pub(crate) mod devices;
pub(crate) mod list;
pub(crate) mod memory;
pub(crate) mod processes;
mod seen;
pub(crate) mod utilization;
