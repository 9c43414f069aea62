//! Handlers of the hooked calls, which ask the engines in turn.

mod address;
pub(crate) mod array;
pub(crate) mod capture;
pub(crate) mod fast;
pub(crate) mod graph;
pub(crate) mod graphs;
pub(crate) mod green;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod linear;
pub(crate) mod nvml;
pub(crate) mod pool;
pub(crate) mod progress;
pub(crate) mod query;
pub(crate) mod reach;
pub(crate) mod report;
pub(crate) mod slots;
pub(crate) mod sparse;
pub(crate) mod streams;
pub(crate) mod submit;
pub(crate) mod swap;
mod visible;
pub(crate) mod vmm;
