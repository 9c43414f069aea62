//! The simulated `libcuda.so.1`: the driver API on the simulated machine of the crate `simgpu`.
//!
//! Each function is a row of a `driver!` table, in the module of its subject, which `implemented` imports.
//! All other functions are stubs that return `CUDA_ERROR_NOT_SUPPORTED` (see `stubs`).
//!
//! The environment variables are documented in `simgpu::config`.
#![allow(non_snake_case, reason = "NVIDIA's spelling")]
#![allow(clippy::too_many_arguments, reason = "the driver's signatures")]

mod abi;
mod array;
mod batch;
mod batch_3d;
mod bytes;
mod call;
mod capture;
mod checkpoint;
mod conditional;
mod context;
mod copy;
mod cost;
mod device;
mod error;
mod event;
mod exec;
mod exports;
mod graph;
mod graph_memory;
mod green;
mod host_location;
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
mod price;
mod primary;
mod process;
mod registry;
mod resource;
mod share;
mod shared_event;
mod sparse;
mod stream;
mod stubs;
mod user_object;
mod visible;
mod vmm;
mod word;

/// Functions of the modules with a `driver!` table.
mod implemented {
    pub(crate) use crate::array::*;
    pub(crate) use crate::batch::*;
    pub(crate) use crate::batch_3d::*;
    pub(crate) use crate::capture::*;
    pub(crate) use crate::checkpoint::*;
    pub(crate) use crate::conditional::*;
    pub(crate) use crate::context::*;
    pub(crate) use crate::copy::*;
    pub(crate) use crate::device::*;
    pub(crate) use crate::event::*;
    pub(crate) use crate::exec::*;
    pub(crate) use crate::graph::*;
    pub(crate) use crate::graph_memory::*;
    pub(crate) use crate::green::*;
    pub(crate) use crate::ipc::*;
    pub(crate) use crate::kernel::*;
    pub(crate) use crate::link::*;
    pub(crate) use crate::managed::*;
    pub(crate) use crate::memory::*;
    pub(crate) use crate::module::*;
    pub(crate) use crate::multicast::*;
    pub(crate) use crate::names::*;
    pub(crate) use crate::nodes::*;
    pub(crate) use crate::occupancy::*;
    pub(crate) use crate::old::*;
    pub(crate) use crate::old_launch::*;
    pub(crate) use crate::physical::*;
    pub(crate) use crate::pointer::*;
    pub(crate) use crate::pool_calls::*;
    pub(crate) use crate::pool_share::*;
    pub(crate) use crate::primary::*;
    pub(crate) use crate::resource::*;
    pub(crate) use crate::share::*;
    pub(crate) use crate::sparse::*;
    pub(crate) use crate::stream::*;
    pub(crate) use crate::user_object::*;
    pub(crate) use crate::vmm::*;
    pub(crate) use crate::word::*;
}
