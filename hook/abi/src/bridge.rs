//! Interface between the preload library and the hook. Both are in the same process and come from the same
//! build; the version is checked in case two installations are mixed.

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};
use core::sync::atomic::AtomicPtr;

use crate::sync::{AtomicU32, AtomicU64};
use crate::{Submission, Thread};

/// The hook's only exported symbol: `extern "C" fn(*const Bridge) -> Option<Resolve>`.
pub const START_SYMBOL: &core::ffi::CStr = c"gcgroup_hook_start";

/// Returns the address to call for a driver symbol. `real` is the result of the lookup that is being
/// answered: the hook's function is returned if `real` *is* the driver's function of that name, otherwise
/// `real`.
pub type Resolve = unsafe extern "C" fn(name: *const c_char, real: *mut c_void) -> *mut c_void;

/// Private part of a thread's slot on one device, read by a submission before it enters the driver. It lies
/// in private memory: pointers in the usage block could be changed by every process that has the block. Only
/// the thread itself writes the counters.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Entrance {
    /// Gate that the thread's submissions load.
    ///
    /// Ordering: stored `Release` by the thread that binds the slot, or that sends all threads through the
    /// slow path; the slot's thread loads it `Relaxed` behind its entry, ordered like
    /// [`ControlDevice::gate`](crate::ControlDevice::gate).
    pub gate: AtomicPtr<AtomicU32>,
    /// Shared part of the slot, which counts exits.
    ///
    /// Ordering: `Relaxed`: stored once, before any thread has the slot.
    pub thread: AtomicPtr<Thread>,
    /// Entry counters by [`Submission`]. The thread is inside the driver while one differs from its
    /// [`Thread::exited`].
    ///
    /// Ordering: the slot's thread adds with `Relaxed` load and store, and a full barrier follows, its own or
    /// the draining thread's; the draining thread loads `Acquire` (`freeze.rs`).
    pub entered: [AtomicU64; Submission::COUNT],
}

/// Thread-local data of the preload library, zero-filled except `slot`.
#[repr(C)]
#[derive(Debug)]
pub struct Local {
    /// The thread's slot on its current device. Initially a slot shared by all threads, whose gate is closed,
    /// so that a thread's first submission takes the slow path.
    pub slot: Cell<*mut Entrance>,
    /// Used by the hook: nonzero while a handler runs on this thread. A stack address, a multiple of 8, with
    /// flags: bit 0 if the thread cannot be cancelled until the handler ends, bit 1 if it could be cancelled
    /// before.
    pub inside: Cell<usize>,
}

// In a preload library of an earlier build, the initial slot has no `thread`: it is null. That slot's gate is
// closed, and the hook continues with another slot.
const _: () = {
    // The atomics of a model have a different layout.
    assert!(cfg!(loom) || size_of::<Entrance>() == 128);
    assert!(offset_of!(Entrance, gate) == 0);
    assert!(offset_of!(Entrance, thread) == 8);
    assert!(offset_of!(Entrance, entered) == 16);
    assert!(size_of::<Local>() == 16);
    assert!(offset_of!(Local, slot) == 0);
    assert!(offset_of!(Local, inside) == 8);
};

/// The preload library's part of the interface, valid for the life of the process.
#[repr(C)]
#[derive(Debug)]
pub struct Bridge {
    /// [`crate::VERSION`] of the preload library.
    pub version: u32,
    pub reserved: u32,
    /// Offset from the thread pointer of the calling thread's [`Local`] (initial-exec TLS).
    pub thread_offset: isize,
    /// The initial slot of every thread.
    pub unbound: *mut Entrance,
    /// The C library's `dlsym`, not the preload library's.
    pub dlsym: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
    /// The C library's `dlvsym`, if it has one.
    pub dlvsym: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void>,
    /// The C library's `dlopen`.
    pub dlopen: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void,
}
