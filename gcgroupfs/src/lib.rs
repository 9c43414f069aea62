//! gcgroupfs: a daemon that shows GPU processes as control files, and the command line that speaks to it.

#![deny(unsafe_code)]
#![cfg_attr(
    fuzzing,
    allow(dead_code, reason = "what only tests use is there for the fuzz targets too")
)]

mod arbiter;
mod audit;
mod block;
mod cli;
mod config;
mod devices;
mod error;
mod file;
mod files;
mod forget;
mod fuse;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod journal;
mod keep;
mod launch;
mod log;
mod log_limit;
mod manual;
mod mount;
mod overhead;
mod process;
mod procfs;
mod protocol;
mod receive;
mod rules;
mod server;
mod sever;
mod share;
mod sys;
mod text;
mod touch;
mod tree;

pub use cli::main;
