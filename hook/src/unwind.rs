//! pthread_cancel(3) unwinds the thread's stack from where it waits. That must not come to a frame that catches our
//! panics, which would abort the program: it stops at the call of the driver, the handler ends as after an error, and the
//! unwinding goes on from there.
//!
//! The frames that it does pass have nothing to drop. What unwinds otherwise, an exception of C++ say, is not stopped:
//! nobody throws one through the driver.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::cuda::CUresult;

/// What unwinds a thread, and must go on doing so.
pub(crate) type Unwinding = NonNull<c_void>;

/// Calls `call`; its answer, or what unwinds the thread out of it.
///
/// `call` must not have anything to drop.
#[inline(always)]
pub(crate) fn stopped<F: Fn() -> CUresult>(call: F) -> Result<CUresult, Unwinding> {
    struct Run<F> {
        call: F,
        answer: CUresult,
    }
    unsafe extern "C-unwind" fn run<F: Fn() -> CUresult>(data: *mut c_void) {
        // SAFETY: the caller's own, below.
        let run = unsafe { &mut *data.cast::<Run<F>>() };
        run.answer = (run.call)();
    }
    let mut data = Run { call, answer: Ok(()) };
    // SAFETY: such data, which nobody else touches meanwhile.
    let unwinding = unsafe { stop(run::<F>, (&raw mut data).cast()) };
    NonNull::new(unwinding).map_or(Ok(data.answer), Err)
}

/// Goes on unwinding.
///
/// # Safety
/// What `stopped` gave, once. Between there and here everything was left in order.
pub(crate) unsafe fn resume(unwinding: Unwinding) -> ! {
    // SAFETY: a landing pad that is done resumes like this.
    unsafe { _Unwind_Resume(unwinding.as_ptr()) }
}

/// Calls `call(data)`; gives null, or the exception that [`personality`] stopped.
#[unsafe(naked)]
unsafe extern "C-unwind" fn stop(
    call: unsafe extern "C-unwind" fn(*mut c_void),
    data: *mut c_void,
) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        // 0x1b: relative to where it is written, in four bytes.
        ".cfi_personality 0x1b, {personality}",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        personality = sym personality,
    )
}

/// Where a call that was unwound goes on: in the frame of [`stop`], with the exception in `rax`.
#[unsafe(naked)]
unsafe extern "C" fn landed() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa_offset 16",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
    )
}

/// What the unwinder asks about the frame of [`stop`] (Itanium C++ ABI: Exception Handling, "The personality routine").
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
    // SAFETY: the unwinder's own context, at this frame; register 0 is rax.
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
    use crate::cuda::CUerror;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    unsafe extern "C" {
        pub(crate) fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    unsafe extern "C-unwind" {
        /// A cancellation point.
        pub(crate) safe fn pthread_testcancel();
    }

    /// Runs `body` in a thread of the C library's own, where nothing of Rust's stands in the way; whether it was canceled.
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
        // SAFETY: as the manual has it.
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

    /// Has the calling thread be canceled at the next cancellation point.
    pub(crate) fn cancel_self() {
        // SAFETY: this very thread.
        unsafe { pthread_cancel(libc::pthread_self()) };
    }

    static STOPS: AtomicUsize = AtomicUsize::new(0);
    static IS_RESUMED: AtomicBool = AtomicBool::new(false);

    unsafe extern "C-unwind" fn stops_twice(_: *mut c_void) -> *mut c_void {
        assert_eq!(stopped(|| Err(CUerror::NOT_READY)), Ok(Err(CUerror::NOT_READY)));
        cancel_self();
        let outer = stopped(|| {
            let inner = stopped(|| {
                pthread_testcancel();
                Ok(())
            });
            let inner = inner.expect_err("it is canceled");
            STOPS.fetch_add(1, Relaxed);
            // SAFETY: once, and nothing was left undone.
            unsafe { resume(inner) }
        });
        let outer: Unwinding = match outer {
            Err(outer) => outer,
            Ok(_) => return std::ptr::null_mut(),
        };
        STOPS.fetch_add(1, Relaxed);
        IS_RESUMED.store(true, Relaxed);
        // SAFETY: as above.
        unsafe { resume(outer) }
    }

    #[test]
    fn a_cancellation_is_stopped_and_goes_on() {
        assert!(is_canceled(stops_twice));
        assert_eq!(STOPS.load(Relaxed), 2);
        assert!(IS_RESUMED.load(Relaxed));
    }
}
