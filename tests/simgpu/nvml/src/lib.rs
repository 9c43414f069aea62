//! The simulated `libnvidia-ml.so.1`: NVML on the simulated machine.
//!
//! Each function is a row of an `nvml!` table in the module of its subject, which `implemented`
//! imports. All other functions are stubs that return `NVML_ERROR_NOT_SUPPORTED`, as NVML does for what a
//! card cannot do: the simulated cards have no temperature, clocks, fans, power or error correction.
#![allow(non_snake_case, reason = "NVIDIA's spelling")]

mod accounting;
mod call;
mod device;
mod event;
mod library;
mod mig;
mod process;
mod result;
mod sample;
mod stubs;
mod topology;
mod users;
mod utilization;

/// Functions of the modules with an `nvml!` table.
mod implemented {
    pub(crate) use crate::accounting::*;
    pub(crate) use crate::device::*;
    pub(crate) use crate::event::*;
    pub(crate) use crate::library::*;
    pub(crate) use crate::mig::*;
    pub(crate) use crate::process::*;
    pub(crate) use crate::topology::*;
    pub(crate) use crate::utilization::*;
}
