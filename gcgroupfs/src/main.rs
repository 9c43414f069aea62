//! gcgroupfs: a daemon that shows GPU processes as control files, and the command line that speaks to it.

#![deny(unsafe_code)]

mod block;
mod devices;
mod error;
mod file;
mod files;
mod journal;
mod process;
mod sys;
mod text;
mod tree;

fn main() {}
