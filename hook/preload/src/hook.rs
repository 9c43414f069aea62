//! Loads `libgcgroup_hook.so`, once, from this library's own directory.
//!
//! Takes no lock, because this may run inside the dynamic linker's lock. Concurrent threads do the same work
//! with the same result.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::offset_of;
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use gcgroup_abi::environment::{self, GCGROUP_REQUIRED};
use gcgroup_abi::{Bridge, Resolve, START_SYMBOL, VERSION};

use crate::{arch, complaint, elf, objects};

const RTLD_NOW: c_int = 2;
const FILE: &[u8] = b"libgcgroup_hook.so\0";
const LONGEST_PATH: usize = 4096;
const CUDA_ERROR_SYSTEM_NOT_READY: c_int = 802;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Getenv = unsafe extern "C" fn(*const c_char) -> *const c_char;
type Dlerror = unsafe extern "C" fn() -> *mut c_char;
type Start = unsafe extern "C" fn(*const Bridge) -> Option<Resolve>;

/// The hook's look-up function. Null: not loaded yet; all ones: cannot be loaded.
static RESOLVE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The path of the hook. Not on the stack, which may have only 16 KiB. Several threads may fill it
/// concurrently, all with the same bytes.
static PATH: [AtomicU8; LONGEST_PATH] = [const { AtomicU8::new(0) }; LONGEST_PATH];

/// A [`Bridge`], in a form that several threads may fill concurrently, all with the same values.
static BRIDGE: [AtomicUsize; size_of::<Bridge>() / 8] =
    [const { AtomicUsize::new(0) }; size_of::<Bridge>() / 8];

/// Returns the hook's function in place of the driver's at `found`; for other names or without a hook,
/// `found`. Without a hook, a program that must be governed gets a function that refuses, for each CUDA name.
pub(crate) fn substitute(name: *const c_char, found: *mut c_void) -> *mut c_void {
    match resolve() {
        // SAFETY: a C string and what a look-up of it found.
        Some(resolve) => unsafe { resolve(name, found) },
        None if is_cuda(name) && is_required() => refuse as *mut c_void,
        None => found,
    }
}

fn is_cuda(name: *const c_char) -> bool {
    elf::bytes(name).next() == Some(b'c')
}

/// Returns whether the environment demands that the program is governed (`GCGROUP_REQUIRED`). As the hook
/// does, ignores the environment of a program that runs with elevated privileges.
pub(crate) fn is_required() -> bool {
    let Some(address) = objects::c_library(c"secure_getenv".as_ptr()) else {
        return false;
    };
    // SAFETY: the C library's function of this name.
    let getenv = unsafe { core::mem::transmute::<*mut c_void, Getenv>(address) };
    // SAFETY: a C string. The result is read at once; a program that changes its environment in another
    // thread at this moment races with every other reader of the environment as well.
    let value = unsafe { getenv(GCGROUP_REQUIRED.c_name.as_ptr()) };
    if value.is_null() {
        return false;
    }
    // SAFETY: the bytes of a C string of the environment, as above.
    let value = unsafe { core::slice::from_raw_parts(value.cast(), elf::bytes(value).count()) };
    // As in the hook: a value that is not understood is not off.
    !value.is_empty() && environment::switch(value) != Some(false)
}

/// Replaces any CUDA function where the hook cannot be loaded and the program must be governed. The calling
/// convention allows it to ignore its arguments.
extern "C" fn refuse() -> c_int {
    CUDA_ERROR_SYSTEM_NOT_READY
}

/// Leaves an error that says why the driver is not opened, and returns null, as a failed `dlopen` does.
pub(crate) fn refuse_to_open() -> *mut c_void {
    let Some(address) = objects::c_library(c"dlopen".as_ptr()) else {
        return null_mut();
    };
    // SAFETY: the C library's function of this name.
    let dlopen = unsafe { core::mem::transmute::<*mut c_void, Dlopen>(address) };
    // SAFETY: a C string. There is no such file, and the C library's error names it.
    unsafe {
        dlopen(
            c"CUDA, which is refused since the program is not governed (GCGROUP_REQUIRED)".as_ptr(),
            RTLD_NOW,
        )
    }
}

