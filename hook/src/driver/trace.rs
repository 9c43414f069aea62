//! Trace of the hook in a file: `GCGROUP_TRACE`. It shows on which functions of a driver the hook works,
//! which of them a program calls, and what the driver refuses to the hook itself.
//!
//! Without the variable no call of the program costs anything. With it, each hooked function first calls the
//! driver through a stub, which logs the call and binds the function to the driver's own: so the first call
//! is traced without an instruction in the paths of calls.

use std::ffi::{CStr, c_void};
use std::fmt::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

use gcgroup_abi::environment::GCGROUP_TRACE;

use crate::arch;
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::interpose::{Errno, Real};
use crate::sys;
use crate::sys::log::TRACE;

/// Number of stubs, at least that of hooked functions.
pub(crate) const STUBS: usize = 640;

/// A hooked function that calls the driver through its stub.
struct Bound {
    name: &'static CStr,
    real: &'static Real,
    /// The driver's function.
    driver: *mut c_void,
}

/// Bound functions by number of the stub; null before.
static BOUND: [AtomicPtr<Bound>; STUBS] = [const { AtomicPtr::new(null_mut()) }; STUBS];

/// Starts the trace, if the environment asks for one.
pub(crate) fn start() {
    if let Some(path) = sys::path(&GCGROUP_TRACE) {
        TRACE.start(&path);
        TRACE.write(concat!("hook ", env!("CARGO_PKG_VERSION")));
    }
}

/// Writes a line, if there is a trace.
#[inline]
pub(crate) fn line(text: impl FnOnce() -> String) {
    if TRACE.is_on() {
        TRACE.write(&text());
    }
}

/// Traces that the hooked function `name`, the row of that number, has been bound to the driver's function:
/// as the library exports it, and as `cuGetProcAddress` returns it, each null if there is none. Its first
/// call will be traced.
pub(crate) fn bound(
    number: usize,
    name: &'static CStr,
    ours: *mut c_void,
    real: &'static Real,
    [exported, given]: [*mut c_void; 2],
) {
    if !TRACE.is_on() {
        return;
    }
    let driver = if exported.is_null() { given } else { exported };
    if driver.is_null() {
        TRACE.write(&format!("absent: {}", name.to_string_lossy()));
        return;
    }
    let mut text = format!(
        "bound: {} {ours:p}, exported {exported:p}",
        name.to_string_lossy()
    );
    if !given.is_null() && given != exported {
        let _ = write!(text, ", cuGetProcAddress {given:p}");
    }
    TRACE.write(&text);
    let Some(place) = BOUND.get(number) else { return };
    let bound = Box::leak(Box::new(Bound { name, real, driver }));
    place.store(bound, Release);
    real.call_through(std::ptr::without_provenance_mut(
        first_stub() + number * arch::STUB_BYTES,
    ));
}

/// Returns the driver's function to which a stub leads; any other address unchanged.
pub(crate) fn behind(address: *mut c_void) -> *mut c_void {
    let offset = address.addr().wrapping_sub(first_stub());
    // SAFETY: null or an object that was leaked.
    let bound = BOUND
        .get(offset / arch::STUB_BYTES)
        .and_then(|place| unsafe { place.load(Acquire).as_ref() });
    bound.map_or(address, |bound| bound.driver)
}

/// Traces a driver call of the hook itself if it failed, and returns its result. A query of unfinished work
/// does not fail.
pub(crate) fn own_call(name: &'static CStr, result: CUresult) -> CUresult {
    if let Err(error) = result
        && error != CUerror::NOT_READY
    {
        line(|| format!("own call failed: {} {}", name.to_string_lossy(), error.0));
    }
    result
}

fn first_stub() -> usize {
    (stubs as *const c_void).addr()
}

/// The stubs, one after the other.
#[unsafe(naked)]
unsafe extern "C" fn stubs() {
    arch::stubs_text!(count = const STUBS, traced = sym traced)
}

/// Calls [`called`] with every argument preserved, and continues in the driver.
#[unsafe(naked)]
unsafe extern "C" fn traced() {
    arch::traced_text!(called = sym called)
}

/// Traces the first call of the function whose stub ends at `end`. Returns the driver's function, to which
/// later calls go directly. Several threads may make the first call.
extern "C" fn called(end: usize) -> *mut c_void {
    let _errno = Errno::keep();
    let number = (end - first_stub()) / arch::STUB_BYTES - 1;
    // SAFETY: a function is bound to a stub only after the store of the leaked object.
    let bound = unsafe { &*BOUND[number].load(Acquire) };
    bound.real.call_through(bound.driver);
    line(|| format!("first call: {}", bound.name.to_string_lossy()));
    bound.driver
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    thread_local! {
        static SEEN: Cell<[u64; 9]> = const { Cell::new([0; 9]) };
    }

    type Nine = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64) -> CUresult;

    #[rustfmt::skip]
    extern "C" fn driver(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64, i: u64) -> CUresult {
        SEEN.set([a, b, c, d, e, f, g, h, i]);
        Err(CUerror::NOT_READY)
    }

    #[test]
    fn first_call_is_traced_and_later_calls_are_direct() {
        static REAL: Real = Real::libcuda();
        let path = std::env::temp_dir().join(format!("gcgroup-trace-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let ours = driver as *mut c_void;
        bound(7, c"cuOff", ours, &REAL, [ours, null_mut()]);
        assert!(REAL.is_absent(), "nothing is bound without a trace");
        TRACE.start(path.as_os_str());
        REAL.set(ours, null_mut());
        bound(STUBS - 1, c"cuNine", ours, &REAL, [ours, null_mut()]);
        bound(3, c"cuNone", ours, &REAL, [null_mut(); 2]);
        assert_ne!(REAL.address(), ours);
        assert_eq!(behind(REAL.address()), ours);
        assert!(!REAL.is_absent());
        for call in 1..=2 {
            // SAFETY: the stub leads to a function of this type.
            let function = unsafe { std::mem::transmute::<*mut c_void, Nine>(REAL.address()) };
            let result = function(call, 2, 3, 4, 5, 6, 7, 8, 9);
            assert_eq!(result, Err(CUerror::NOT_READY));
            assert_eq!(SEEN.get(), [call, 2, 3, 4, 5, 6, 7, 8, 9]);
            assert_eq!(REAL.address(), ours);
        }
        let _ = own_call(c"cuWaits", Err(CUerror::NOT_READY));
        let _ = own_call(c"cuFails", Err(CUerror::INVALID_VALUE));
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text
            .lines()
            .filter_map(|line| line.splitn(4, ' ').nth(3))
            .collect();
        let mine = |line: &&&str| {
            ["cuNine", "cuNone", "cuFails", "cuWaits", "cuOff"]
                .iter()
                .any(|name| line.contains(name))
        };
        assert_eq!(
            lines.iter().filter(mine).collect::<Vec<_>>(),
            [
                &&*format!("bound: cuNine {ours:p}, exported {ours:p}"),
                &"absent: cuNone",
                &"first call: cuNine",
                &"own call failed: cuFails 1",
            ]
        );
        fs::remove_file(&path).unwrap();
    }
}
