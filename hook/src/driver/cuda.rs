//! The driver's types, as far as the table needs them, in the driver's spelling; no behaviour.
#![allow(non_camel_case_types, reason = "the driver's spelling")]
#![allow(clippy::upper_case_acronyms, reason = "the driver's spelling")]

mod array;
mod graph;

use std::ffi::c_void;
use std::num::NonZeroU32;

pub use self::array::{
    CU_MEM_OPERATION_TYPE_MAP, CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1,
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1, CUarrayMapInfo,
};
pub use self::graph::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_NODE_TYPE_GRAPH,
    CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUgraphNodeParams,
};

/// Error code of a driver function; never `CUDA_SUCCESS`, which is `Ok(())`. NVML's functions return codes of
/// their own in the same form.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CUerror(pub NonZeroU32);

macro_rules! errors {
    ($($name:ident = $code:literal;)*) => {
        impl CUerror {
            $(pub const $name: Self = Self(NonZeroU32::new($code).expect("an error is not zero"));)*
        }
    };
}

errors! {
    INVALID_VALUE = 1;
    OUT_OF_MEMORY = 2;
    NOT_INITIALIZED = 3;
    NO_DEVICE = 100;
    INVALID_DEVICE = 101;
    INVALID_CONTEXT = 201;
    INVALID_HANDLE = 400;
    NOT_FOUND = 500;
    NOT_READY = 600;
    CONTEXT_IS_DESTROYED = 709;
    NOT_PERMITTED = 800;
    NOT_SUPPORTED = 801;
    SYSTEM_NOT_READY = 802;
    UNKNOWN = 999;
    NVML_INVALID_ARGUMENT = 2;
    NVML_NOT_FOUND = 6;
    NVML_INSUFFICIENT_SIZE = 7;
    NVML_FUNCTION_NOT_FOUND = 13;
}

/// `CUDA_SUCCESS` or an error, so that `?` works on results of the driver.
pub type CUresult = Result<(), CUerror>;

const _: () = assert!(size_of::<CUresult>() == 4 && align_of::<CUresult>() == 4);
const _: fn() = || {
    // SAFETY: never runs; that it compiles proves the sizes equal. Zero is guaranteed to be `Ok` for a
    // `Result` of a unit and a transparent non-zero integer.
    let _ = unsafe { std::mem::transmute::<CUresult, u32>(Ok(())) };
};

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub struct $name(pub *mut c_void);

            impl $name {
                pub const NULL: Self = Self(std::ptr::null_mut());

                /// Returns the handle with that number, which the driver has returned before.
                #[must_use]
                pub fn numbered(number: usize) -> Self {
                    Self(std::ptr::with_exposed_provenance_mut(number))
                }

                #[must_use]
                pub fn is_null(self) -> bool {
                    self.0.is_null()
                }
            }
        )*
    };
}

handles! {
    CUarray;
    CUcontext;
    CUevent;
    CUexternalMemory;
    CUfunction;
    CUgraph;
    CUgraphExec;
    CUgraphNode;
    CUgreenCtx;
    CUkernel;
    CUlibrary;
    CUmemoryPool;
    CUmipmappedArray;
    CUmodule;
    CUstream;
}

/// Structures that are only passed on.
macro_rules! opaque {
    ($($name:ident;)*) => {
        $(
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name([u8; 0]);
        )*
    };
}

opaque! {
    CUDA_FABRIC_COPY_BATCH_OP;
    CUDA_LAUNCH_PARAMS;
    CUDA_MEMCPY2D;
    CUDA_MEMCPY2D_v1;
    CUDA_MEMCPY3D;
    CUDA_MEMCPY3D_BATCH_OP;
    CUDA_MEMCPY3D_PEER;
    CUDA_MEMCPY3D_v1;
    CUctxCreateParams;
    CUexecAffinityParam;
    CUgraphEdgeData;
    CUlaunchConfig;
    CUmemDecompressParams;
    CUmemcpyAttributes;
}

pub type CUdevice = i32;

/// A device address, since CUDA 3.2.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CUdeviceptr(pub u64);

/// A device address of functions from before CUDA 3.2.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CUdeviceptr_v1(pub u32);

/// A handle of `cuMemCreate`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CUmemGenericAllocationHandle(pub u64);

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CUuuid {
    pub bytes: [u8; 16],
}

