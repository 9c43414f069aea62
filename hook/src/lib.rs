//! The hook library, which enforces limits and gates in a process. It is loaded when the process first looks
//! up a symbol of the NVIDIA driver.
//!
//! Each layer imports only from those below it (checked by `LAYERS` in `tests/it/imports.rs`):
//!
//! | layer | content |
//! | --- | --- |
//! | `start`, `table`, `symbols`, `coverage`, `rows` | entry point, hooked functions, look-ups of them |
//! | `calls` | what happens at each call |
//! | `hook` | the one object that holds all of this, its start and end |
//! | `swap` | moves of memory |
//! | `memory`, `compute` | accounting; gates. They know nothing of each other |
//! | `program` | the program's contexts, streams and threads |
//! | `helper` | a thread that does the work it is given |
//! | `shared` | blocks, registration, devices |
//! | `driver` | types, functions and look-up of the driver |
//! | `sys` | system calls |
//! | `arch` | assembly of each processor |
//!
//! The hook does not depend on the daemon's code: both share only `gcgroup-abi`.
//!
//! Every failure ends in the driver's own answer, except a refused charge and a required registration that
//! fails.

// First, since `table` finds the macros for its rows by position.
#[macro_use]
pub mod rows;

mod arch;
#[expect(clippy::too_many_arguments, reason = "handlers have the driver's signatures")]
mod calls;
pub mod compute;
mod coverage;
pub mod driver;
mod helper;
mod hook;
pub mod memory;
mod program;
mod shared;
pub mod start;
pub mod swap;
pub mod symbols;
mod sys;
pub mod table;
