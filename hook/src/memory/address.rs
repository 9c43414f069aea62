//! Addresses and numbers of either width: functions of version 1 have 32 bits for them.

use std::ffi::c_uint;

use crate::cuda::{CUdeviceptr, CUdeviceptr_v1};
use crate::place::written;

/// A device address, of either width.
pub(crate) trait Address: Copy {
    fn key(self) -> u64;

    /// A place for one.
    fn place(place: *mut Self) -> Out;
}

impl Address for CUdeviceptr {
    fn key(self) -> u64 {
        self.0
    }

    fn place(place: *mut Self) -> Out {
        Out::Wide(place.cast())
    }
}

impl Address for CUdeviceptr_v1 {
    fn key(self) -> u64 {
        self.0.into()
    }

    fn place(place: *mut Self) -> Out {
        Out::Narrow(place.cast())
    }
}

/// Where the driver writes a number, of the width that a function of its version has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Out {
    Narrow(*mut u32),
    Wide(*mut u64),
}

impl Out {
    /// What the driver wrote, as [`written`] has it.
    pub(super) fn written(self) -> Option<u64> {
        match self {
            Self::Narrow(place) => written(place).map(u64::from),
            Self::Wide(place) => written(place),
        }
    }

    /// The place, if it is one for an address of full width.
    pub(super) fn wide(self) -> Option<*mut CUdeviceptr> {
        match self {
            Self::Narrow(_) => None,
            Self::Wide(place) => Some(place.cast()),
        }
    }
}

impl From<*mut c_uint> for Out {
    fn from(place: *mut c_uint) -> Self {
        Self::Narrow(place)
    }
}

impl From<*mut usize> for Out {
    fn from(place: *mut usize) -> Self {
        const { assert!(size_of::<usize>() == size_of::<u64>()) };
        Self::Wide(place.cast())
    }
}
