//! What NVML tells a limited process: its limit for the card's memory, and itself for everybody on it.
//!
//! `seen` is what it may see of a device; the others say it in NVML's ways. A process without a limit sees what NVML
//! says, and so does one that is not governed: `nvidia-smi` for one, unless it was started with a limit. Errors are
//! NVML's own.

pub mod abi;
pub mod list;
pub mod memory;
pub mod processes;
mod seen;
pub mod utilization;
