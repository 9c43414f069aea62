//! Blocks the program's signal handlers and pthread_cancel(3) during a driver call: the call holds locks,
//! which siglongjmp(3) or unwinding would leave locked. They are enabled where a call waits and holds no lock
//! ([`Bell::sleep`]).

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::clock;

thread_local! {
    /// The thread's settings when it entered the current call.
    static OUTSIDE: Cell<Option<Outside>> = const { Cell::new(None) };
}

/// A thread's signal mask and cancelability.
#[derive(Debug, Clone, Copy)]
struct Outside {
    mask: libc::sigset_t,
    cancel: c_int,
}

/// Guard during whose lifetime the program's signal handlers and cancellation are disabled in the thread.
#[derive(Debug)]
pub struct Shield {
    before: Option<Outside>,
    outside: Outside,
    /// Makes the guard `!Send`: it belongs to one thread.
    _here: PhantomData<*const ()>,
}

impl Shield {
    /// Shields the calling thread.
    pub fn begin() -> Self {
        let outside = shut();
        Shield {
            before: OUTSIDE.replace(Some(outside)),
            outside,
            _here: PhantomData,
        }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        OUTSIDE.set(self.before);
        open(&self.outside);
    }
}

fn shut() -> Outside {
    // SAFETY: both sets are valid, and the calls cannot fail with these arguments.
    let mask = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        // Synchronous faults of the thread itself are not deferred.
        for signal in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGSYS,
        ] {
            libc::sigdelset(&raw mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        before
    };
    Outside {
        mask,
        cancel: set_cancel_state(PTHREAD_CANCEL_DISABLE),
    }
}

fn open(outside: &Outside) {
    set_cancel_state(outside.cancel);
    // SAFETY: the set was filled in by the kernel.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const outside.mask, ptr::null_mut()) };
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

fn set_cancel_state(state: c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    let mut before = 0;
    // SAFETY: the state is valid, and `before` is a valid out-pointer.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// A futex on which threads wait in a driver call. A waiting thread is in no list, so leaving by
/// siglongjmp(3) leaves nothing behind.
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// Returns a bell that has not been rung.
    pub const fn new() -> Self {
        Bell(AtomicU32::new(0))
    }

    /// Returns how often the bell was rung.
    pub fn count(&self) -> u32 {
        self.0.load(SeqCst)
    }

    /// Wakes all sleeping threads.
    pub fn ring(&self) {
        clock::ring(&self.0);
    }

    /// Sleeps until the bell is rung, or returns at once if its count is not `seen`; may wake spuriously.
    /// Signal handlers run and may not return, so the caller must hold no lock and nothing that must be
    /// dropped.
    pub fn sleep(&self, seen: u32) {
        exposed(|| clock::sleep(&self.0, seen, None));
    }
}

/// Sleeps for `time`, with signal handlers and cancellation enabled as in [`Bell::sleep`].
pub fn nap(time: Duration) {
    let bell = AtomicU32::new(0);
    exposed(|| clock::sleep(&bell, 0, Some(time)));
}

/// Runs `wait` with the settings from outside the call. Its system calls must not be cancellation points.
fn exposed(wait: impl FnOnce()) {
    let Some(outside) = OUTSIDE.get() else {
        return wait();
    };
    open(&outside);
    wait();
    shut();
}
