//! The frame around every hooked call.
//!
//! Knows neither the hooked functions nor what handlers do. If a handler panics, the call behaves as if it
//! had none.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::thread::{self, Inside};
use crate::driver::unwind::{self, Call, Unwinding};
use crate::sys::log;

/// Calls the driver with the program's own arguments.
pub type Next<'a> = &'a dyn Fn() -> CUresult;

/// The driver's own function of one name.
#[repr(C)]
#[derive(Debug)]
pub struct Real {
    /// Function to call; if the driver lacks it, a stub that returns "not found". The first field, because
    /// the fast path of submissions calls through the address of the struct.
    address: AtomicPtr<c_void>,
    /// Address that `cuGetProcAddress` returns for it, if that differs.
    given: AtomicPtr<c_void>,
}

impl Real {
    /// Returns a function of libcuda that has not been looked up.
    pub const fn libcuda() -> Self {
        Self::new(absent as *const c_void)
    }

    /// Returns a function of NVML that has not been looked up.
    pub const fn nvml() -> Self {
        Self::new(nvml_absent as *const c_void)
    }

    const fn new(address: *const c_void) -> Self {
        Self {
            address: AtomicPtr::new(address.cast_mut()),
            given: AtomicPtr::new(null_mut()),
        }
    }

    /// Returns the function to call; never null.
    pub fn address(&self) -> *mut c_void {
        self.address.load(Relaxed)
    }

    /// Stores what the library exports and what `cuGetProcAddress` returns; null means "no such function".
    pub(crate) fn set(&self, exported: *mut c_void, given: *mut c_void) {
        let call = if exported.is_null() { given } else { exported };
        if !call.is_null() {
            self.given.store(given, Relaxed);
            self.call_through(call);
        }
    }

    /// Directs later calls to `address`, which is this function or jumps to it.
    pub(crate) fn call_through(&self, address: *mut c_void) {
        self.address.store(address, Relaxed);
    }

    /// Returns whether `address` is this function.
    pub(crate) fn is(&self, address: *mut c_void) -> bool {
        self.address() == address || self.given.load(Relaxed) == address
    }

    /// Returns whether the driver lacks the function, or has not been asked yet.
    pub fn is_absent(&self) -> bool {
        let address = self.address().cast_const();
        address == absent as *const c_void || address == nvml_absent as *const c_void
    }
}

/// Stub for any function that the driver lacks: the C calling convention allows ignoring arguments.
extern "C" fn absent() -> CUresult {
    Err(CUerror::NOT_FOUND)
}

extern "C" fn nvml_absent() -> CUresult {
    Err(CUerror::NVML_FUNCTION_NOT_FOUND)
}

/// Saves the calling thread's `errno` and restores it when dropped, so that the program does not see changes
/// by the hook's own system calls.
pub(crate) struct Errno {
    /// Cached, since looking it up each time would cost as much as the rest.
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

    /// Saves the present `errno` instead, after the driver has returned.
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
    // SAFETY: this thread's errno in the C library: valid, aligned, and accessed by no other code while the
    // hook runs.
    unsafe { &*libc::__errno_location().cast::<Cell<c_int>>() }
}

