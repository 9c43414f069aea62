//! Handlers of the hooked calls, which ask the engines in turn.

mod address;
pub(crate) mod array;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod context_switch;
pub(crate) mod fast;
pub(crate) mod graph_exec;
pub(crate) mod graph_memory;
pub(crate) mod green;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod linear;
pub(crate) mod module;
pub(crate) mod nvml;
pub(crate) mod pool;
pub(crate) mod query;
pub(crate) mod report;
pub(crate) mod sparse;
pub(crate) mod streams;
pub(crate) mod submit;
pub(crate) mod swap;
pub(crate) mod synchronize;
mod visible;
pub(crate) mod vmm;
