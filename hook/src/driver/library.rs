//! The driver's libraries as loaded in this process, and their symbols.
//!
//! No lock is held while the dynamic linker is called, since a constructor running inside it may look up a
//! symbol. Concurrent lookups find the same results.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use gcgroup_abi::{Bridge, Usage};

use super::thread;
use crate::sys::imports;

static BRIDGE: AtomicPtr<Bridge> = AtomicPtr::new(null_mut());

/// Stores the preload library's side of the bridge.
pub(crate) fn set_bridge(bridge: &'static Bridge) {
    thread::set_locals(bridge.thread_offset, bridge.unbound);
    BRIDGE.store(std::ptr::from_ref(bridge).cast_mut(), Release);
    if let Some(clock) = functions(c"libc.so.6", &[c"clock_gettime"]) {
        clock.into_iter().for_each(imports::set_clock);
    }
}

fn bridge() -> Option<&'static Bridge> {
    // SAFETY: null, or the argument of `gcgroup_hook_start`, which stays valid.
    unsafe { BRIDGE.load(Acquire).as_ref() }
}

/// Makes a C string of a driver function's name.
macro_rules! c_name {
    ($name:ident) => {
        match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }
    };
}

pub(crate) use c_name;

/// Returns the address of a driver function that the hook calls itself, from `known` or by a lookup that is
/// cached there.
pub(crate) fn call_address(known: &AtomicPtr<c_void>, name: &CStr) -> Option<*mut c_void> {
    let absent = std::ptr::without_provenance_mut(usize::MAX);
    let address = known.load(Relaxed);
    if !address.is_null() {
        return (address != absent).then_some(address);
    }
    let address = Library::of(name).find(name)?;
    if address.is_null() {
        forget_error();
    }
    known.store(if address.is_null() { absent } else { address }, Relaxed);
    (!address.is_null()).then_some(address)
}

/// A library of the driver, as loaded in this process.
pub(crate) struct Library {
    /// Without `.1`, also the beginning of its file name.
    soname: &'static CStr,
    /// Prefix of its functions' names.
    pub(crate) prefix: &'static [u8],
    handle: AtomicPtr<c_void>,
    /// Whether the functions of every row have been looked up in it.
    pub(crate) is_prepared: AtomicBool,
}

pub(crate) static CUDA: Library = Library::new(c"libcuda.so.1", b"cu");
pub(crate) static NVML: Library = Library::new(c"libnvidia-ml.so.1", b"nvml");

impl Library {
    const fn new(soname: &'static CStr, prefix: &'static [u8]) -> Self {
        Self {
            soname,
            prefix,
            handle: AtomicPtr::new(null_mut()),
            is_prepared: AtomicBool::new(false),
        }
    }

    /// Returns the library that a function belongs to, by its name.
    pub(crate) fn of(name: &CStr) -> &'static Self {
        if name.to_bytes().starts_with(NVML.prefix) {
            &NVML
        } else {
            &CUDA
        }
    }

    /// Returns the library's handle, cached once found; `None` while it is not loaded. `member` is an address
    /// in what may be the library, for one that is not loaded by its usual name.
    pub(crate) fn handle(&self, member: Option<*mut c_void>) -> Option<*mut c_void> {
        let known = self.handle.load(Acquire);
        if !known.is_null() {
            return Some(known);
        }
        let found = self.loaded(self.soname).or_else(|| {
            let file = file_of(member?)?;
            let name = file.to_bytes().rsplit(|byte| *byte == b'/').next()?;
            let stem = self.soname.to_bytes().strip_suffix(b".1")?;
            name.starts_with(stem).then(|| self.loaded(file))?
        })?;
        self.handle.store(found, Release);
        Some(found)
    }

    fn loaded(&self, file: &CStr) -> Option<*mut c_void> {
        // SAFETY: the C library's dlopen with a C string; with RTLD_NOLOAD it loads nothing.
        let handle = unsafe { (bridge()?.dlopen)(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            forget_error();
        }
        (!handle.is_null()).then_some(handle)
    }

    /// Returns the address of `name` in the library; null if it lacks the function, `None` if it is not
    /// loaded.
    pub(crate) fn find(&self, name: &CStr) -> Option<*mut c_void> {
        thread::hold();
        let handle = self.handle(None)?;
        // SAFETY: the C library's dlsym with a valid handle and a C string.
        Some(unsafe { (bridge()?.dlsym)(handle, name.as_ptr()) })
    }
}

/// Loads a library and returns the addresses of its functions; `None` if it or one of them is not there.
pub(crate) fn functions(file: &CStr, names: &[&CStr]) -> Option<Vec<*mut c_void>> {
    let bridge = bridge()?;
    // SAFETY: the C library's dlopen with a C string.
    let handle = unsafe { (bridge.dlopen)(file.as_ptr(), libc::RTLD_LAZY) };
    // SAFETY: the C library's dlsym with a valid handle and a C string.
    let find = |name: &&CStr| unsafe { (bridge.dlsym)(handle, name.as_ptr()) };
    let found: Option<Vec<_>> = (!handle.is_null())
        .then(|| names.iter().map(find).collect::<Vec<_>>())
        .filter(|found| found.iter().all(|address| !address.is_null()));
    if found.is_none() {
        forget_error();
    }
    found
}

/// Clears the error that a failed call of the hook left for the program's next `dlerror`.
pub(crate) fn forget_error() {
    // SAFETY: takes no argument, and its result may be ignored.
    unsafe { libc::dlerror() };
}

/// Returns the file from which the code at `address` was loaded.
fn file_of(address: *mut c_void) -> Option<&'static CStr> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: null_mut(),
    };
    // SAFETY: any address may be passed; the result is written to a local variable.
    let is_known = unsafe { libc::dladdr(address, &raw mut info) } != 0;
    if !is_known || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, valid as long as the library is loaded, which the caller's handle
    // ensures from here on.
    Some(unsafe { CStr::from_ptr(info.dli_fname) })
}

/// Lookups that the driver answered with a function unknown to the hook, and that are not yet counted in the
/// usage block: programs look up symbols before `cuInit`.
static UNKNOWN: AtomicU64 = AtomicU64::new(0);

/// Counts a lookup that the driver answered with a function unknown to the hook.
pub(crate) fn note_unknown(usage: Option<&Usage>) {
    UNKNOWN.fetch_add(1, Relaxed);
    usage.inspect(|usage| count_unknown(usage));
}

/// Adds such lookups so far to the usage block.
pub(crate) fn count_unknown(usage: &Usage) {
    usage
        .nr_unknown_symbols
        .fetch_add(UNKNOWN.swap(0, Relaxed), Relaxed);
}
