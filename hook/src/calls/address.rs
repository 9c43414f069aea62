//! Addresses and sizes of 32 or 64 bits: version 1 functions of the driver use 32.

use std::ffi::c_uint;

use crate::driver::cuda::{CUdeviceptr, CUdeviceptr_v1};
use crate::driver::out_pointer::written;

/// A device address of either width.
pub(crate) trait Address: Copy {
    fn key(self) -> u64;

    /// Wraps an out-pointer for an address.
    fn out_pointer(pointer: *mut Self) -> Out;
}

impl Address for CUdeviceptr {
    fn key(self) -> u64 {
        self.0
    }

    fn out_pointer(pointer: *mut Self) -> Out {
        Out::Wide(pointer.cast())
    }
}

impl Address for CUdeviceptr_v1 {
    fn key(self) -> u64 {
        self.0.into()
    }

    fn out_pointer(pointer: *mut Self) -> Out {
        Out::Narrow(pointer.cast())
    }
}

/// Out-pointer for a number, of the width that the function's version has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Out {
    Narrow(*mut u32),
    Wide(*mut u64),
}

impl Out {
    /// Returns what the driver wrote; see [`written`].
    pub(super) fn written(self) -> Option<u64> {
        match self {
            Self::Narrow(pointer) => written(pointer).map(u64::from),
            Self::Wide(pointer) => written(pointer),
        }
    }

    /// Returns the out-pointer if it is one for a 64-bit address.
    pub(super) fn wide(self) -> Option<*mut CUdeviceptr> {
        match self {
            Self::Narrow(_) => None,
            Self::Wide(pointer) => Some(pointer.cast()),
        }
    }
}

impl From<*mut c_uint> for Out {
    fn from(pointer: *mut c_uint) -> Self {
        Self::Narrow(pointer)
    }
}

impl From<*mut usize> for Out {
    fn from(pointer: *mut usize) -> Self {
        const { assert!(size_of::<usize>() == size_of::<u64>()) };
        Self::Wide(pointer.cast())
    }
}
