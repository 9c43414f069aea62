//! NVML's calling conventions: arguments, and the macro for the tables.

use core::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::LazyLock;

use simgpu::{Device, Faults, Machine, Strike};

pub(crate) use crate::result::{Error, Result, code};

/// Defines a table of NVML functions. A row contains the signature as in the header, further names after `|`,
/// and the body, which is called with the machine once the library is initialized.
macro_rules! nvml {
    ($(
        $(#[doc = $doc:literal])*
        fn $name:ident $(| $alias:ident)* ($($args:tt)*) => |$machine:pat_param| $body:expr;
    )*) => {
        $( $crate::call::nvml! { @each [$name $($alias)*] ($($args)*) |$machine| $body } )*
    };
    (@each [$($name:ident)*] $args:tt |$machine:pat_param| $body:expr) => {
        $( $crate::call::nvml! { @one $name $args |$machine| $body } )*
    };
    (@one $name:ident ($($arg:ident: $ty:ty),* $(,)?) |$machine:pat_param| $body:expr) => {
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> u32 {
            if let Some(error) = $crate::call::injected(stringify!($name)) {
                return error;
            }
            let run = || -> $crate::call::Result {
                let $machine = $crate::users::machine()?;
                $body
            };
            $crate::call::code(run())
        }
    };
}
pub(crate) use nvml;

/// Returns the error that the next call of a function returns instead of being executed (`SIMGPU_FAULTS`).
pub(crate) fn injected(name: &str) -> Option<u32> {
    static FAULTS: LazyLock<Faults> = LazyLock::new(Faults::from_env);
    match FAULTS.strike(name)? {
        Strike::Error(error) => Some(error),
        Strike::Stop | Strike::Cancel => None,
    }
}

/// A caller's `nvmlDevice_t`: the device's index plus 1, so that null is invalid.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Handle(*mut c_void);

impl Handle {
    pub(crate) fn new(device: Device<'_>) -> Self {
        Self(core::ptr::without_provenance_mut(device.index() + 1))
    }

    pub(crate) fn device(self, machine: &Machine) -> Result<Device<'_>> {
        let index = self.0.addr().checked_sub(1).ok_or(Error::InvalidArgument)?;
        machine.device(index).ok_or(Error::InvalidArgument)
    }

    /// Returns the device if it is no MIG instance.
    pub(crate) fn whole(self, machine: &Machine) -> Result<Device<'_>> {
        let device = self.device(machine)?;
        match device.part_of() {
            Some(_) => Err(Error::InvalidArgument),
            None => Ok(device),
        }
    }

    /// Returns the device if it is neither an instance nor in MIG mode, for queries that NVML does not
    /// support with MIG.
    pub(crate) fn undivided(self, machine: &Machine) -> Result<Device<'_>> {
        let device = self.device(machine)?;
        match device.is_divided() || device.part_of().is_some() {
            true => Err(Error::NotSupported),
            false => Ok(device),
        }
    }
}

/// A caller's pointer to one `T`: null, or readable and writable during the call. Only C code creates one.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// Returns a pointer to a value of the library's own, valid while the caller keeps `value`.
    pub(crate) fn to(value: &mut T) -> Self {
        Self(value)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Casts the pointer, for queries whose type depends on an argument.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub(crate) fn put(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Error::InvalidArgument);
        }
        // SAFETY: not null, so writable according to the header.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    pub(crate) fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(Error::InvalidArgument);
        }
        // SAFETY: not null, so readable according to the header.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes an array at the pointer; the caller has stated that there is room.
    pub(crate) fn put_all(self, values: &[T]) -> Result {
        for (index, value) in values.iter().enumerate() {
            Out(self.0.wrapping_add(index)).put(*value)?;
        }
        Ok(())
    }
}

impl Out<u8> {
    /// Writes `text` with a terminating zero, if `length` bytes are enough.
    pub(crate) fn put_text(self, text: &str, length: c_uint) -> Result {
        if text.len() >= length as usize {
            return Err(Error::InsufficientSize);
        }
        self.put_all(&[text.as_bytes(), &[0]].concat())
    }
}

/// A caller's string. Only C code creates one.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// Returns the string. Invalid UTF-8 matches no name here.
    pub(crate) fn get(&self) -> Result<&str> {
        if self.0.is_null() {
            return Err(Error::InvalidArgument);
        }
        // SAFETY: not null, so a string that is valid during the call, according to the header.
        unsafe { CStr::from_ptr(self.0) }
            .to_str()
            .map_err(|_| Error::NotFound)
    }
}

/// Returns a zero-terminated array with `text`, truncated if it is too long.
pub(crate) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    let length = text.len().min(N - 1);
    out[..length].copy_from_slice(&text.as_bytes()[..length]);
    out
}

/// Returns the `version` member of an NVML structure: its size, with its version in the upper bits.
pub(crate) const fn version<T>(number: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "no structure of NVML has 4 GiB")]
    let size = size_of::<T>() as u32;
    size | number << 24
}
