//! The hook library, which enforces limits and gates in a process. It is loaded when the process first looks
//! up a symbol of the NVIDIA driver.
//!
//! `table` lists every hooked function; `symbols` answers look-ups with them; `memory`, `swap` and `compute`
//! handle the calls; `shared` is what they share, such as the process's shared memory; `driver` calls the
//! driver. The hook does not depend on the daemon's code: both share only `gcgroup-abi`.
//!
//! Every failure ends in the driver's own answer, except a refused charge and a required registration that
//! fails.

// First, since `table` finds the macros for its rows by position.
#[macro_use]
pub mod rows;

mod calls;
pub mod compute;
mod coverage;
pub mod driver;
mod helper;
pub mod memory;
mod process;
mod program;
mod shared;
pub mod start;
pub mod swap;
pub mod symbols;
mod sys;
pub mod table;