fn resolve() -> Option<Resolve> {
    let unusable = without_provenance_mut(usize::MAX);
    let mut resolve = RESOLVE.load(Acquire);
    if resolve.is_null() {
        resolve = match load() {
            Ok(resolve) => resolve as *mut c_void,
            Err(reason) => {
                complaint::complain(
                    c"gcgroup: not governed, since the hook cannot be loaded: ",
                    reason,
                );
                unusable
            }
        };
        RESOLVE.store(resolve, Release);
    }
    if resolve == unusable {
        return None;
    }
    // SAFETY: the function that the hook's start returned.
    Some(unsafe { core::mem::transmute::<*mut c_void, Resolve>(resolve) })
}

/// Loads the hook.
///
/// # Errors
/// A C string that says why it cannot be loaded, valid until this thread next calls the dynamic linker.
fn load() -> Result<Resolve, *const c_char> {
    let found = |name: &CStr| objects::c_library(name.as_ptr()).ok_or(c"no dynamic linker".as_ptr());
    let (dlsym, dlopen) = (found(c"dlsym")?, found(c"dlopen")?);
    let bridge = fill_bridge(dlsym, dlopen);
    // SAFETY: the C library's function of this name.
    let dlsym = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(dlsym) };
    // SAFETY: the C library's function of this name.
    let dlopen = unsafe { core::mem::transmute::<*mut c_void, Dlopen>(dlopen) };
    let start = with_path(|path| {
        // SAFETY: a C string.
        let handle = unsafe { dlopen(path, RTLD_NOW) };
        if handle.is_null() {
            return null_mut();
        }
        // SAFETY: a handle and a C string.
        unsafe { dlsym(handle, START_SYMBOL.as_ptr()) }
    });
    if start.is_null() {
        return Err(take_error());
    }
    // SAFETY: the one function the hook exports has this signature.
    let start = unsafe { core::mem::transmute::<*mut c_void, Start>(start) };
    // SAFETY: filled in, and static.
    unsafe { start(bridge) }.ok_or(c"libgcgroup_hook.so is of another version".as_ptr())
}

fn fill_bridge(dlsym: *mut c_void, dlopen: *mut c_void) -> *const Bridge {
    let dlvsym = objects::c_library(c"dlvsym".as_ptr()).unwrap_or(null_mut());
    let fields = [
        // The version is the lower half of the first word, on a little-endian machine.
        (offset_of!(Bridge, version), VERSION as usize),
        (
            offset_of!(Bridge, thread_offset),
            arch::thread_offset().cast_unsigned(),
        ),
        (offset_of!(Bridge, unbound), arch::unbound().expose_provenance()),
        (offset_of!(Bridge, dlsym), dlsym.expose_provenance()),
        (offset_of!(Bridge, dlvsym), dlvsym.expose_provenance()),
        (offset_of!(Bridge, dlopen), dlopen.expose_provenance()),
    ];
    for (offset, value) in fields {
        if let Some(word) = BRIDGE.get(offset / 8) {
            word.store(value, Relaxed);
        }
    }
    BRIDGE.as_ptr().cast()
}

/// Returns the dynamic linker's message about a failed call by this library, and clears it: the program's
/// next `dlerror` would otherwise report it.
pub(crate) fn take_error() -> *const c_char {
    let unknown = c"for an unknown reason".as_ptr();
    let Some(address) = objects::c_library(c"dlerror".as_ptr()) else {
        return unknown;
    };
    // SAFETY: the C library's function of this name.
    let dlerror = unsafe { core::mem::transmute::<*mut c_void, Dlerror>(address) };
    // SAFETY: it takes nothing.
    let message = unsafe { dlerror() };
    if message.is_null() { unknown } else { message }
}

/// Calls `with` with the path of the hook, which is in this library's directory. Returns null if that is
/// unknown.
fn with_path(with: impl FnOnce(*const c_char) -> *mut c_void) -> *mut c_void {
    let is_there = objects::this(|object| {
        let bytes = || elf::bytes(object.file());
        let slash = bytes().enumerate().filter(|(_, byte)| *byte == b'/').last();
        let Some((slash, _)) = slash else { return false };
        // Only bytes that every thread stores: another may be at the call below.
        let wanted = bytes().take(slash + 1).chain(FILE.iter().copied());
        if slash + 1 + FILE.len() > PATH.len() {
            return false;
        }
        for (place, byte) in PATH.iter().zip(wanted) {
            place.store(byte, Relaxed);
        }
        true
    });
    if is_there != Some(true) {
        return null_mut();
    }
    with(PATH.as_ptr().cast())
}
