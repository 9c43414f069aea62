//! Per-thread state: the thread's slot, and whether a handler of the hook runs on it, which must not be
//! cancelled while it waits.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicIsize, AtomicPtr, Ordering::Relaxed};

use gcgroup_abi::{Entrance, Local};

use crate::arch::thread_pointer;

/// Offset of a thread's [`Local`] from its thread pointer. Set once, before the first hooked call.
pub(crate) static OFFSET: AtomicIsize = AtomicIsize::new(0);

/// The slot that threads start with. It belongs to no thread and is never counted.
static UNBOUND: AtomicPtr<Entrance> = AtomicPtr::new(null_mut());

/// Sets the location of the preload library's thread-local data.
pub(crate) fn set_locals(thread_offset: isize, unbound: *mut Entrance) {
    OFFSET.store(thread_offset, Relaxed);
    UNBOUND.store(unbound, Relaxed);
}

#[cfg(not(test))]
fn local() -> &'static Local {
    let address = thread_pointer().wrapping_add_signed(OFFSET.load(Relaxed));
    // SAFETY: the preload library's thread-local block, valid for the life of the thread and used by this
    // thread only.
    unsafe { &*std::ptr::with_exposed_provenance::<Local>(address) }
}

/// Thread-local data for tests, which run without the preload library.
#[cfg(test)]
fn local() -> &'static Local {
    thread_local! {
        static LOCAL: Local = const { Local { slot: Cell::new(null_mut()), inside: Cell::new(0) } };
    }
    let local = LOCAL.with(std::ptr::from_ref);
    // In an executable, unlike a library, the offset is the same in every thread.
    OFFSET.store(local.addr().wrapping_sub(thread_pointer()).cast_signed(), Relaxed);
    // SAFETY: valid for the life of the thread, and used by this thread only.
    unsafe { &*local }
}

/// Returns the calling thread's slot, or [`unbound`].
pub(crate) fn slot() -> *mut Entrance {
    local().slot.get()
}

/// Gives the calling thread a slot; [`unbound`] sends its next submission through the cold path.
pub(crate) fn set_slot(slot: *mut Entrance) {
    local().slot.set(slot);
}

/// Returns the slot that threads start with.
pub(crate) fn unbound() -> *mut Entrance {
    UNBOUND.load(Relaxed)
}

