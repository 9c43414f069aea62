//! What the preload library and the hook hand each other. Both live in the same process and come from
//! the same build; the version is checked all the same, for the day somebody mixes two installations.

use core::ffi::{c_char, c_int, c_void};

/// The only symbol the hook exports: `extern "C" fn(*const Bridge) -> Option<Resolve>`.
pub const START_SYMBOL: &core::ffi::CStr = c"gcgroup_hook_start";

/// Gives the address to call for a driver symbol: the hook's function, or one that answers with an error
/// where the driver has no such symbol. Never null for a name of the table.
///
/// `real` is what the look-up being answered found (a `dlsym` on some handle), or null if the call came
/// through a symbol that the preload library exports. With `real`, the answer is ours only if `real`
/// *is* the driver's function; anything else is returned as it came.
pub type Resolve = unsafe extern "C" fn(name: *const c_char, real: *mut c_void) -> *mut c_void;

/// The preload library's side, valid for the life of the process.
#[repr(C)]
#[derive(Debug)]
pub struct Bridge {
    /// [`crate::VERSION`] of the preload library.
    pub version: u32,
    pub reserved: u32,
    /// Offset from the thread pointer of the calling thread's `*mut Thread` (initial-exec TLS). It starts as
    /// a slot shared by all whose gate is closed, so that the first submission of a thread takes the slow path.
    pub thread_offset: isize,
    /// That shared slot.
    pub unbound: *mut crate::Thread,
    /// The C library's `dlsym`: never ours.
    pub dlsym: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
    /// The C library's `dlvsym`, if it has one.
    pub dlvsym: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void>,
    /// The C library's `dlopen`.
    pub dlopen: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void,
}
