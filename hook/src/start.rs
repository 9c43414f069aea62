//! Entry point of the library: the preload library calls it and passes it the lookups of driver symbols.

use std::ffi::{CStr, c_char, c_void};

use gcgroup_abi::{Bridge, Resolve, VERSION};

use crate::driver::{interpose, library, thread, trace, unwinder};
use crate::symbols;
use crate::table::ROWS;

/// Receives the preload library's side of the bridge and returns the function that answers lookups; `None` if
/// the two are of different builds.
///
/// # Safety
/// `bridge` must stay valid for the life of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gcgroup_hook_start(bridge: *const Bridge) -> Option<Resolve> {
    // SAFETY: the version is the first field in every version of the structure.
    let version = unsafe { bridge.cast::<u32>().as_ref() }?;
    if *version != VERSION {
        return None;
    }
    // SAFETY: valid by the caller's contract, and of this version.
    let bridge = unsafe { &*bridge };
    // Here and not in a function that has anything to drop, which a cancelled thread could not leave.
    let was_asynchronous = thread::defer_cancellation();
    thread::uncanceled(|| {
        library::set_bridge(bridge);
        unwinder::prepare();
        trace::start();
        interpose::say_panics_once();
    });
    if was_asynchronous {
        thread::cancel_at_any_time();
    }
    // SAFETY: a function of this signature. It unwinds only where it ends a cancelled thread.
    Some(unsafe {
        std::mem::transmute::<unsafe extern "C-unwind" fn(*const c_char, *mut c_void) -> *mut c_void, Resolve>(
            resolve,
        )
    })
}

/// Answers a lookup of `name` that found `real`.
unsafe extern "C-unwind" fn resolve(name: *const c_char, real: *mut c_void) -> *mut c_void {
    if name.is_null() || real.is_null() {
        return real;
    }
    // SAFETY: a C string, by the contract of `Resolve`.
    let name = unsafe { CStr::from_ptr(name) };
    let was_asynchronous = thread::defer_cancellation();
    let ours = interpose::guarded(|| symbols::wrapper(ROWS, name, real));
    if was_asynchronous {
        thread::cancel_at_any_time();
    }
    ours.flatten().unwrap_or(real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_address_is_unchanged() {
        let mut somewhere = 0_u8;
        let real = (&raw mut somewhere).cast::<c_void>();
        // SAFETY: a C string, and an address that is only compared.
        assert_eq!(unsafe { resolve(c"cuMemAlloc_v2".as_ptr(), real) }, real);
    }
}
