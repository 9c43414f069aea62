//! The driver's types, as far as the simulated functions need them, and the program's pointers.
//!
//! Handles are plain numbers here (see `registry`). Structures follow the headers of CUDA 12 and 13.
#![allow(non_camel_case_types, reason = "they are spelt as the driver spells them")]

use std::ffi::{CStr, c_char, c_void};

pub(crate) type CUdevice = i32;
pub(crate) type CUdeviceptr = u64;
pub(crate) type CUcontext = usize;
pub(crate) type CUmodule = usize;
pub(crate) type CUfunction = usize;
pub(crate) type CUlibrary = usize;
pub(crate) type CUkernel = usize;
pub(crate) type CUstream = usize;
pub(crate) type CUevent = usize;
pub(crate) type CUarray = usize;
pub(crate) type CUmipmappedArray = usize;
pub(crate) type CUmemoryPool = usize;
pub(crate) type CUgreenCtx = usize;
pub(crate) type CUgraph = usize;
pub(crate) type CUgraphNode = usize;
pub(crate) type CUgraphExec = usize;
pub(crate) type CUmemGenericAllocationHandle = u64;

/// An out-pointer of the program. Null or writable, which the caller guarantees.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// A pointer to a structure that is read. Null or readable, which the caller guarantees.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

/// A string of the program, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

/// An address that the driver passes on without access, or accesses by rules of its own.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw(pub(crate) *mut c_void);

// SAFETY: only a number that is returned to the program, or read by `In` and `Out` on its thread.
unsafe impl Send for Raw {}
// SAFETY: only a number that is returned to the program, or read by `In` and `Out` on its thread.
unsafe impl Sync for Raw {}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}
impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Stores the result; a null pointer makes the call invalid.
    pub(crate) fn set(self, value: T) -> Result<(), CUerror> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        self.set_if(value);
        Ok(())
    }

    /// Stores the result unless the pointer is null.
    pub(crate) fn set_if(self, value: T) {
        self.set_at(0, value);
    }

    /// Stores one of several results. The program guarantees the room.
    pub(crate) fn set_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so writable, with the length given by the function's other arguments.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
    }

    /// Converts the pointer to one for reading.
    pub(crate) fn as_in(self) -> In<T> {
        In(self.0.cast_const())
    }

    /// Reads the current value.
    pub(crate) fn get(self) -> Result<T, CUerror>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }
}

impl Out<c_char> {
    /// Stores a string with its terminating zero, truncated to `length` bytes.
    pub(crate) fn set_text(self, text: &str, length: i32) -> Result<(), CUerror> {
        let room = usize::try_from(length)
            .ok()
            .filter(|&room| room > 0)
            .ok_or(INVALID_VALUE)?;
        if self.is_null() {
            return Err(INVALID_VALUE);
        }
        let shown = &text.as_bytes()[..text.len().min(room - 1)];
        for (index, byte) in shown.iter().chain(&[0]).enumerate() {
            self.set_at(index, c_char::from_ne_bytes([*byte]));
        }
        Ok(())
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Result<T, CUerror> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so readable.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads the structure, unless the pointer is null.
    pub(crate) fn get_if(self) -> Option<T> {
        self.get().ok()
    }

    /// Reads the first `count` elements.
    pub(crate) fn list(self, count: usize) -> Result<Vec<T>, CUerror> {
        if self.0.is_null() && count > 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: readable, with the length given by the function's other arguments.
        Ok((0..count)
            .map(|index| unsafe { self.0.add(index).read_unaligned() })
            .collect())
    }

    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }
}

impl Text {
    pub(crate) fn get(&self) -> Result<&str, CUerror> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so by the caller's guarantee a string that is valid during the call.
        unsafe { CStr::from_ptr(self.0) }
            .to_str()
            .map_err(|_| INVALID_VALUE)
    }
}

impl Raw {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn as_out<T>(self) -> Out<T> {
        Out(self.0.cast())
    }

    pub(crate) fn as_in<T>(self) -> In<T> {
        In(self.0.cast_const().cast())
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CUuuid(pub(crate) [u8; 16]);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CUmemLocation {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CUmemAccessDesc {
    pub(crate) location: CUmemLocation,
    pub(crate) flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CUmemAllocationProp {
    pub(crate) kind: u32,
    pub(crate) requested_handle_types: u32,
    pub(crate) location: CUmemLocation,
    pub(crate) win32_handle_meta_data: usize,
    pub(crate) compression_type: u8,
    pub(crate) gpu_direct_rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CUmemPoolProps {
    pub(crate) alloc_type: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: CUmemLocation,
    pub(crate) win32_security_attributes: usize,
    pub(crate) max_size: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CUlaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_mem_bytes: u32,
    pub(crate) stream: CUstream,
    pub(crate) attrs: usize,
    pub(crate) num_attrs: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CUDA_MEMCPY3D {
    pub(crate) src_x_in_bytes: usize,
    pub(crate) src_y: usize,
    pub(crate) src_z: usize,
    pub(crate) src_lod: usize,
    pub(crate) src_memory_type: u32,
    pub(crate) src_host: u64,
    pub(crate) src_device: CUdeviceptr,
    pub(crate) src_array: CUarray,
    /// A context in the peer form of the structure, reserved in the other form.
    pub(crate) src_context: usize,
    pub(crate) src_pitch: usize,
    pub(crate) src_height: usize,
    pub(crate) dst_x_in_bytes: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_z: usize,
    pub(crate) dst_lod: usize,
    pub(crate) dst_memory_type: u32,
    pub(crate) dst_host: u64,
    pub(crate) dst_device: CUdeviceptr,
    pub(crate) dst_array: CUarray,
    /// See `src_context`.
    pub(crate) dst_context: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) dst_height: usize,
    pub(crate) width_in_bytes: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CUDA_MEMCPY2D {
    pub(crate) src_x_in_bytes: usize,
    pub(crate) src_y: usize,
    pub(crate) src_memory_type: u32,
    pub(crate) src_host: u64,
    pub(crate) src_device: CUdeviceptr,
    pub(crate) src_array: CUarray,
    pub(crate) src_pitch: usize,
    pub(crate) dst_x_in_bytes: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_memory_type: u32,
    pub(crate) dst_host: u64,
    pub(crate) dst_device: CUdeviceptr,
    pub(crate) dst_array: CUarray,
    pub(crate) dst_pitch: usize,
    pub(crate) width_in_bytes: usize,
    pub(crate) height: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CUDA_ARRAY_DESCRIPTOR {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: u32,
    pub(crate) num_channels: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CUDA_ARRAY3D_DESCRIPTOR {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: u32,
    pub(crate) num_channels: u32,
    pub(crate) flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    pub(crate) size: usize,
    pub(crate) alignment: usize,
    pub(crate) reserved: [u32; 4],
}

const _: () = {
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(size_of::<CUmemPoolProps>() == 88);
    assert!(size_of::<CUlaunchConfig>() == 56);
    assert!(size_of::<CUDA_MEMCPY3D>() == 200);
    assert!(size_of::<CUDA_MEMCPY2D>() == 128);
};

pub(crate) use crate::error::{CUerror, CUresult, INVALID_VALUE};
