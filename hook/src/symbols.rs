//! Lookups of driver symbols, by `dlsym` and `cuGetProcAddress`, answered with the hook's wrappers.
//!
//! An answer is replaced only if the address that was found *is* the driver's function of a row: one name
//! stands for several functions of different signatures, and any library may export a name of the driver.
//!
//! No lock is held while the dynamic linker is called, since a constructor running inside it may look up a
//! symbol. Concurrent lookups find the same results.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use gcgroup_abi::{Bridge, Resolve, VERSION};

use crate::coverage;
use crate::cuda::{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult};
use crate::interpose::{self, Next};
use crate::process::{self, Process};
use crate::rows::{Row, parts};
use crate::table::ROWS;
use crate::thread;

static BRIDGE: AtomicPtr<Bridge> = AtomicPtr::new(null_mut());

/// Entry point for the preload library: receives its side of the bridge and returns the function that answers
/// lookups; `None` if the two are of different builds.
///
/// # Safety
/// `bridge` must stay valid for the life of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gcgroup_hook_start(bridge: *const Bridge) -> Option<Resolve> {
    // SAFETY: the version is the first field in every version of the structure.
    let version = unsafe { bridge.cast::<u32>().as_ref() }?;
    if *version != VERSION {
        return None;
    }
    // SAFETY: valid by the caller's contract, and of this version.
    let sides = unsafe { &*bridge };
    thread::set_locals(sides.thread_offset, sides.unbound);
    BRIDGE.store(bridge.cast_mut(), Release);
    interpose::say_panics_once();
    Some(resolve)
}

fn bridge() -> Option<&'static Bridge> {
    // SAFETY: null, or the argument of `gcgroup_hook_start`, which stays valid.
    unsafe { BRIDGE.load(Acquire).as_ref() }
}

/// Answers a lookup of `name` that found `real`.
unsafe extern "C" fn resolve(name: *const c_char, real: *mut c_void) -> *mut c_void {
    if name.is_null() || real.is_null() {
        return real;
    }
    // SAFETY: a C string, by the contract of `Resolve`.
    let name = unsafe { CStr::from_ptr(name) };
    let ours = interpose::guarded(|| {
        Library::of(name).prepare(Some(real))?;
        let row = ROWS.iter().find(|row| row.name == name)?;
        row.real.is(real).then_some(row.ours.0)
    });
    ours.flatten().unwrap_or(real)
}

/// Replaces the result of `cuGetProcAddress` for `symbol` if it is the driver's function of a row.
pub(crate) fn get_proc_address(symbol: *const c_char, found: *mut *mut c_void, next: Next<'_>) -> CUresult {
    next()?;
    if symbol.is_null() || found.is_null() {
        return Ok(());
    }
    // SAFETY: the driver has just read the program's symbol.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    // SAFETY: the driver has just written there.
    let found = unsafe { &mut *found };
    if let Some(ours) = of_address(symbol, *found) {
        *found = ours;
    } else if !found.is_null() && is_unknown(symbol) {
        UNKNOWN.fetch_add(1, Relaxed);
        process::get().inspect(|process| count_unknown(process));
    }
    Ok(())
}

/// Lookups that the driver answered with a function unknown to the hook, and that are not yet counted in the
/// usage block: programs look up symbols before `cuInit`.
static UNKNOWN: AtomicU64 = AtomicU64::new(0);

/// Adds the lookups so far to the usage block.
pub(crate) fn count_unknown(process: &Process) {
    let usage = process.usage();
    usage
        .nr_unknown_symbols
        .fetch_add(UNKNOWN.swap(0, Relaxed), Relaxed);
}

/// Returns whether an answer for `symbol` that is in no row may need a hook: a new name of the driver, or a
/// new version of a hooked function. A name with a version suffix is looked up unchanged.
fn is_unknown(symbol: &CStr) -> bool {
    let name = symbol.to_bytes();
    name.starts_with(CUDA.prefix) && CUDA.prepared.load(Relaxed) && !coverage::is_left_alone(name)
}

/// Returns the wrapper for the driver's function at `real`. The name must match as well: a driver may return
/// one address for many names that it does not support.
fn of_address(symbol: &CStr, real: *mut c_void) -> Option<*mut c_void> {
    if real.is_null() {
        return None;
    }
    Library::of(symbol).prepare(None)?;
    let symbol = symbol.to_bytes();
    let is_meant = |row: &&Row| {
        let name = row.name.to_bytes();
        name == symbol || parts(name).base == symbol
    };
    ROWS.iter()
        .filter(|row| row.real.is(real))
        .find(is_meant)
        .map(|row| row.ours.0)
}

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
struct Library {
    /// Without `.1`, also the beginning of its file name.
    soname: &'static CStr,
    /// Prefix of its functions' names.
    prefix: &'static [u8],
    handle: AtomicPtr<c_void>,
    prepared: AtomicBool,
}

