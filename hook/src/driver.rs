//! The driver: its types and functions, how they are found, and the frame around the program's calls to it.

pub mod cuda;
pub(crate) mod exit;
pub mod functions;
pub(crate) mod graphs;
pub mod interpose;
pub(crate) mod library;
pub mod nvml;
pub(crate) mod out_pointer;
pub(crate) mod streams;
pub(crate) mod thread;
pub(crate) mod trace;
pub(crate) mod unwind;
pub(crate) mod unwinder;

pub(crate) use functions::*;
