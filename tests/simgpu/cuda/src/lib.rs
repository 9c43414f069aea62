//! The simulated `libcuda.so.1`: the driver API on the simulated machine of the crate `simgpu`.
//!
//! Each function is a row of a `driver!` table, in the module of its subject. All other functions are stubs
//! that return `CUDA_ERROR_NOT_SUPPORTED` (see `names`).
//!
//! The environment variables are documented in `simgpu::config`.

#![allow(clippy::too_many_arguments, reason = "the driver's signatures")]

mod abi;
mod array;
mod batch;
mod batch_3d;
mod bytes;
mod call;
mod capture;
mod conditional;
mod context;
mod copy;
mod device;
mod error;
mod event;
mod exec;
mod exports;
mod graph;
mod graph_memory;
mod green;
mod image;
mod ipc;
mod kernel;
mod link;
mod managed;
mod memory;
mod module;
mod multicast;
mod names;
mod nodes;
mod null;
mod occupancy;
mod old;
mod old_launch;
mod op;
mod physical;
mod pointer;
mod pool;
mod pool_calls;
mod pool_chunk;
mod pool_share;
mod primary;
mod process;
mod registry;
mod resource;
mod share;
mod shared_event;
mod sparse;
mod stream;
mod user_object;
mod visible;
mod vmm;
mod word;
