//! gcgroupfs: a daemon that shows GPU processes as control files, and the command line that speaks to it.

#![deny(unsafe_code)]

mod block;
mod process;
mod sys;

fn main() {}
