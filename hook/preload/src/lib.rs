//! `libgcgroup.so`: preloaded into every process, and inert until one looks up a symbol of the NVIDIA driver.
//!
//! The library shadows the C library's `dlsym` and `dlvsym`, exports the hooked symbols of the driver, and
//! loads `libgcgroup_hook.so` from its own directory when one of those is looked up. It shadows `dlopen` and
//! `dlmopen` to notice a driver whose functions are looked up elsewhere. It needs no library, runs no code at
//! start and allocates nothing, because it may be in a shell, in a setuid program, or beside another C
//! library. It calls no function that the program or another library can replace. It prints nothing but the
//! reason why the program is not governed, once.
//!
//! The library knows driver functions by name only, without signatures.
//!
//! Built by `cargo build --profile preload`. Without `panic = "abort"` it can only be checked, with std for
//! its panics.
#![cfg_attr(panic = "abort", no_std)]
// Without a library that provides memcpy(3), no loop may be compiled to a call of it.
#![cfg_attr(panic = "abort", no_builtins)]
#![expect(unreachable_pub, reason = "symbols that the library exports")]

mod arch;
mod complaint;
mod elf;
mod hook;
mod names;
mod objects;
mod opening;
mod sanitizer;
mod shadowed;

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use arch::Verdict;
use shadowed::{DLSYM, DLVSYM};

/// Values of `RTLD_DEFAULT` and `RTLD_NEXT` in both glibc and musl.
const RTLD_DEFAULT: usize = 0;
const RTLD_NEXT: usize = usize::MAX;

const CUDA_ERROR_NO_DEVICE: c_int = 100;
const NVML_ERROR_LIBRARY_NOT_FOUND: c_int = 12;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Decides on `dlsym(handle, name)`.
unsafe extern "C" fn dlsym_verdict(handle: *mut c_void, name: *const c_char, caller: usize) -> Verdict {
    let Some(address) = DLSYM.next() else {
        return answer(null_mut());
    };
    // SAFETY: a function of this name.
    let real = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(address) };
    verdict(handle, name, caller, address, || {
        // SAFETY: the program's own arguments.
        unsafe { real(handle, name) }
    })
}

/// Decides on `dlvsym(handle, name, version)`.
unsafe extern "C" fn dlvsym_verdict(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Verdict {
    // musl has none.
    let Some(address) = DLVSYM.next() else {
        return answer(null_mut());
    };
    // SAFETY: a function of this name.
    let real = unsafe { core::mem::transmute::<*mut c_void, Dlvsym>(address) };
    verdict(handle, name, caller, address, || {
        // SAFETY: the program's own arguments.
        unsafe { real(handle, name, version) }
    })
}

/// Decides on `dlopen(file, flags)`.
unsafe extern "C" fn dlopen_verdict(file: *const c_char, _flags: c_int) -> Verdict {
    opening::dlopen(file)
}

/// Decides on `dlmopen(namespace, file, flags)`.
unsafe extern "C" fn dlmopen_verdict(namespace: c_long, file: *const c_char, _flags: c_int) -> Verdict {
    opening::dlmopen(namespace, file)
}

fn answer(address: *mut c_void) -> Verdict {
    Verdict { address, is_jump: 0 }
}

fn jump(address: *mut c_void) -> Verdict {
    Verdict { address, is_jump: 1 }
}

fn verdict(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
    real: *mut c_void,
    look_up: impl Fn() -> *mut c_void,
) -> Verdict {
    let jump = jump(real);
    if name.is_null() {
        return jump;
    }
    if !names::contains(name) {
        if elf::is_same(name, opening::PROBE.as_ptr()) {
            return answer(DLSYM.own());
        }
        return shadowed::verdict(handle.addr(), name, caller, look_up).unwrap_or(jump);
    }
    match handle.addr() {
        RTLD_DEFAULT => match objects::definition(name) {
            Some(found) if objects::is_ours(found) => answer(ours(name, found)),
            _ => jump,
        },
        RTLD_NEXT => match objects::definition_after(caller, name) {
            Some(found) if objects::is_ours(found) => answer(ours(name, found)),
            // Another library may shadow the driver's functions too: to it, this library is the driver.
            Some(found) => match hook::substitute(name, found) {
                substitute if substitute != found => answer(substitute),
                _ => jump,
            },
            None => jump,
        },
        _ => match look_up() {
            found if found.is_null() => answer(found),
            found if objects::is_ours(found) => answer(ours(name, found)),
            found => answer(hook::substitute(name, found)),
        },
    }
}

/// Answers a look-up that found `stub`, which is in this library: returns it only if there is a driver, since
/// programs must not see one where there is none.
fn ours(name: *const c_char, stub: *mut c_void) -> *mut c_void {
    if objects::next_definition(name).is_some() {
        return stub;
    }
    let Some(dlsym) = objects::c_library(c"dlsym".as_ptr()) else {
        return null_mut();
    };
    // SAFETY: the C library's function of this name.
    let dlsym = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(dlsym) };
    // Returns null with the C library's error: no object after this one, which is the caller, has the symbol.
    // SAFETY: the program's own string.
    unsafe { dlsym(without_provenance_mut(RTLD_NEXT), name) }
}

/// Returns the destination of the stub with this index; stored in `to` once there is a driver.
unsafe extern "C" fn destination(index: u32, to: *const AtomicPtr<c_void>) -> *mut c_void {
    let name = names::name(index as usize);
    let Some(found) = objects::next_definition(name) else {
        let is_nvml = elf::bytes(name).next() == Some(b'n');
        return if is_nvml {
            no_nvml as *mut c_void
        } else {
            no_cuda as *mut c_void
        };
    };
    let destination = hook::substitute(name, found);
    // SAFETY: the stub's own pointer, which lasts as long as this library.
    unsafe { &*to }.store(destination, Relaxed);
    destination
}

/// Replaces any driver function while there is no driver. The calling convention allows it to ignore its
/// arguments.
extern "C" fn no_cuda() -> c_int {
    CUDA_ERROR_NO_DEVICE
}

extern "C" fn no_nvml() -> c_int {
    NVML_ERROR_LIBRARY_NOT_FOUND
}

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
