//! NVML as seen by a limited process: its limit instead of the device's memory, and only itself in process
//! lists.
//!
//! `seen` determines what the process may see of a device; the other modules answer NVML's calls with it. A
//! process without a limit (such as `nvidia-smi` outside of a limited group) sees NVML's own answers. Errors
//! are NVML's own. A process that has not called `cuInit` asks the daemon what its groups allow
//! (`unregistered`).

pub(crate) mod devices;
pub(crate) mod list;
pub(crate) mod memory;
pub(crate) mod processes;
mod seen;
mod unregistered;