/// Runs `body` in place of `real`. Calls that the driver makes to its own functions are passed on unchanged.
/// If `body` panics, the driver's result is returned. `errno` is left as the driver set it.
///
/// If pthread_cancel(3) ends the thread inside the driver, `next` returns an error, and the thread ends after
/// `body` has returned.
#[inline(always)]
pub(crate) fn around<R, B>(real: &R, body: &mut B) -> CUresult
where
    R: Fn() -> CUresult,
    B: FnMut(Next<'_>) -> CUresult,
{
    around_any(Call::of(real), Handler::of(body))
}

/// A borrowed handler, like a [`Call`].
struct Handler<'a> {
    run: unsafe fn(*mut c_void, Next<'_>) -> CUresult,
    data: *mut c_void,
    lent: PhantomData<&'a mut ()>,
}

impl<'a> Handler<'a> {
    #[inline(always)]
    fn of<B: FnMut(Next<'_>) -> CUresult>(body: &'a mut B) -> Self {
        unsafe fn run<B: FnMut(Next<'_>) -> CUresult>(data: *mut c_void, next: Next<'_>) -> CUresult {
            // SAFETY: the borrowed closure, see below.
            unsafe { (*data.cast::<B>())(next) }
        }
        Self {
            run: run::<B>,
            data: std::ptr::from_mut(body).cast(),
            lent: PhantomData,
        }
    }

    #[inline(always)]
    fn run(self, next: Next<'_>) -> CUresult {
        // SAFETY: `data` is a closure borrowed exclusively for `'a`, and `run` is the function for its type.
        unsafe { (self.run)(self.data, next) }
    }
}

/// Not generic: what differs between functions is passed as arguments, so that the wrappers stay small.
///
/// A thread that may be cancelled at any instruction is so only in the driver's function: the unwinding could
/// not pass the frames from here to there. This frame has nothing to drop, and may be passed.
#[inline(never)]
fn around_any(real: Call<'_>, body: Handler<'_>) -> CUresult {
    if !thread::defer_cancellation() {
        return around_deferred(real, body);
    }
    let answer = around_deferred(
        Call::of(&|| {
            thread::cancel_at_any_time();
            let answer = real.run();
            thread::defer_cancellation();
            answer
        }),
        body,
    );
    thread::cancel_at_any_time();
    answer
}

#[inline(never)]
fn around_deferred(real: Call<'_>, body: Handler<'_>) -> CUresult {
    let Some(inside) = Inside::enter() else {
        return real.run();
    };
    match handled(inside, real, body) {
        Ok(result) => result,
        // SAFETY: called once; the handler has ended, and this frame has nothing to drop.
        Err(unwinding) => unsafe { unwind::resume(unwinding) },
    }
}

#[inline(always)]
fn handled(inside: Inside, real: Call<'_>, body: Handler<'_>) -> Result<CUresult, Unwinding> {
    let driver = Driver {
        real,
        errno: Errno::keep(),
        answer: Cell::new(None),
        unwinding: Cell::new(None),
    };
    let next = || driver.ask();
    let result = catch_unwind(AssertUnwindSafe(|| body.run(&next)));
    let result = result.unwrap_or_else(|_| driver.answer.get().unwrap_or_else(next));
    drop(driver.errno);
    drop(inside);
    match driver.unwinding.get() {
        Some(unwinding) => Err(unwinding),
        None => Ok(result),
    }
}

/// The driver's part of a call.
struct Driver<'a> {
    real: Call<'a>,
    errno: Errno,
    /// The driver's last result.
    answer: Cell<Option<CUresult>>,
    /// The unwinding that was stopped at the driver's call, if the thread was cancelled in it.
    unwinding: Cell<Option<Unwinding>>,
}

impl Driver<'_> {
    fn ask(&self) -> CUresult {
        if self.unwinding.get().is_some() {
            return Err(CUerror::UNKNOWN);
        }
        let stopped = self.real.stopped();
        self.errno.renew();
        self.unwinding.set(stopped.unwinding);
        self.answer.set(Some(stopped.answer));
        stopped.answer
    }
}