/// Marks that a handler runs on this thread. Cleared on drop, so also by a panic.
pub(crate) struct Inside(&'static Cell<usize>);

/// Flag in the word, beside the stack address: cancellation is disabled until the handler ends.
const IS_HELD: usize = 1;
/// Flag in the word: cancellation was enabled before.
const WAS_ENABLED: usize = 2;

impl Inside {
    /// Enters a handler. Returns `None` if one runs already: the word holds its stack address. A handler that
    /// is no deeper on the stack than the caller has been left by longjmp(3) from a signal handler.
    #[inline(always)]
    pub(crate) fn enter() -> Option<Self> {
        let here = 0_usize;
        let here = (&raw const here).addr();
        let inside = &local().inside;
        let before = inside.get();
        if here < before & !(IS_HELD | WAS_ENABLED) {
            return None;
        }
        // A handler left by longjmp(3) has not restored the cancellation state.
        inside.set(here | before & (IS_HELD | WAS_ENABLED));
        Some(Self(inside))
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.replace(0) & WAS_ENABLED != 0 {
            enable_again();
        }
    }
}

/// Returns whether a handler of the hook runs on this thread.
pub(crate) fn is_inside() -> bool {
    local().inside.get() != 0
}

/// Disables pthread_cancel(3) until the handler ends. For a handler that sleeps, does I/O or calls the driver
/// for itself: unwinding cannot pass the frames that catch the hook's panics.
#[inline]
pub(crate) fn hold() {
    let inside = &local().inside;
    if inside.get() != 0 && inside.get() & IS_HELD == 0 {
        disable(inside);
    }
}

#[cold]
#[inline(never)]
fn disable(inside: &Cell<usize>) {
    let was_enabled = set_cancel_state(PTHREAD_CANCEL_DISABLE) == PTHREAD_CANCEL_ENABLE;
    inside.set(inside.get() | IS_HELD | if was_enabled { WAS_ENABLED } else { 0 });
}

#[cold]
#[inline(never)]
fn enable_again() {
    set_cancel_state(PTHREAD_CANCEL_ENABLE);
}

/// Runs `wait` as if no handler ran on the thread: calls from a signal handler are treated like any others,
/// also those of a program that left the wait by longjmp(3).
pub(crate) fn outside(wait: impl FnOnce()) {
    let inside = &local().inside;
    let before = inside.replace(0);
    if before & WAS_ENABLED != 0 {
        set_cancel_state(PTHREAD_CANCEL_ENABLE);
    }
    wait();
    if before & WAS_ENABLED != 0 {
        set_cancel_state(PTHREAD_CANCEL_DISABLE);
    }
    inside.set(before);
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    /// Ends the thread if it is cancelled and the type becomes asynchronous.
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DEFERRED: c_int = 0;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// Makes pthread_cancel(3) of the calling thread deferred; returns whether it was asynchronous, that is,
/// could unwind the stack from any instruction. Before glibc 2.37, a signal on its way looks at
/// this type only, and not at whether cancellation is disabled.
#[inline]
pub(crate) fn defer_cancellation() -> bool {
    let mut before = PTHREAD_CANCEL_DEFERRED;
    // SAFETY: a valid type, and room for the previous one.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &raw mut before) };
    before == PTHREAD_CANCEL_ASYNCHRONOUS
}

/// Makes pthread_cancel(3) of the calling thread asynchronous. The thread may end here.
pub(crate) fn cancel_at_any_time() {
    // SAFETY: a valid type; the previous one is not asked for.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, null_mut()) };
}

const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Sets the cancellation state and returns the previous one.
fn set_cancel_state(state: c_int) -> c_int {
    let mut before = PTHREAD_CANCEL_ENABLE;
    // SAFETY: a valid state, and room for the previous one.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Runs `body`, which may sleep or do I/O, with pthread_cancel(3) deferred until it ends. For code outside
/// handlers.
pub(crate) fn uncanceled<T>(body: impl FnOnce() -> T) -> T {
    struct CancelState(c_int);
    impl Drop for CancelState {
        fn drop(&mut self) {
            set_cancel_state(self.0);
        }
    }
    let _before = CancelState(set_cancel_state(PTHREAD_CANCEL_DISABLE));
    body()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::cuda::CUerror;
    use crate::driver::interpose::{around, guarded};

    #[inline(never)]
    fn enter_and_leave_it_so() {
        std::mem::forget(std::hint::black_box(Inside::enter()));
        hold();
    }

    #[test]
    fn handler_left_by_longjmp_counts_as_ended() {
        #[inline(never)]
        fn deeper() {
            let frame = [0_u8; 4096];
            std::hint::black_box(&frame);
            enter_and_leave_it_so();
            std::hint::black_box(&frame);
        }
        deeper();
        assert!(is_inside());
        assert_eq!(
            around(&|| Ok(()), &mut |_| Err(CUerror::OUT_OF_MEMORY)),
            Err(CUerror::OUT_OF_MEMORY)
        );
        assert!(!is_inside());
        assert_eq!(set_cancel_state(PTHREAD_CANCEL_ENABLE), PTHREAD_CANCEL_ENABLE);
    }

    #[test]
    fn left_handler_does_not_block_next_at_same_depth() {
        #[inline(never)]
        fn enter() -> bool {
            let entered = Inside::enter();
            let is_entered = entered.is_some();
            hold();
            std::mem::forget(std::hint::black_box(entered));
            is_entered
        }
        assert!((0..2).all(|_| enter()));
        drop(Inside(&local().inside));
        assert_eq!(set_cancel_state(PTHREAD_CANCEL_ENABLE), PTHREAD_CANCEL_ENABLE);
    }

    #[test]
    fn longjmp_out_of_wait_keeps_cancellation() {
        for state in [PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_DISABLE] {
            let before = set_cancel_state(state);
            let seen = guarded(|| {
                let mut seen = None;
                outside(|| {
                    let there = set_cancel_state(state);
                    seen = Some((there, is_inside()));
                });
                (seen, set_cancel_state(PTHREAD_CANCEL_DISABLE))
            });
            assert_eq!(seen, Some((Some((state, false)), PTHREAD_CANCEL_DISABLE)));
            assert_eq!(set_cancel_state(before), state);
        }
    }
}
