//! The simulated `libnvidia-ml.so.1`: NVML on the simulated machine.
//!
//! Each function is a row of an `nvml!` table (`library`, `device`, `process`, `utilization`, `accounting`,
//! `mig`). All other functions are stubs that return `NVML_ERROR_NOT_SUPPORTED`, as NVML does for what a card
//! cannot do: the simulated cards have no temperature, clocks, fans, power or error correction.

mod accounting;
mod call;
mod device;
mod library;
mod mig;
mod process;
mod sample;
mod stubs;
mod utilization;
