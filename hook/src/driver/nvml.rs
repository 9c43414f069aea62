//! NVML's types, as far as the table needs them, in NVML's spelling.
#![allow(non_camel_case_types, non_snake_case, reason = "NVML's spelling")]

use std::ffi::c_void;

/// Instance ids of a process on a device without GPU or compute instances.
pub const NO_INSTANCE: u32 = u32::MAX;

/// Entries of lists that the hook requests from NVML.
pub const ROOM: usize = 1024;

#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct nvmlDevice_t(pub *mut c_void);

/// An element of a list of NVML.
pub trait Entry: Copy {
    /// An element without content.
    const EMPTY: Self;

    fn pid(&self) -> u32;

    #[must_use]
    fn with_pid(self, pid: u32) -> Self;
}

/// An [`Entry`] with the amount of memory that a process holds.
pub trait Holder: Entry {
    #[must_use]
    fn with_memory(self, bytes: u64) -> Self;
}

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident $size:literal { $($(#[$about:meta])* $field:ident: $ty:ty = $empty:expr,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct $name { $($(#[$about])* pub $field: $ty,)* }

            const _: () = assert!(size_of::<$name>() == $size);

            impl $name {
                /// A structure without content.
                pub const EMPTY: Self = Self { $($field: $empty,)* };
            }
        )*
    };
}

macro_rules! entries {
    ($($name:ident)*) => {
        $(
            impl Entry for $name {
                const EMPTY: Self = Self::EMPTY;

                fn pid(&self) -> u32 {
                    self.pid
                }

                fn with_pid(self, pid: u32) -> Self {
                    Self { pid, ..self }
                }
            }
        )*
    };
}

macro_rules! holders {
    ($($name:ident)*) => {
        $(
            impl Holder for $name {
                fn with_memory(self, bytes: u64) -> Self {
                    Self { usedGpuMemory: bytes, ..self }
                }
            }
        )*
    };
}

structures! {
    nvmlMemory_t 24 {
        total: u64 = 0,
        free: u64 = 0,
        used: u64 = 0,
    }

    nvmlMemory_v2_t 40 {
        /// Size and version of the structure, set by the caller; so is every `version` below.
        version: u32 = 0,
        total: u64 = 0,
        reserved: u64 = 0,
        free: u64 = 0,
        used: u64 = 0,
    }

    nvmlProcessInfo_v1_t 16 {
        pid: u32 = 0,
        usedGpuMemory: u64 = 0,
    }

    /// Also used by functions of version 3, except in drivers 535.43 to 535.86, where entries have eight more
    /// bytes; so the functions of version 2 are called. A process is shown one entry of itself, for which
    /// that makes no difference.
    nvmlProcessInfo_v2_t 24 {
        pid: u32 = 0,
        usedGpuMemory: u64 = 0,
        gpuInstanceId: u32 = NO_INSTANCE,
        computeInstanceId: u32 = NO_INSTANCE,
    }

    nvmlProcessDetail_v1_t 32 {
        pid: u32 = 0,
        usedGpuMemory: u64 = 0,
        gpuInstanceId: u32 = NO_INSTANCE,
        computeInstanceId: u32 = NO_INSTANCE,
        usedGpuCcProtectedMemory: u64 = 0,
    }

    nvmlProcessDetailList_v1_t 24 {
        version: u32 = 0,
        mode: u32 = 0,
        numProcArrayEntries: u32 = 0,
        procArray: *mut nvmlProcessDetail_v1_t = std::ptr::null_mut(),
    }
}

entries! {
    nvmlProcessInfo_v1_t nvmlProcessInfo_v2_t nvmlProcessDetail_v1_t
}

holders! { nvmlProcessInfo_v1_t nvmlProcessInfo_v2_t nvmlProcessDetail_v1_t }

/// A list of pids alone.
#[cfg(test)]
impl Entry for u32 {
    const EMPTY: Self = 0;

    fn pid(&self) -> u32 {
        *self
    }

    fn with_pid(self, pid: u32) -> Self {
        pid
    }
}

/// Returns the `version` of a structure: its size, with the version number in bits 24 to 31.
#[expect(clippy::cast_possible_truncation, reason = "no structure of NVML has 16 MiB")]
pub const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}