pub const CU_MEM_LOCATION_TYPE_DEVICE: u32 = 1;
pub const CU_MEM_LOCATION_TYPE_HOST: u32 = 2;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: u32 = 3;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: u32 = 4;
pub const CU_MEM_ALLOCATION_TYPE_PINNED: u32 = 1;
/// Since CUDA 13.
pub const CU_MEM_ALLOCATION_TYPE_MANAGED: u32 = 2;
pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: u32 = 3;
pub const CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: u32 = 16;
pub const CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: u32 = 39;
pub const CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: u32 = 110;
pub const CU_DEVICE_ATTRIBUTE_MPS_ENABLED: u32 = 133;
pub const CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: u32 = 134;

pub const CU_LIMIT_STACK_SIZE: u32 = 0;
pub const CU_LIMIT_PRINTF_FIFO_SIZE: u32 = 1;
pub const CU_LIMIT_MALLOC_HEAP_SIZE: u32 = 2;
pub const CU_STREAM_NON_BLOCKING: u32 = 1;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    /// `CU_MEM_ACCESS_FLAGS_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<CUmemAccessDesc>() == 12);
/// Since CUDA 13.4: a part of a device's memory; the low byte of `id` is the device.
pub const CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: u32 = 6;

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CUmemLocation {
    /// `CU_MEM_LOCATION_TYPE_*`.
    pub kind: u32,
    /// Number of the device or NUMA node.
    pub id: i32,
}

impl CUmemLocation {
    /// Returns the device, if the location is on one; `None` for host memory.
    #[must_use]
    pub fn device(self) -> Option<CUdevice> {
        match self.kind {
            CU_MEM_LOCATION_TYPE_DEVICE => Some(self.id),
            CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => Some(self.id & 0xff),
            _ => None,
        }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUmemAllocationProp {
    /// `CU_MEM_ALLOCATION_TYPE_*`.
    pub kind: u32,
    pub requested_handle_types: u32,
    pub location: CUmemLocation,
    pub win32_handle_meta_data: *mut c_void,
    pub compression_type: u8,
    pub gpu_direct_rdma_capable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

const _: () = assert!(size_of::<CUmemAllocationProp>() == 32);

impl CUmemAllocationProp {
    /// Empty, for the driver to fill in.
    pub const NONE: Self = Self {
        kind: 0,
        requested_handle_types: 0,
        location: CUmemLocation { kind: 0, id: 0 },
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    };
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUmemPoolProps {
    /// `CU_MEM_ALLOCATION_TYPE_*`.
    pub kind: u32,
    pub handle_types: u32,
    pub location: CUmemLocation,
    pub win32_security_attributes: *mut c_void,
    pub max_size: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
}

const _: () = assert!(size_of::<CUmemPoolProps>() == 88);

impl CUmemPoolProps {
    /// Empty, for the driver to fill in.
    pub const NONE: Self = Self {
        kind: 0,
        handle_types: 0,
        location: CUmemLocation { kind: 0, id: 0 },
        win32_security_attributes: std::ptr::null_mut(),
        max_size: 0,
        usage: 0,
        reserved: [0; 54],
    };
}

/// Description of memory of another driver.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    pub kind: u32,
    pub handle: [u64; 2],
    pub size: u64,
    pub flags: u32,
    pub reserved: [u32; 16],
}

const _: () = assert!(size_of::<CUDA_EXTERNAL_MEMORY_HANDLE_DESC>() == 104);

pub const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: u32 = 5;
/// Since CUDA 13.
pub const CU_MEMPOOL_ATTR_ALLOCATION_TYPE: u32 = 9;
/// Since CUDA 13.
pub const CU_MEMPOOL_ATTR_LOCATION_ID: u32 = 11;
/// Since CUDA 13.
pub const CU_MEMPOOL_ATTR_LOCATION_TYPE: u32 = 12;
pub const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: u32 = 2;
pub const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: u32 = 9;
pub const CU_MEMORYTYPE_DEVICE: usize = 2;
pub const CU_MEMORYTYPE_ARRAY: usize = 3;
pub const CU_MEMORYTYPE_UNIFIED: usize = 4;
pub const CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: u32 = 6;
/// Since CUDA 12.1.
pub const CU_CTX_SYNC_MEMOPS: u32 = 0x80;
pub const CU_EVENT_DISABLE_TIMING: u32 = 2;
pub const CU_MEMHOSTREGISTER_DEVICEMAP: u32 = 2;
pub const CU_STREAM_CAPTURE_MODE_RELAXED: u32 = 2;
pub const CU_STREAM_CAPTURE_STATUS_NONE: u32 = 0;

/// Flag of `cuGetProcAddress` that requests the `_ptsz` and `_ptds` functions.
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// Passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUipcMemHandle {
    pub reserved: [u8; 64],
}
