//! The daemon's model: the tree of processes and groups, the arbiter's decisions, the rules' verdicts, and
//! the control files over them. It has no clock, makes no system call and knows no mount, GPU or disk; values
//! come in, and listeners carry changes out.

#![deny(unsafe_code)]
#![cfg_attr(
    fuzzing,
    allow(
        dead_code,
        reason = "items that only tests use are compiled for the fuzz targets too"
    )
)]

pub mod arbiter;
pub mod diagnosis;
pub mod error;
pub mod file;
pub mod files;
pub mod rules;
pub mod share;
pub mod text;
pub mod tree;
pub mod user_counts;
