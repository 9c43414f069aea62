//! The hook library, which enforces limits and gates in a process. It is loaded when the process first looks
//! up a symbol of the NVIDIA driver.
//!
//! `table` lists every hooked function; `symbols` answers look-ups with them; `memory`, `swap` and `compute`
//! handle the calls; `block` is the process's shared memory. The hook does not depend on the daemon's code:
//! both share only `gcgroup-abi`.
//!
//! Every failure ends in the driver's own answer, except a refused charge and a required registration that
//! fails.

// Left to do: `compute/{slots,window}.rs`, `memory/{levels,account/whole,physical/all,reserve/list}.rs` and
// `swap/device/moving.rs`.
#![allow(clippy::too_many_arguments, reason = "handlers have the driver's signatures")]

// First, since `table` finds the macros for its rows by position.
#[macro_use]
pub mod rows;

mod block;
mod client;
pub mod compute;
mod coverage;
pub mod cuda;
mod descriptor;
mod device;
pub mod driver;
mod helper;
pub mod interpose;
mod mapping;
pub mod memory;
pub mod nvml;
mod place;
mod process;
pub mod swap;
pub mod symbols;
mod sys;
pub mod table;
mod thread;
mod unwind;
mod wishes;