static CUDA: Library = Library::new(c"libcuda.so.1", b"cu");
static NVML: Library = Library::new(c"libnvidia-ml.so.1", b"nvml");

impl Library {
    const fn new(soname: &'static CStr, prefix: &'static [u8]) -> Self {
        Self {
            soname,
            prefix,
            handle: AtomicPtr::new(null_mut()),
            prepared: AtomicBool::new(false),
        }
    }

    fn of(name: &CStr) -> &'static Self {
        if name.to_bytes().starts_with(NVML.prefix) {
            &NVML
        } else {
            &CUDA
        }
    }

    /// Returns the library's handle, cached once found; `None` while it is not loaded. `member` is an address
    /// in what may be the library, for one that is not loaded by its usual name.
    fn handle(&self, member: Option<*mut c_void>) -> Option<*mut c_void> {
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
    fn find(&self, name: &CStr) -> Option<*mut c_void> {
        thread::hold();
        let handle = self.handle(None)?;
        // SAFETY: the C library's dlsym with a valid handle and a C string.
        Some(unsafe { (bridge()?.dlsym)(handle, name.as_ptr()) })
    }

    /// Looks up the driver's function of every row, once; `None` if the library is not loaded. A row that the
    /// driver lacks stays absent without affecting others.
    fn prepare(&self, member: Option<*mut c_void>) -> Option<()> {
        if self.prepared.load(Acquire) {
            return Some(());
        }
        thread::hold();
        self.handle(member)?;
        let by_version = self
            .find(c"cuGetProcAddress_v2")
            .filter(|address| !address.is_null());
        for row in ROWS
            .iter()
            .filter(|row| row.name.to_bytes().starts_with(self.prefix))
        {
            let exported = self.find(row.name)?;
            let given = by_version
                .and_then(|ask| ask_by_version(ask, row))
                .unwrap_or(null_mut());
            row.real.set(exported, given);
        }
        forget_error();
        self.prepared.store(true, Release);
        Some(())
    }
}

/// Asks the driver's `cuGetProcAddress_v2` for the row's function by version.
fn ask_by_version(ask: *mut c_void, row: &Row) -> Option<*mut c_void> {
    if row.version == 0 {
        return None;
    }
    let parts = parts(row.name.to_bytes());
    let mut name = [0_u8; 64];
    name.get_mut(..parts.base.len())?.copy_from_slice(parts.base);
    // Per-thread variants of older functions exist since CUDA 7.0.
    let (version, flags) = if parts.per_thread {
        (
            row.version.max(7000),
            CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
        )
    } else {
        (row.version, 0)
    };
    type Ask = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> CUresult;
    // SAFETY: the driver's cuGetProcAddress_v2 has this signature.
    let ask = unsafe { std::mem::transmute::<*mut c_void, Ask>(ask) };
    let (mut found, mut status) = (null_mut(), 0);
    let version = c_int::try_from(version).ok()?;
    // SAFETY: a C string (the buffer is longer than any name), and out-pointers for both results.
    unsafe {
        ask(
            name.as_ptr().cast(),
            &raw mut found,
            version,
            flags,
            &raw mut status,
        )
    }
    .ok()?;
    (!found.is_null()).then_some(found)
}

/// Clears the error that a failed call of the hook left for the program's next `dlerror`.
fn forget_error() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_symbol_has_one_row() {
        let mut seen = HashSet::new();
        for row in ROWS {
            assert!(seen.insert(row.name), "{:?}", row.name);
        }
    }

    #[test]
    fn every_symbol_has_the_prefix_of_its_library() {
        for row in ROWS {
            assert!(
                row.name.to_bytes().starts_with(Library::of(row.name).prefix),
                "{:?}",
                row.name
            );
            assert!(row.real.is_absent(), "{:?}", row.name);
        }
    }

    #[test]
    fn unknown_answer_of_the_driver_is_unchanged() {
        let mut somewhere = 0_u8;
        let real = (&raw mut somewhere).cast::<c_void>();
        // SAFETY: a C string, and an address that is only compared.
        assert_eq!(unsafe { resolve(c"cuMemAlloc_v2".as_ptr(), real) }, real);
        let mut found = real;
        assert_eq!(
            get_proc_address(c"cuMemAlloc".as_ptr(), &raw mut found, &|| Ok(())),
            Ok(())
        );
        assert_eq!(found, real);
    }
}
