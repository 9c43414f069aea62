//! `libgcgroup.so`: preloaded into every process, and inert until one asks for a symbol of the NVIDIA driver.
//!
//! It stands before the C library's `dlsym` and `dlvsym`, exports the hooked symbols of the driver, and loads
//! `libgcgroup_hook.so` from its own directory when one of those is wanted. It needs no library, runs nothing at the
//! start, allocates nothing and says nothing: it may be in a shell, in a setuid program, under another C library.
//!
//! Knows no function of the driver but by name, and no signature at all.
//!
//! Made by `cargo build --profile preload`. Without `panic = "abort"` it can only be checked, with std for its panics.
#![cfg_attr(panic = "abort", no_std)]

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;
mod elf;
mod names;

use core::ffi::{c_char, c_int, c_void};
use core::mem::{MaybeUninit, offset_of};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use arch::Verdict;
use gcgroup_abi::{Bridge, Resolve, START_SYMBOL, VERSION};

const RTLD_NOW: c_int = 2;
/// What `RTLD_NEXT` is in glibc and musl alike; `RTLD_DEFAULT` is null.
const RTLD_NEXT: usize = usize::MAX;

const CUDA_ERROR_NO_DEVICE: c_int = 100;
const NVML_ERROR_LIBRARY_NOT_FOUND: c_int = 12;

const HOOK: &[u8] = b"libgcgroup_hook.so\0";
const LONGEST_PATH: usize = 4096;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Dlerror = unsafe extern "C" fn() -> *mut c_char;
type Start = unsafe extern "C" fn(*const Bridge) -> Option<Resolve>;

/// A function of the C library, found once. Null: not there, or not yet; libraries come later, so it is asked again.
struct Function(AtomicPtr<c_void>);

static DLSYM: Function = Function(AtomicPtr::new(null_mut()));
static DLVSYM: Function = Function(AtomicPtr::new(null_mut()));

impl Function {
    fn address(&self, name: *const c_char) -> *mut c_void {
        let known = self.0.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = next(name).or_else(|| anywhere_else(name)).unwrap_or(null_mut());
        self.0.store(found, Relaxed);
        found
    }
}

fn real_dlsym() -> Option<Dlsym> {
    // SAFETY: null or the C library's function (or that of another library before it) of this name.
    unsafe { core::mem::transmute::<*mut c_void, Option<Dlsym>>(DLSYM.address(c"dlsym".as_ptr())) }
}

fn real_dlvsym() -> Option<Dlvsym> {
    // SAFETY: as above. musl has none.
    unsafe { core::mem::transmute::<*mut c_void, Option<Dlvsym>>(DLVSYM.address(c"dlvsym".as_ptr())) }
}

/// Any address in this library.
fn here() -> usize {
    arch::unbound().addr()
}

/// The definition of `name` that the object at `address` shadows: the first in an object loaded after it.
fn after(address: usize, name: *const c_char) -> Option<*mut c_void> {
    let (mut is_past, mut found) = (false, None);
    elf::visit_objects(|object| {
        if is_past {
            found = object.find(name);
        } else {
            is_past = object.contains(address);
        }
        found.is_some()
    });
    found
}

fn next(name: *const c_char) -> Option<*mut c_void> {
    after(here(), name)
}

/// A definition of `name` in any object but this.
fn anywhere_else(name: *const c_char) -> Option<*mut c_void> {
    let mut found = None;
    elf::visit_objects(|object| {
        if !object.contains(here()) {
            found = object.find(name);
        }
        found.is_some()
    });
    found
}

fn is_ours(address: *mut c_void) -> bool {
    let mut is_ours = false;
    elf::visit_objects(|object| {
        is_ours = object.contains(here()) && object.contains(address.addr());
        object.contains(here())
    });
    is_ours
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
        // We must not make a driver seem to be there.
        0 if anywhere_else(name).is_none() => answer(absent(name)),
        0 => jump,
        RTLD_NEXT => match after(caller, name) {
            Some(found) if is_ours(found) && next(name).is_none() => answer(absent(name)),
            // Who stands between us and the driver: another interposer. What the C library would answer by itself
            // would lead past us.
            Some(found) if !is_ours(found) && substitute(name, found) != found => {
                answer(substitute(name, found))
            }
            _ => jump,
        },
        _ => {
            let found = look_up();
            if found.is_null() {
                answer(found)
            } else if is_ours(found) {
                answer(if next(name).is_some() { found } else { absent(name) })
            } else {
                answer(substitute(name, found))
            }
        }
    }
}

/// Null, with the error that the C library has for a symbol that nobody defines.
fn absent(name: *const c_char) -> *mut c_void {
    match real_dlsym() {
        // SAFETY: the caller, by whom RTLD_NEXT is understood, is this library: whatever comes after it.
        Some(dlsym) => unsafe { dlsym(without_provenance_mut(RTLD_NEXT), name) },
        None => null_mut(),
    }
}

