//! `cuGetProcAddress`, and the functions that the simulated driver has in name only.
//!
//! The build script writes both tables from the driver's lists of symbols (see `../data/cuda-names.tsv`).
//! Behaviour as documented for CUDA 12 and 13: an unknown name is no error of `cuGetProcAddress_v2`, which tells of it
//! by a null pointer and the status. The older function of four arguments has no status and answers
//! `CUDA_ERROR_NOT_FOUND`. What the real driver does with flags that do not exist is not documented; here they are invalid.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use simgpu::CUDA_VERSION as DRIVER;

const SUCCESS: u32 = 0;
const INVALID_VALUE: u32 = 1;
const NOT_FOUND: u32 = 500;
const NOT_SUPPORTED: u32 = 801;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`; 0 and 1 are both the legacy stream.
const PER_THREAD: u64 = 2;

/// What a look-up came to; the values of `CUdriverProcAddressQueryResult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Found = 0,
    NoSuchName = 1,
    NoSuchVersion = 2,
}

/// One version of one name.
struct Name {
    name: &'static str,
    /// The CUDA version it came with: 1000 major + 10 minor.
    since: i32,
    /// Whether the null stream is the calling thread's own.
    per_thread: bool,
    function: unsafe extern "C" fn(),
}

macro_rules! symbols {
    ($($symbol:ident,)*) => {
        /// Every function of the table by its exported symbol, declared for its address and never called from here.
        mod symbol {
            unsafe extern "C" {
                $( pub(super) fn $symbol(); )*
            }
        }
    };
}

macro_rules! names {
    ($($name:literal, $since:literal, $per_thread:literal, $symbol:ident;)*) => {
        static NAMES: &[Name] = &[
            $( Name { name: $name, since: $since, per_thread: $per_thread, function: symbol::$symbol }, )*
        ];
    };
}

macro_rules! stubs {
    ($($symbol:ident,)*) => {
        $(
            // SAFETY: the driver's symbol of that name; a caller who relies on its arguments is told that it does nothing.
            #[unsafe(no_mangle)]
            extern "C" fn $symbol() -> u32 {
                static SAID: AtomicBool = AtomicBool::new(false);
                unsupported(&SAID, stringify!($symbol))
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/names.rs"));
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// Answers for a function that is not simulated, and says so the first time.
#[cold]
fn unsupported(said: &AtomicBool, symbol: &str) -> u32 {
    if !said.swap(true, Relaxed) {
        eprintln!("simgpu: {symbol} is not simulated");
    }
    NOT_SUPPORTED
}

/// The newest function of `name` not newer than `version`; the names are sorted.
fn find(name: &[u8], version: i32, per_thread: bool) -> Result<*mut c_void, Status> {
    let from = NAMES.partition_point(|row| row.name.as_bytes() < name);
    let mut rows = NAMES[from..]
        .iter()
        .take_while(|row| row.name.as_bytes() == name)
        .peekable();
    if rows.peek().is_none_or(|oldest| oldest.since > DRIVER) {
        return Err(Status::NoSuchName);
    }
    rows.filter(|row| row.since <= version.min(DRIVER) && (per_thread || !row.per_thread))
        .max_by_key(|row| (row.since, row.per_thread))
        .map(|row| row.function as *mut c_void)
        .ok_or(Status::NoSuchVersion)
}

/// The newest function of that name that a program built for `version` can call.
///
/// # Safety
/// `symbol` is null or a string; `pfn` and `status` are null or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> u32 {
    if symbol.is_null() || pfn.is_null() || flags > PER_THREAD {
        return INVALID_VALUE;
    }
    // From CUDA 13 on, a program may not ask for what is newer than the driver.
    if DRIVER >= 13000 && version > DRIVER {
        return INVALID_VALUE;
    }
    // SAFETY: not null, so a string by the contract.
    let name = unsafe { CStr::from_ptr(symbol) };
    let found = find(name.to_bytes(), version, flags == PER_THREAD);
    // SAFETY: not null, so writable by the contract.
    unsafe { *pfn = found.unwrap_or(core::ptr::null_mut()) };
    if !status.is_null() {
        // SAFETY: likewise.
        unsafe { *status = found.err().unwrap_or(Status::Found) as c_int };
    }
    SUCCESS
}

/// The same for programs built before CUDA 12, without a status.
///
/// # Safety
/// As for [`cuGetProcAddress_v2`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> u32 {
    let mut status = 0;
    // SAFETY: the caller's arguments under the same contract, and a status of our own.
    match unsafe { cuGetProcAddress_v2(symbol, pfn, version, flags, &raw mut status) } {
        SUCCESS if status != Status::Found as c_int => NOT_FOUND,
        answer => answer,
    }
}

/// The same for programs whose null stream is the thread's own: flag 0 means flag 2.
///
/// # Safety
/// As for [`cuGetProcAddress_v2`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2_ptsz(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> u32 {
    let flags = if flags == 0 { PER_THREAD } else { flags };
    // SAFETY: the caller's arguments under the same contract.
    unsafe { cuGetProcAddress_v2(symbol, pfn, version, flags, status) }
}
