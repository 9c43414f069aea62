//! `libgcgroup.so`: preloaded into every process, and inert until one asks for a symbol of the NVIDIA driver.
//!
//! It stands before the C library's `dlsym` and `dlvsym`, exports the hooked symbols of the driver, and loads
//! `libgcgroup_hook.so` from its own directory when one of those is wanted. It needs no library, runs nothing
//! at the start, allocates nothing and says nothing: it may be in a shell, in a setuid program, under another
//! C library.
//!
//! Knows no function of the driver but by name, and no signature at all.
//!
//! Made by `cargo build --profile preload`. Without `panic = "abort"` it can only be checked, with std for
//! its panics.
#![cfg_attr(panic = "abort", no_std)]
// There is no library to take memcpy(3) from, so no loop may be made a call of it.
#![cfg_attr(panic = "abort", no_builtins)]

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;
mod descriptors;
mod elf;
mod hook;
mod names;
mod objects;

use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use arch::Verdict;

/// What `RTLD_DEFAULT` and `RTLD_NEXT` are in glibc and musl alike.
const RTLD_DEFAULT: usize = 0;
const RTLD_NEXT: usize = usize::MAX;

const CUDA_ERROR_NO_DEVICE: c_int = 100;
const NVML_ERROR_LIBRARY_NOT_FOUND: c_int = 12;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// A function that we stand before: the C library's, or that of another library that stands before it too.
/// Null: not there, or not yet; libraries come later, so it is asked again.
struct Shadowed(AtomicPtr<c_void>);

static DLSYM: Shadowed = Shadowed(AtomicPtr::new(null_mut()));
static DLVSYM: Shadowed = Shadowed(AtomicPtr::new(null_mut()));

impl Shadowed {
    fn address(&self, name: *const c_char) -> *mut c_void {
        let known = self.0.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        // musl lists itself before us.
        let found = objects::next_definition(name).or_else(|| objects::definition_elsewhere(name));
        let found = found.unwrap_or(null_mut());
        self.0.store(found, Relaxed);
        found
    }
}

fn real_dlsym() -> Option<Dlsym> {
    // SAFETY: null or a function of this name.
    unsafe { core::mem::transmute::<*mut c_void, Option<Dlsym>>(DLSYM.address(c"dlsym".as_ptr())) }
}

fn real_dlvsym() -> Option<Dlvsym> {
    // SAFETY: null (as in musl) or a function of this name.
    unsafe { core::mem::transmute::<*mut c_void, Option<Dlvsym>>(DLVSYM.address(c"dlvsym".as_ptr())) }
}

/// Decides on `dlsym(handle, name)`.
unsafe extern "C" fn dlsym_verdict(handle: *mut c_void, name: *const c_char, caller: usize) -> Verdict {
    let Some(real) = real_dlsym() else {
        return answer(null_mut());
    };
    verdict(handle, name, caller, real as *mut c_void, || {
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
    let Some(real) = real_dlvsym() else {
        return answer(null_mut());
    };
    verdict(handle, name, caller, real as *mut c_void, || {
        // SAFETY: the program's own arguments.
        unsafe { real(handle, name, version) }
    })
}

fn answer(address: *mut c_void) -> Verdict {
    Verdict { address, is_jump: 0 }
}

fn verdict(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
    real: *mut c_void,
    look_up: impl Fn() -> *mut c_void,
) -> Verdict {
    let jump = Verdict {
        address: real,
        is_jump: 1,
    };
    if name.is_null() || !names::contains(name) {
        return jump;
    }
    match handle.addr() {
        RTLD_DEFAULT => match objects::definition(name) {
            Some(found) if objects::is_ours(found) => answer(ours(name, found)),
            _ => jump,
        },
        RTLD_NEXT => match objects::definition_after(caller, name) {
            Some(found) if objects::is_ours(found) => answer(ours(name, found)),
            // Between us and the driver there may be another that stands before it: to it, we are the driver.
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

/// A look-up has found `stub`, of our own: the answer, if there is a driver behind it. We must not make one
/// seem to be there.
fn ours(name: *const c_char, stub: *mut c_void) -> *mut c_void {
    if objects::next_definition(name).is_some() {
        return stub;
    }
    let Some(dlsym) = objects::c_library(c"dlsym".as_ptr()) else {
        return null_mut();
    };
    // SAFETY: the C library's function of this name.
    let dlsym = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(dlsym) };
    // Null, with the error that the C library has for it: what comes after us, who are the caller, has no
    // such symbol. SAFETY: the program's own string.
    unsafe { dlsym(without_provenance_mut(RTLD_NEXT), name) }
}

/// Where the stub of the name with this index leads; kept in `to` once there is a driver.
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
    if hook::is_settled() {
        // SAFETY: the stub's own pointer, which lasts as long as this library.
        unsafe { &*to }.store(destination, Relaxed);
    }
    destination
}

/// Stands in for any function of a driver that is not there: the calling convention lets it ignore its
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
