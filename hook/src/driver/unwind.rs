//! Thread cancellation through the hook's frames. pthread_cancel(3) unwinds the stack of a waiting thread; if
//! that reached a frame that catches panics, the program would abort. So the unwinding is stopped at the
//! driver's call, the handler ends as after an error, and the unwinding continues from there.
//!
//! The frames that it passes have nothing to drop. Other unwinding, such as a C++ exception, is not stopped:
//! none is thrown through the driver.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::driver::cuda::CUresult;

/// The exception that unwinds a thread and must be resumed.
pub(crate) type Unwinding = NonNull<c_void>;

/// A borrowed driver call: a function and its argument, in two words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    run: unsafe extern "C-unwind" fn(*const c_void) -> CUresult,
    data: *const c_void,
    lent: PhantomData<&'a ()>,
}

impl<'a> Call<'a> {
    /// Wraps `call`, which must not own anything to drop while it runs.
    #[inline(always)]
    pub(crate) fn of<F: Fn() -> CUresult>(call: &'a F) -> Self {
        unsafe extern "C-unwind" fn run<F: Fn() -> CUresult>(data: *const c_void) -> CUresult {
            // SAFETY: the borrowed closure, see below.
            unsafe { (*data.cast::<F>())() }
        }
        Self {
            run: run::<F>,
            data: std::ptr::from_ref(call).cast(),
            lent: PhantomData,
        }
    }

    /// Calls the driver; returns its result.
    #[inline(always)]
    pub(crate) fn run(self) -> CUresult {
        // SAFETY: `data` is a closure borrowed for `'a`, and `run` is the function for its type.
        unsafe { (self.run)(self.data) }
    }

    /// Calls the driver; returns its result, or the unwinding that was stopped.
    #[inline(always)]
    pub(crate) fn stopped(self) -> Stopped {
        // SAFETY: as in `run`.
        unsafe { stop(self.run, self.data) }
    }
}

/// Result of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopped {
    pub(crate) unwinding: Option<Unwinding>,
    /// The driver's result; an error if the call was unwound.
    pub(crate) answer: CUresult,
}

/// Continues the unwinding.
///
/// # Safety
/// `unwinding` comes from `stopped` and is resumed once. All frames since then have ended in order.
pub(crate) unsafe fn resume(unwinding: Unwinding) -> ! {
    // SAFETY: this is how a finished landing pad resumes.
    unsafe { _Unwind_Resume(unwinding.as_ptr()) }
}

/// Calls `call(data)`; returns its result, and the exception that [`personality`] stopped.
#[unsafe(naked)]
unsafe extern "C-unwind" fn stop(
    call: unsafe extern "C-unwind" fn(*const c_void) -> CUresult,
    data: *const c_void,
) -> Stopped {
    crate::arch::stop_text!(personality = sym personality)
}

/// Continuation of a call that was unwound, in the frame of [`stop`].
#[unsafe(naked)]
unsafe extern "C" fn landed() {
    crate::arch::landed_text!()
}

/// Personality routine of [`stop`]'s frame, called by the unwinder (Itanium C++ ABI: Exception Handling, "The
/// personality routine").
unsafe extern "C" fn personality(
    _version: c_int,
    actions: c_int,
    _class: u64,
    exception: *mut c_void,
    context: *mut c_void,
) -> c_int {
    const FORCED: c_int = 8;
    const CONTINUE: c_int = 8;
    const INSTALL: c_int = 7;
    if actions & FORCED == 0 {
        return CONTINUE;
    }
    // SAFETY: the unwinder's own context for this frame; register 0 is the one that `landed` expects.
    unsafe {
        _Unwind_SetGR(context, 0, exception.expose_provenance());
        _Unwind_SetIP(context, landed as *const () as usize);
    }
    INSTALL
}

unsafe extern "C" {
    fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
    fn _Unwind_SetIP(context: *mut c_void, address: usize);
}

unsafe extern "C-unwind" {
    fn _Unwind_Resume(exception: *mut c_void) -> !;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::driver::cuda::CUerror;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    unsafe extern "C" {
        pub(crate) fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    unsafe extern "C-unwind" {
        /// A cancellation point.
        pub(crate) safe fn pthread_testcancel();
    }

    /// Runs `body` in a thread made by the C library, with no Rust frames below it; returns whether it was
    /// cancelled.
    pub(crate) fn is_canceled(body: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void) -> bool {
        unsafe extern "C" {
            fn pthread_create(
                thread: *mut libc::pthread_t,
                attributes: *const c_void,
                body: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                argument: *mut c_void,
            ) -> c_int;
        }
        let mut thread = std::mem::MaybeUninit::uninit();
        let mut answer = std::ptr::null_mut();
        // SAFETY: called as the manual pages say.
        unsafe {
            assert_eq!(
                pthread_create(thread.as_mut_ptr(), std::ptr::null(), body, std::ptr::null_mut()),
                0
            );
            assert_eq!(libc::pthread_join(thread.assume_init(), &raw mut answer), 0);
        }
        // PTHREAD_CANCELED
        answer.addr() == usize::MAX
    }

    /// Requests cancellation of the calling thread at its next cancellation point.
    pub(crate) fn cancel_self() {
        // SAFETY: the calling thread exists.
        unsafe { pthread_cancel(libc::pthread_self()) };
    }

    static STOPS: AtomicUsize = AtomicUsize::new(0);
    static IS_RESUMED: AtomicBool = AtomicBool::new(false);

    unsafe extern "C-unwind" fn stops_twice(_: *mut c_void) -> *mut c_void {
        for answer in [Ok(()), Err(CUerror::NOT_READY)] {
            let stopped = Call::of(&|| answer).stopped();
            assert_eq!((stopped.unwinding, stopped.answer), (None, answer));
        }
        cancel_self();
        let outer = Call::of(&|| {
            let waits = || {
                pthread_testcancel();
                Ok(())
            };
            let inner = Call::of(&waits).stopped();
            assert_eq!(inner.answer, Err(CUerror::UNKNOWN));
            let inner = inner.unwinding.expect("it is canceled");
            STOPS.fetch_add(1, Relaxed);
            // SAFETY: once, and all frames have ended in order.
            unsafe { resume(inner) }
        })
        .stopped();
        let Some(outer) = outer.unwinding else {
            return std::ptr::null_mut();
        };
        STOPS.fetch_add(1, Relaxed);
        IS_RESUMED.store(true, Relaxed);
        // SAFETY: as above.
        unsafe { resume(outer) }
    }

    #[test]
    fn cancellation_is_stopped_and_resumed() {
        assert!(is_canceled(stops_twice));
        assert_eq!(STOPS.load(Relaxed), 2);
        assert!(IS_RESUMED.load(Relaxed));
    }
}
