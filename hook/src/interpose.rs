//! Standing between a program and the driver: what every hooked call has around it.
//!
//! Knows neither what is hooked nor what a handler does. A handler that panics is as if it were not there.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicIsize, AtomicPtr, Ordering::Relaxed};

use gcgroup_abi::{Local, Thread};

use crate::cuda::{CUerror, CUresult};

/// Calls the driver with the program's own arguments.
pub type Next<'a> = &'a dyn Fn() -> CUresult;

/// The driver's own function of one name.
#[repr(C)]
#[derive(Debug)]
pub struct Real {
    /// What to call. Where the driver has no such function, one that answers that there is none. First, because the
    /// path of a submission calls through the address of the whole.
    address: AtomicPtr<c_void>,
    /// What `cuGetProcAddress` gives for it, if that is another address.
    given: AtomicPtr<c_void>,
}

impl Real {
    /// A function of libcuda, not yet found.
    pub const fn libcuda() -> Self {
        Self::new(absent as *const c_void)
    }

    /// A function of NVML, not yet found.
    pub const fn nvml() -> Self {
        Self::new(nvml_absent as *const c_void)
    }

    const fn new(address: *const c_void) -> Self {
        Self {
            address: AtomicPtr::new(address.cast_mut()),
            given: AtomicPtr::new(null_mut()),
        }
    }

    /// What to call; never null.
    pub fn address(&self) -> *mut c_void {
        self.address.load(Relaxed)
    }

    /// Keeps what the library exports and what `cuGetProcAddress` gives; null is "no such function".
    pub(crate) fn set(&self, exported: *mut c_void, given: *mut c_void) {
        let call = if exported.is_null() { given } else { exported };
        if !call.is_null() {
            self.given.store(given, Relaxed);
            self.address.store(call, Relaxed);
        }
    }

    /// Whether `address` is this function.
    pub(crate) fn is(&self, address: *mut c_void) -> bool {
        self.address() == address || self.given.load(Relaxed) == address
    }

    /// Whether the driver has no such function, or has not been asked yet.
    pub fn is_absent(&self) -> bool {
        let address = self.address().cast_const();
        address == absent as *const c_void || address == nvml_absent as *const c_void
    }
}

/// Stands in for any function that the driver lacks: the C calling convention lets it ignore its arguments.
extern "C" fn absent() -> CUresult {
    Err(CUerror::NOT_FOUND)
}

extern "C" fn nvml_absent() -> CUresult {
    Err(CUerror::NVML_FUNCTION_NOT_FOUND)
}

/// Where a thread's [`Local`] lies from its thread pointer. Set once, before the first hooked call.
pub(crate) static THREAD_OFFSET: AtomicIsize = AtomicIsize::new(0);

/// The slot that threads start with; no thread's own, never counted.
static UNBOUND: AtomicPtr<Thread> = AtomicPtr::new(null_mut());

/// Takes over the preload library's part of each thread.
pub(crate) fn set_locals(thread_offset: isize, unbound: *mut Thread) {
    THREAD_OFFSET.store(thread_offset, Relaxed);
    UNBOUND.store(unbound, Relaxed);
}

#[cfg(not(test))]
fn local() -> &'static Local {
    let thread_pointer: usize;
    // SAFETY: reads the first word of the thread control block, which the x86-64 ABI defines as its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer, options(nostack, preserves_flags, pure, readonly));
    }
    let address = thread_pointer.wrapping_add_signed(THREAD_OFFSET.load(Relaxed));
    // SAFETY: the preload library's thread-local block, there for as long as the thread; shared by nobody else.
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
    THREAD_OFFSET.store(local.addr().wrapping_sub(thread_pointer).cast_signed(), Relaxed);
    // SAFETY: there for as long as the thread, and of no use to another.
    unsafe { &*local }
}

/// The calling thread's slot: a real one, or [`unbound`].
pub fn thread() -> *mut Thread {
    local().slot.get()
}

