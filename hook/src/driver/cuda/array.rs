//! Types of arrays.

use super::CUmemGenericAllocationHandle;

/// A part of a sparse array to map or unmap.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUarrayMapInfo {
    /// `CU_RESOURCE_TYPE_*`.
    pub resource_type: u32,
    /// A `CUarray` or `CUmipmappedArray`.
    pub resource: u64,
    /// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_*`.
    pub subresource_type: u32,
    pub padding: u32,
    /// A tile: level, layer, offset and extent in three dimensions. A mip tail: layer, padding, then offset
    /// and bytes of two words each.
    pub subresource: [u32; 8],
    /// `CU_MEM_OPERATION_TYPE_*`.
    pub operation: u32,
    pub handle_type: u32,
    pub memory: CUmemGenericAllocationHandle,
    pub offset: u64,
    pub device_bit_mask: u32,
    pub flags: u32,
    pub reserved: [u32; 2],
}

const _: () = assert!(size_of::<CUarrayMapInfo>() == 96);

pub const CU_MEM_OPERATION_TYPE_MAP: u32 = 1;

/// Answer of `cuArrayGetMemoryRequirements`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    pub size: usize,
    pub alignment: usize,
    pub reserved: [u32; 4],
}

const _: () = assert!(size_of::<CUDA_ARRAY_MEMORY_REQUIREMENTS>() == 32);

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    /// `CU_AD_FORMAT_*`.
    pub format: u32,
    pub num_channels: u32,
    pub flags: u32,
}

const _: () = assert!(size_of::<CUDA_ARRAY3D_DESCRIPTOR>() == 40);

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    pub width: usize,
    pub height: usize,
    /// `CU_AD_FORMAT_*`.
    pub format: u32,
    pub num_channels: u32,
}

const _: () = assert!(size_of::<CUDA_ARRAY_DESCRIPTOR>() == 24);

/// The descriptor from before CUDA 3.2.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
    pub width: u32,
    pub height: u32,
    pub depth: u32,
    pub format: u32,
    pub num_channels: u32,
    pub flags: u32,
}

/// The descriptor from before CUDA 3.2.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CUDA_ARRAY_DESCRIPTOR_v1 {
    pub width: u32,
    pub height: u32,
    pub format: u32,
    pub num_channels: u32,
}
