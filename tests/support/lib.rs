//! Shared by the integration tests: the built artifacts, a mount, governed processes, C programs, ground
//! truth about simulated GPUs, and waiting for conditions.
//!
//! Functions panic instead of returning errors: a test without its prerequisites has failed.

mod artifacts;
mod connections;
mod counted;
mod emulated;
mod failure;
mod governed;
mod hang;
mod helpers;
mod mount;
mod others;
mod processes;
mod program;
mod stop;
mod truth;
mod wait;
mod watchdog;

pub use artifacts::{Artifacts, artifacts, python, repository};
pub use connections::{ask_for_devices, become_user, idle_connections, open_connection, raise_descriptors};
pub use counted::{instructions, system_calls};
pub use failure::ignored_test;
pub use governed::Governed;
pub use hang::threads;
pub use helpers::helper;
pub use mount::{Config, Mount};
pub use others::{copy_program, program_for_all, tree_for_all};
pub use program::{c_program, c_program_by};
pub use stop::{is_stopped, stop};
pub use truth::Truth;
pub use wait::{DEADLINE, wait_for, wait_until, wait_until_none};
pub use watchdog::allow;