/// Runs `body`, code of the hook that calls the driver only through `driver`; `None` if it panics.
pub(crate) fn guarded<T>(body: impl FnOnce() -> T) -> Option<T> {
    let _errno = Errno::keep();
    let _inside = Inside::enter();
    thread::hold();
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Installs a panic hook that prints one line to standard error, for the first panic only, and logs each.
pub(crate) fn say_panics_once() {
    std::panic::set_hook(Box::new(|panic| {
        static SAID: Once = Once::new();
        thread::hold();
        log::line(|| format!("internal error: {panic}"));
        SAID.call_once(|| eprintln!("gcgroup: internal error: {panic}; the program continues"));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::unwind::tests::{cancel_self, is_canceled, pthread_testcancel};
    use parking_lot::Mutex;
    use std::sync::atomic::AtomicBool;

    fn quietly<T>(run: impl FnOnce() -> T) -> T {
        std::panic::set_hook(Box::new(|_| {}));
        run()
    }

    #[test]
    fn panicking_handler_leaves_the_drivers_result() {
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
    fn nested_call_goes_to_the_driver() {
        let mut nested = |_: Next<'_>| around(&|| Ok(()), &mut |_| Err(CUerror::OUT_OF_MEMORY));
        assert_eq!(around(&|| Ok(()), &mut nested), Ok(()));
        assert_eq!(
            around(&|| Ok(()), &mut |_| Err(CUerror::OUT_OF_MEMORY)),
            Err(CUerror::OUT_OF_MEMORY)
        );
    }

    #[test]
    fn call_after_a_nested_call_is_still_nested() {
        let straight = |_: Next<'_>| Err(CUerror::OUT_OF_MEMORY);
        let mut nested = |_: Next<'_>| {
            assert_eq!(around(&|| Ok(()), &mut { straight }), Ok(()));
            around(&|| Ok(()), &mut { straight })
        };
        assert_eq!(around(&|| Ok(()), &mut nested), Ok(()));
    }

    /// Results that a handler saw around a driver function in which the thread was cancelled.
    static SEEN: Mutex<Vec<CUresult>> = Mutex::new(Vec::new());

    unsafe extern "C-unwind" fn is_canceled_in_the_driver(_: *mut c_void) -> *mut c_void {
        cancel_self();
        let real = || {
            pthread_testcancel();
            Ok(())
        };
        let answer = around(&real, &mut |next| {
            let results = [next(), next()];
            SEEN.lock().extend(results);
            Ok(())
        });
        SEEN.lock().push(answer);
        null_mut()
    }

    #[test]
    fn thread_cancelled_in_the_driver_ends_after_the_handler() {
        assert!(is_canceled(is_canceled_in_the_driver));
        let failed = Err(CUerror::UNKNOWN);
        assert_eq!(
            *SEEN.lock(),
            [failed, failed],
            "the driver is not called again and the call does not return"
        );
    }

    unsafe extern "C-unwind" fn is_canceled_in_a_call_from_inside(_: *mut c_void) -> *mut c_void {
        cancel_self();
        let real = || {
            pthread_testcancel();
            Ok(())
        };
        let nested = || around(&real, &mut |_| panic!("nested calls have no handler"));
        let _ = around(&nested, &mut |next| next());
        null_mut()
    }

    #[test]
    fn thread_cancelled_in_a_nested_call_ends() {
        assert!(is_canceled(is_canceled_in_a_call_from_inside));
    }

    /// Checks that a thread is not cancelled inside the hook's code, but at the first cancellation point
    /// after it.
    unsafe extern "C-unwind" fn is_held_by_what_is_ours(_: *mut c_void) -> *mut c_void {
        cancel_self();
        let real = || Err(CUerror::NOT_READY);
        let answer = around(&real, &mut |next| {
            thread::hold();
            pthread_testcancel();
            let answer = next();
            pthread_testcancel();
            answer
        });
        assert_eq!(answer, Err(CUerror::NOT_READY));
        guarded(|| pthread_testcancel());
        thread::uncanceled(|| pthread_testcancel());
        IS_THROUGH.store(true, Relaxed);
        pthread_testcancel();
        null_mut()
    }

    static IS_THROUGH: AtomicBool = AtomicBool::new(false);

    #[test]
    fn thread_is_not_cancelled_inside_the_hook() {
        assert!(is_canceled(is_held_by_what_is_ours));
        assert!(IS_THROUGH.load(Relaxed));
    }

    #[test]
    fn errno_is_left_as_the_driver_set_it() {
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
            "as before the call, which did not reach the driver"
        );
    }
}