/// Gives the calling thread a slot; [`unbound`] sends its next submission through the cold path.
pub fn set_thread(slot: *mut Thread) {
    local().slot.set(slot);
}

/// The slot that threads start with.
pub fn unbound() -> *mut Thread {
    UNBOUND.load(Relaxed)
}

/// The calling thread's `errno`, put back when dropped: the program must not see that of our own system calls.
pub(crate) struct Errno {
    /// Asked for once: a call each time would cost as much as the rest.
    place: &'static Cell<c_int>,
    kept: Cell<c_int>,
}

impl Errno {
    pub(crate) fn keep() -> Self {
        let place = errno();
        Self {
            place,
            kept: Cell::new(place.get()),
        }
    }

    /// Keeps what `errno` is now instead: the driver has just returned.
    fn renew(&self) {
        self.kept.set(self.place.get());
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        self.place.set(self.kept.get());
    }
}

fn errno() -> &'static Cell<c_int> {
    // SAFETY: the C library's errno of this thread: valid, aligned, and ours alone to touch while we run.
    unsafe { &*libc::__errno_location().cast::<Cell<c_int>>() }
}

/// Whether a handler runs on this thread; ends when dropped, so also by a panic. Meanwhile pthread_cancel(3) does not
/// end the thread: what that unwinds, be it from the driver, cannot pass the frames that catch our panics.
struct Inside(&'static Cell<usize>);

/// In the word that says where on the stack: cancellation was enabled before.
const WAS_ENABLED: usize = 1;

impl Inside {
    /// `None` if one runs already: the word is where on the stack. One that runs no deeper than the caller does not run
    /// any more: a signal's handler has left it by longjmp(3).
    #[inline(always)]
    fn enter() -> Option<Self> {
        let here = 0_usize;
        let here = (&raw const here).addr();
        let inside = &local().inside;
        if here < inside.get() {
            return None;
        }
        let was_enabled = set_cancel_state(PTHREAD_CANCEL_DISABLE) == PTHREAD_CANCEL_ENABLE;
        // Who was jumped out of has not put it back.
        let left = inside.get() & WAS_ENABLED;
        inside.set(here | left | if was_enabled { WAS_ENABLED } else { 0 });
        Some(Self(inside))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.0.replace(0) & WAS_ENABLED != 0 {
            set_cancel_state(PTHREAD_CANCEL_ENABLE);
        }
    }
}

/// Whether a handler of ours runs on this thread.
pub(crate) fn is_inside() -> bool {
    local().inside.get() != 0
}

/// Runs `wait`, during which the thread has nothing of ours in its hands: calls from a signal's handler are like any
/// other, and so are those of a program that has left the wait by longjmp(3).
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

/// Runs `body`, in which the thread may sleep or do input and output, so that pthread_cancel(3) ends it only after. For
/// what runs outside of a handler.
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

/// Runs `body` in place of `real`. Calls that the driver makes of its own functions go straight through, and if
/// `body` panics the driver's answer stands. `errno` is as the driver left it.
pub(crate) fn around(real: Next<'_>, body: &mut dyn FnMut(Next<'_>) -> CUresult) -> CUresult {
    let Some(inside) = Inside::enter() else {
        return real();
    };
    let errno = Errno::keep();
    let answer = Cell::new(None);
    let next = || {
        let result = real();
        errno.renew();
        answer.set(Some(result));
        result
    };
    let result = catch_unwind(AssertUnwindSafe(|| body(&next)));
    let result = result.unwrap_or_else(|_| answer.get().unwrap_or_else(next));
    drop(errno);
    drop(inside);
    result
}

