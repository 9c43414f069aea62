//! gcgroupfs: a daemon that shows GPU processes as control files, and its command line.

#![deny(unsafe_code)]
#![cfg_attr(
    fuzzing,
    allow(
        dead_code,
        reason = "items that only tests use are compiled for the fuzz targets too"
    )
)]

mod checkpoint_helper;
mod cli;
mod config;
mod elf;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod log;
mod manual;
mod message;
mod sever;

pub use cli::main;
