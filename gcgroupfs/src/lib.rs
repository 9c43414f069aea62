//! gcgroupfs: a daemon that shows GPU processes as control files, and its command line.

#![deny(unsafe_code)]
#![cfg_attr(
    fuzzing,
    allow(
        dead_code,
        reason = "items that only tests use are compiled for the fuzz targets too"
    )
)]

mod arbiter;
mod audit;
mod block;
mod cli;
mod config;
mod devices;
mod error;
mod facts;
mod file;
mod files;
mod forget;
mod fuse;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod host;
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
mod ticks;
mod touch;
mod tree;

pub use cli::main;