/// Runs `body`, which is ours and calls the driver at most by `driver`; `None` if it panics.
pub(crate) fn guarded<T>(body: impl FnOnce() -> T) -> Option<T> {
    let _errno = Errno::keep();
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Has a panic of ours say one line to standard error, and only the first: the program is none the worse for it.
pub(crate) fn say_panics_once() {
    std::panic::set_hook(Box::new(|panic| {
        static SAID: Once = Once::new();
        SAID.call_once(|| eprintln!("gcgroup: {panic}; the program goes on without this"));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quietly<T>(run: impl FnOnce() -> T) -> T {
        std::panic::set_hook(Box::new(|_| {}));
        run()
    }

    #[test]
    fn a_handler_that_panics_leaves_the_drivers_answer() {
        let calls = Cell::new(0);
        let real = || {
            calls.set(calls.get() + 1);
            Err(CUerror::INVALID_VALUE)
        };
        quietly(|| {
            assert_eq!(
                around(&real, &mut |_| panic!("before")),
                Err(CUerror::INVALID_VALUE)
            );
            assert_eq!(calls.get(), 1);
            let mut after = |next: Next<'_>| {
                let _ = next();
                panic!("after")
            };
            assert_eq!(around(&real, &mut after), Err(CUerror::INVALID_VALUE));
            assert_eq!(calls.get(), 2, "the driver is not asked twice");
        });
    }

    #[test]
    fn a_call_from_inside_a_handler_goes_straight_through() {
        let mut nested = |_: Next<'_>| around(&|| Ok(()), &mut |_| Err(CUerror::OUT_OF_MEMORY));
        assert_eq!(around(&|| Ok(()), &mut nested), Ok(()));
        assert_eq!(
            around(&|| Ok(()), &mut |_| Err(CUerror::OUT_OF_MEMORY)),
            Err(CUerror::OUT_OF_MEMORY)
        );
    }

    #[test]
    fn a_call_from_inside_a_handler_leaves_it_inside() {
        let straight = |_: Next<'_>| Err(CUerror::OUT_OF_MEMORY);
        let mut nested = |_: Next<'_>| {
            assert_eq!(around(&|| Ok(()), &mut { straight }), Ok(()));
            around(&|| Ok(()), &mut { straight })
        };
        assert_eq!(around(&|| Ok(()), &mut nested), Ok(()));
    }

    #[test]
    fn a_handler_that_was_jumped_out_of_runs_no_more() {
        #[inline(never)]
        fn enter_and_leave_it_so() {
            std::mem::forget(std::hint::black_box(Inside::enter()));
        }
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

    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    #[test]
    fn a_canceled_thread_goes_on_to_the_end_of_the_call() {
        let canceled = std::thread::spawn(|| {
            // SAFETY: this very thread, which meets cancellation points: those below.
            unsafe { pthread_cancel(libc::pthread_self()) };
            // SAFETY: a cancellation point.
            let sleep = || unsafe { libc::usleep(1) };
            let real = || {
                sleep();
                Err(CUerror::NOT_READY)
            };
            let answer = around(&real, &mut |next| {
                sleep();
                let answer = next();
                sleep();
                answer
            });
            guarded(sleep);
            uncanceled(sleep);
            // From here on the thread may not be canceled.
            (answer, set_cancel_state(PTHREAD_CANCEL_DISABLE))
        });
        assert_eq!(
            canceled.join().unwrap(),
            (Err(CUerror::NOT_READY), PTHREAD_CANCEL_ENABLE)
        );
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

    #[test]
    fn errno_is_as_the_driver_left_it() {
        errno().set(0);
        let real = || {
            errno().set(7);
            Ok(())
        };
        let mut body = |next: Next<'_>| {
            errno().set(3);
            let result = next();
            errno().set(4);
            result
        };
        assert_eq!(around(&real, &mut body), Ok(()));
        assert_eq!(errno().get(), 7);

        let mut refusing = |_: Next<'_>| {
            errno().set(4);
            Err(CUerror::OUT_OF_MEMORY)
        };
        assert_eq!(around(&real, &mut refusing), Err(CUerror::OUT_OF_MEMORY));
        assert_eq!(
            errno().get(),
            7,
            "as it was before a call that the driver never saw"
        );
    }
}
