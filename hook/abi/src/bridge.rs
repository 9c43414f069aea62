//! What the preload library and the hook hand each other. Both live in the same process and come from
//! the same build; the version is checked all the same, for the day somebody mixes two installations.

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};
use core::sync::atomic::AtomicPtr;

use crate::sync::{AtomicU32, AtomicU64};
use crate::{Submission, Thread};

/// The only symbol the hook exports: `extern "C" fn(*const Bridge) -> Option<Resolve>`.
pub const START_SYMBOL: &core::ffi::CStr = c"gcgroup_hook_start";

/// Gives the address to call for a driver symbol, in place of `real`, which the look-up being answered found:
/// the hook's function if `real` *is* the driver's function of that name; anything else is returned as it came.
pub type Resolve = unsafe extern "C" fn(name: *const c_char, real: *mut c_void) -> *mut c_void;

/// The private part of a thread's slot on one device: what a submission follows before it enters the driver. It lies in
/// memory of this process alone, because a pointer in the usage block could be changed by every process that has the
/// block. Only the thread itself writes the counters.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Entrance {
    /// The gate that the thread's submissions read.
    pub gate: AtomicPtr<AtomicU32>,
    /// The part of the slot that others read: exits are counted there.
    pub thread: AtomicPtr<Thread>,
    /// Submissions begun, by [`Submission`]. The thread is inside the driver while one differs from
    /// [`Thread::exited`].
    pub entered: [AtomicU64; Submission::COUNT],
}

/// What the preload library keeps for each thread, zeroed but for the slot.
#[repr(C)]
#[derive(Debug)]
pub struct Local {
    /// The thread's slot on its current device; at first one shared by all, whose gate is closed, so that the
    /// first submission of a thread takes the slow path.
    pub slot: Cell<*mut Entrance>,
    /// The hook's own: not zero while a handler of its runs on this thread. Where on the stack, a multiple of 8; of the
    /// lowest bits, 1 says that the thread cannot be cancelled until the handler ends, 2 that it could be before.
    pub inside: Cell<usize>,
}

// A preload library of an earlier build has no `thread` in the slot that every thread starts with: it is zero there. The
// gate of that slot is closed, and the hook goes on with another one.
const _: () = {
    // The atomics of a model have another layout.
    assert!(cfg!(loom) || size_of::<Entrance>() == 128);
    assert!(offset_of!(Entrance, gate) == 0);
    assert!(offset_of!(Entrance, thread) == 8);
    assert!(offset_of!(Entrance, entered) == 16);
    assert!(size_of::<Local>() == 16);
    assert!(offset_of!(Local, slot) == 0);
    assert!(offset_of!(Local, inside) == 8);
};

/// The preload library's side, valid for the life of the process.
#[repr(C)]
#[derive(Debug)]
pub struct Bridge {
    /// [`crate::VERSION`] of the preload library.
    pub version: u32,
    pub reserved: u32,
    /// Offset from the thread pointer of the calling thread's [`Local`] (initial-exec TLS).
    pub thread_offset: isize,
    /// The slot that every thread starts with.
    pub unbound: *mut Entrance,
    /// The C library's `dlsym`: never ours.
    pub dlsym: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
    /// The C library's `dlvsym`, if it has one.
    pub dlvsym: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void>,
    /// The C library's `dlopen`.
    pub dlopen: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void,
}
