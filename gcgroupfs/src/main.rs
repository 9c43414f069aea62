//! gcgroupfs: a daemon that shows GPU processes as control files, and the command line that speaks to it.

#![deny(unsafe_code)]

mod arbiter;
mod block;
mod cli;
mod config;
mod devices;
mod error;
mod file;
mod files;
mod fuse;
mod journal;
mod manual;
mod mount;
mod overhead;
mod process;
mod protocol;
mod server;
mod sys;
mod text;
mod touch;
mod tree;

fn main() -> std::process::ExitCode {
    cli::main()
}
