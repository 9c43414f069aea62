//! Types of graphs and their nodes.

use std::ffi::c_void;

use super::{CUdeviceptr, CUgraph, CUmemPoolProps};

pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: u32 = 0;
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: u32 = 2;
pub const CU_GRAPH_NODE_TYPE_KERNEL: u32 = 0;
pub const CU_GRAPH_NODE_TYPE_MEMCPY: u32 = 1;
pub const CU_GRAPH_NODE_TYPE_MEMSET: u32 = 2;
pub const CU_GRAPH_NODE_TYPE_GRAPH: u32 = 4;
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: u32 = 10;
pub const CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: u32 = 12;
pub const CU_GRAPH_NODE_TYPE_CONDITIONAL: u32 = 13;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: u64 = 2;

/// Room for the parameters of any type of graph node that is queried, words.
pub const NODE_WORDS: usize = 32;

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

/// Parameters of a conditional node.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUDA_CONDITIONAL_NODE_PARAMS {
    /// `CU_GRAPH_NODE_TYPE_CONDITIONAL`.
    pub kind: u32,
    pub reserved: [u32; 3],
    pub handle: u64,
    pub sort: u32,
    pub size: u32,
    /// Set by the driver: an array of `size` graphs.
    pub graphs: *const CUgraph,
}

const _: () = assert!(size_of::<CUDA_CONDITIONAL_NODE_PARAMS>() == 40);

/// First field of the parameters of an instantiation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_*`.
    pub flags: u64,
}
