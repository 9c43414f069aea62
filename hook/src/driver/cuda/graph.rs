//! Types of graphs and their nodes.

use std::ffi::c_void;

use super::{CUdeviceptr, CUmemPoolProps};

pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: u32 = 0;
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: u32 = 2;
pub const CU_GRAPH_NODE_TYPE_KERNEL: u32 = 0;
pub const CU_GRAPH_NODE_TYPE_GRAPH: u32 = 4;
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: u32 = 10;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: u64 = 2;

/// Parameters of a memory allocation node.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    pub pool: CUmemPoolProps,
    pub access: *const c_void,
    pub access_count: usize,
    pub bytes: usize,
    pub address: CUdeviceptr,
}

const _: () = assert!(size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>() == 120);

impl CUDA_MEM_ALLOC_NODE_PARAMS {
    /// Empty, for the driver to fill in.
    pub const NONE: Self = Self {
        pool: CUmemPoolProps::NONE,
        access: std::ptr::null(),
        access_count: 0,
        bytes: 0,
        address: CUdeviceptr(0),
    };
}

/// First field of the parameters of a graph node of any type.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUgraphNodeParams {
    /// `CU_GRAPH_NODE_TYPE_*`.
    pub kind: u32,
}

/// First field of the parameters of an instantiation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_*`.
    pub flags: u64,
}
