//! What each thread has of ours: its slot, and whether a handler runs on it, which may not be cancelled in
//! what it waits for.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicIsize, AtomicPtr, Ordering::Relaxed};

use gcgroup_abi::{Entrance, Local};

/// Where a thread's [`Local`] lies from its thread pointer. Set once, before the first hooked call.
pub(crate) static OFFSET: AtomicIsize = AtomicIsize::new(0);

/// The slot that threads start with; no thread's own, never counted.
static UNBOUND: AtomicPtr<Entrance> = AtomicPtr::new(null_mut());

/// Takes over the preload library's part of each thread.
pub(crate) fn set_locals(thread_offset: isize, unbound: *mut Entrance) {
    OFFSET.store(thread_offset, Relaxed);
    UNBOUND.store(unbound, Relaxed);
}

#[cfg(not(test))]
fn local() -> &'static Local {
    let thread_pointer: usize;
    // SAFETY: reads the first word of the thread control block, which the x86-64 ABI defines as its own
    // address.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer, options(nostack, preserves_flags, pure, readonly));
    }
    let address = thread_pointer.wrapping_add_signed(OFFSET.load(Relaxed));
    // SAFETY: the preload library's thread-local block, there for as long as the thread; shared by nobody
    // else.
    unsafe { &*std::ptr::with_exposed_provenance::<Local>(address) }
}

/// Without the preload library, the test's own threads stand in.
#[cfg(test)]
fn local() -> &'static Local {
    thread_local! {
        static LOCAL: Local = const { Local { slot: Cell::new(null_mut()), inside: Cell::new(0) } };
    }
    let thread_pointer: usize;
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer, options(nostack, preserves_flags, pure, readonly));
    }
    let local = LOCAL.with(std::ptr::from_ref);
    // In a program, as opposed to a library, the same in every thread.
    OFFSET.store(local.addr().wrapping_sub(thread_pointer).cast_signed(), Relaxed);
    // SAFETY: there for as long as the thread, and of no use to another.
    unsafe { &*local }
}

/// The calling thread's slot: a real one, or [`unbound`].
pub(crate) fn slot() -> *mut Entrance {
    local().slot.get()
}

/// Gives the calling thread a slot; [`unbound`] sends its next submission through the cold path.
pub(crate) fn set_slot(slot: *mut Entrance) {
    local().slot.set(slot);
}

/// The slot that threads start with.
pub(crate) fn unbound() -> *mut Entrance {
    UNBOUND.load(Relaxed)
}

/// Whether a handler runs on this thread; ends when dropped, so also by a panic.
pub(crate) struct Inside(&'static Cell<usize>);

/// In the word that says where on the stack: the thread cannot be cancelled, until the handler ends.
const IS_HELD: usize = 1;
/// And it could be, before.
const WAS_ENABLED: usize = 2;

impl Inside {
    /// `None` if one runs already: the word is where on the stack. One that runs no deeper than the caller
    /// does not run any more: a signal's handler has left it by longjmp(3).
    #[inline(always)]
    pub(crate) fn enter() -> Option<Self> {
        let here = 0_usize;
        let here = (&raw const here).addr();
        let inside = &local().inside;
        let before = inside.get();
        if here < before & !(IS_HELD | WAS_ENABLED) {
            return None;
        }
        // Who was jumped out of has not put it back.
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

/// Whether a handler of ours runs on this thread.
pub(crate) fn is_inside() -> bool {
    local().inside.get() != 0
}

/// From here to the handler's end, pthread_cancel(3) does not end the thread. For a handler that sleeps, does
/// input or output, or calls the driver for itself: what would unwind it cannot pass the frames that catch
/// our panics.
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

/// Runs `wait`, during which the thread has nothing of ours in its hands: calls from a signal's handler are
/// like any other, and so are those of a program that has left the wait by longjmp(3).
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

const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// The state before.
fn set_cancel_state(state: c_int) -> c_int {
    let mut before = PTHREAD_CANCEL_ENABLE;
    // SAFETY: a state that there is, and a place for the one before.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Runs `body`, in which the thread may sleep or do input and output, so that pthread_cancel(3) ends it only
/// after. For what runs outside of a handler.
pub(crate) fn uncanceled<T>(body: impl FnOnce() -> T) -> T {
    struct State(c_int);
    impl Drop for State {
        fn drop(&mut self) {
            set_cancel_state(self.0);
        }
    }
    let _before = State(set_cancel_state(PTHREAD_CANCEL_DISABLE));
    body()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::CUerror;
    use crate::interpose::{around, guarded};

    #[inline(never)]
    fn enter_and_leave_it_so() {
        std::mem::forget(std::hint::black_box(Inside::enter()));
        hold();
    }

    #[test]
    fn a_handler_that_was_jumped_out_of_runs_no_more() {
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
    fn who_was_jumped_out_of_does_not_hold_up_the_next_from_the_same_place() {
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
    fn who_jumps_out_of_a_wait_may_be_canceled_as_before() {
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
