//! Standing between a program and the driver: what every hooked call has around it.
//!
//! Knows neither what is hooked nor what a handler does. A handler that panics is as if it were not there.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::cuda::{CUerror, CUresult};
use crate::thread::{self, Inside};
use crate::unwind::{self, Call, Unwinding};

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

/// Runs `body` in place of `real`. Calls that the driver makes of its own functions go straight through, and if
/// `body` panics the driver's answer stands. `errno` is as the driver left it.
///
/// Where pthread_cancel(3) ends the thread in the driver, `next` answers with an error, and the thread ends when `body` has.
#[inline(always)]
pub(crate) fn around<R, B>(real: &R, body: &mut B) -> CUresult
where
    R: Fn() -> CUresult,
    B: FnMut(Next<'_>) -> CUresult,
{
    around_any(Call::of(real), Handler::of(body))
}

/// A handler that is lent, like a [`Call`].
struct Handler<'a> {
    run: unsafe fn(*mut c_void, Next<'_>) -> CUresult,
    data: *mut c_void,
    lent: PhantomData<&'a mut ()>,
}

impl<'a> Handler<'a> {
    #[inline(always)]
    fn of<B: FnMut(Next<'_>) -> CUresult>(body: &'a mut B) -> Self {
        unsafe fn run<B: FnMut(Next<'_>) -> CUresult>(data: *mut c_void, next: Next<'_>) -> CUresult {
            // SAFETY: the closure that is lent, below.
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
        // SAFETY: a closure that is lent for as long and used by nobody else, and what runs such.
        unsafe { (self.run)(self.data, next) }
    }
}

/// Once for all: what differs between functions is passed by, so that each of them is small.
#[inline(never)]
fn around_any(real: Call<'_>, body: Handler<'_>) -> CUresult {
    let Some(inside) = Inside::enter() else {
        return real.run();
    };
    match handled(inside, real, body) {
        Ok(result) => result,
        // SAFETY: once; the handler has ended, and this frame has nothing to drop.
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
    /// What it has said last.
    answer: Cell<Option<CUresult>>,
    /// What the thread was being unwound by when it was stopped.
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

/// Runs `body`, which is ours and calls the driver at most by `driver`; `None` if it panics.
pub(crate) fn guarded<T>(body: impl FnOnce() -> T) -> Option<T> {
    let _errno = Errno::keep();
    let _inside = Inside::enter();
    thread::hold();
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Has a panic of ours say one line to standard error, and only the first: the program is none the worse for it.
pub(crate) fn say_panics_once() {
    std::panic::set_hook(Box::new(|panic| {
        static SAID: Once = Once::new();
        thread::hold();
        SAID.call_once(|| eprintln!("gcgroup: {panic}; the program goes on without this"));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::tests::{cancel_self, is_canceled, pthread_testcancel};
    use parking_lot::Mutex;
    use std::sync::atomic::AtomicBool;

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

    /// A driver's function in which the thread is cancelled, and what the handler around it saw.
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
    fn a_thread_that_is_canceled_in_the_driver_ends_after_the_handler() {
        assert!(is_canceled(is_canceled_in_the_driver));
        let failed = Err(CUerror::UNKNOWN);
        assert_eq!(
            *SEEN.lock(),
            [failed, failed],
            "the driver is not called again, nor does the call return"
        );
    }

    unsafe extern "C-unwind" fn is_canceled_in_a_call_from_inside(_: *mut c_void) -> *mut c_void {
        cancel_self();
        let real = || {
            pthread_testcancel();
            Ok(())
        };
        let nested = || around(&real, &mut |_| panic!("it goes straight through"));
        let _ = around(&nested, &mut |next| next());
        null_mut()
    }

    #[test]
    fn a_thread_that_is_canceled_in_a_call_from_inside_ends_too() {
        assert!(is_canceled(is_canceled_in_a_call_from_inside));
    }

    /// Whether the thread is not cancelled in what is ours, but at the first occasion after.
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
    fn a_thread_is_not_canceled_where_it_is_held() {
        assert!(is_canceled(is_held_by_what_is_ours));
        assert!(IS_THROUGH.load(Relaxed));
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