/// Where the stub of the name with this index leads; kept in `to` once there is a driver.
unsafe extern "C" fn destination(index: u32, to: *const AtomicPtr<c_void>) -> *mut c_void {
    let name = names::name(index as usize);
    let Some(found) = next(name) else {
        let is_nvml = elf::bytes(name).next() == Some(b'n');
        return if is_nvml {
            no_nvml as *mut c_void
        } else {
            no_cuda as *mut c_void
        };
    };
    let destination = substitute(name, found);
    // SAFETY: the stub's own pointer, which lasts as long as this library.
    unsafe { &*to }.store(destination, Relaxed);
    destination
}

/// Stands in for any function of a driver that is not there: the calling convention lets it ignore its arguments.
extern "C" fn no_cuda() -> c_int {
    CUDA_ERROR_NO_DEVICE
}

extern "C" fn no_nvml() -> c_int {
    NVML_ERROR_LIBRARY_NOT_FOUND
}

/// The hook's function in place of the driver's at `found`; anything else, or without a hook, as it is.
fn substitute(name: *const c_char, found: *mut c_void) -> *mut c_void {
    match hook() {
        // SAFETY: a C string and what a look-up of it found.
        Some(resolve) => unsafe { resolve(name, found) },
        None => found,
    }
}

/// What the hook gave for answering look-ups. Null: not loaded yet; all ones: it cannot be.
static RESOLVE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// A [`Bridge`], in a form that several threads may fill in at a time, all with the same.
static BRIDGE: [AtomicUsize; size_of::<Bridge>() / 8] =
    [const { AtomicUsize::new(0) }; size_of::<Bridge>() / 8];

/// Loads the hook, the first time. Takes no lock of our own: this may run inside the dynamic linker's.
fn hook() -> Option<Resolve> {
    let unusable = without_provenance_mut(usize::MAX);
    let mut resolve = RESOLVE.load(Acquire);
    if resolve.is_null() {
        resolve = load_hook().map_or(unusable, |resolve| resolve as *mut c_void);
        RESOLVE.store(resolve, Release);
    }
    if resolve == unusable {
        return None;
    }
    // SAFETY: what the hook's start has given.
    Some(unsafe { core::mem::transmute::<*mut c_void, Resolve>(resolve) })
}

fn load_hook() -> Option<Resolve> {
    let (dlsym, dlopen) = (
        real_dlsym()?,
        next(c"dlopen".as_ptr()).or_else(|| anywhere_else(c"dlopen".as_ptr()))?,
    );
    let bridge = fill_bridge(dlsym as *mut c_void, dlopen);
    // SAFETY: the C library's function of this name.
    let dlopen = unsafe { core::mem::transmute::<*mut c_void, Dlopen>(dlopen) };
    let start = with_hook_path(|path| {
        // SAFETY: a C string.
        let handle = unsafe { dlopen(path, RTLD_NOW) };
        if handle.is_null() {
            return null_mut();
        }
        // SAFETY: a handle and a C string.
        unsafe { dlsym(handle, START_SYMBOL.as_ptr()) }
    });
    if start.is_null() {
        forget_error();
        return None;
    }
    // SAFETY: the one function the hook exports has this signature.
    let start = unsafe { core::mem::transmute::<*mut c_void, Start>(start) };
    // SAFETY: filled in, and static.
    unsafe { start(bridge) }
}

fn fill_bridge(dlsym: *mut c_void, dlopen: *mut c_void) -> *const Bridge {
    let dlvsym = DLVSYM.address(c"dlvsym".as_ptr());
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

/// Takes back what a failed call of ours left for the program's next `dlerror`.
fn forget_error() {
    let name = c"dlerror".as_ptr();
    if let Some(address) = next(name).or_else(|| anywhere_else(name)) {
        // SAFETY: the C library's function of this name.
        let dlerror = unsafe { core::mem::transmute::<*mut c_void, Dlerror>(address) };
        // SAFETY: it takes nothing; what it returns may be dropped.
        unsafe { dlerror() };
    }
}

/// Calls `with` with the path of the hook: beside this library. Null if that cannot be told.
fn with_hook_path(with: impl FnOnce(*const c_char) -> *mut c_void) -> *mut c_void {
    // Not filled: that would be a call of the C library's memset, and a reference that is not weak.
    let mut path = [const { MaybeUninit::<u8>::uninit() }; LONGEST_PATH];
    let mut directory = 0;
    elf::visit_objects(|object| {
        let is_here = object.contains(here());
        if is_here {
            for (index, (place, byte)) in path.iter_mut().zip(elf::bytes(object.file())).enumerate() {
                place.write(byte);
                if byte == b'/' {
                    directory = index + 1;
                }
            }
        }
        is_here
    });
    match path.get_mut(directory..) {
        Some(tail) if directory > 0 && tail.len() >= HOOK.len() => {
            for (place, byte) in tail.iter_mut().zip(HOOK) {
                place.write(*byte);
            }
            with(path.as_ptr().cast())
        }
        _ => null_mut(),
    }
}

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
