//! `cuGetProcAddress`, and the functions that the simulated driver has in name only.
//!
//! The build script writes both tables from the driver's lists of symbols (see `../data/cuda-names.tsv`).
//! Behaviour as documented for CUDA 12 and 13: an unknown name is no error of `cuGetProcAddress_v2`, which
//! tells of it by a null pointer and the status. The older function of four arguments has no status and
//! answers `CUDA_ERROR_NOT_FOUND`. What the real driver does with flags that do not exist is not documented;
//! here they are invalid.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use simgpu::Driver;

use crate::abi::{CUerror, CUresult, Out, Text};
use crate::call::{answer, driver};
use crate::error::{INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};

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
    symbol: &'static str,
    function: unsafe extern "C" fn(),
}

macro_rules! symbols {
    ($($symbol:ident,)*) => {
        /// Every function of the table by its exported symbol, declared for its address and never called from
        /// here.
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
            $( Name { name: $name, since: $since, per_thread: $per_thread, symbol: stringify!($symbol), function: symbol::$symbol }, )*
        ];
    };
}

macro_rules! stubs {
    ($($symbol:ident,)*) => {
        $(
            // SAFETY: the driver's symbol of that name; a caller who relies on its arguments is told that it
            // does nothing.
            #[unsafe(no_mangle)]
            extern "C" fn $symbol() -> CUresult {
                static SAID: AtomicBool = AtomicBool::new(false);
                answer(stringify!($symbol), || unsupported(&SAID, stringify!($symbol)))
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/names.rs"));
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// Answers for a function that is not simulated, and says so the first time.
#[cold]
fn unsupported(said: &AtomicBool, symbol: &str) -> CUresult {
    if !said.swap(true, Relaxed) {
        eprintln!("simgpu: {symbol} is not simulated");
    }
    Err(NOT_SUPPORTED)
}

/// Exported symbols that are in no row, and the CUDA version they came with.
const UNNAMED: [(&str, i32); 1] = [("cuGetProcAddress_v2_ptsz", 12000)];

/// The exported symbols that came after a CUDA version.
pub(crate) fn newer_than(version: i32) -> impl Iterator<Item = &'static str> {
    let rows = NAMES.iter().map(|row| (row.symbol, row.since)).chain(UNNAMED);
    rows.filter(move |(_, since)| *since > version)
        .map(|(symbol, _)| symbol)
}

/// The newest function of `name` not newer than `version` and `driver`; the names are sorted.
fn find(name: &str, version: i32, driver: i32, per_thread: bool) -> Result<*mut c_void, Status> {
    let from = NAMES.partition_point(|row| row.name < name);
    let mut rows = NAMES[from..].iter().take_while(|row| row.name == name).peekable();
    if rows.peek().is_none_or(|oldest| oldest.since > driver) {
        return Err(Status::NoSuchName);
    }
    rows.filter(|row| row.since <= version.min(driver) && (per_thread || !row.per_thread))
        .max_by_key(|row| (row.since, row.per_thread))
        .map(|row| row.function as *mut c_void)
        .ok_or(Status::NoSuchVersion)
}

/// A function that no list has.
extern "C" fn future() -> CUresult {
    Err(NOT_SUPPORTED)
}

fn is_future(name: &str) -> bool {
    std::env::var("SIMGPU_FUTURE").is_ok_and(|future| future == name)
}

/// Stores what was found, if anything, and says what came of it.
fn look_up(symbol: Text, pfn: Out<*mut c_void>, version: c_int, flags: u64) -> Result<Status, CUerror> {
    // From CUDA 13 on, a program may not ask for what is newer than the driver.
    let driver = Driver::of_process().cuda_version;
    let too_new = driver >= 13000 && version > driver;
    if pfn.is_null() || flags > PER_THREAD || too_new {
        return Err(INVALID_VALUE);
    }
    let name = symbol.get()?;
    let found = match find(name, version, driver, flags == PER_THREAD) {
        Err(Status::NoSuchName) if is_future(name) => Ok(future as *mut c_void),
        found => found,
    };
    pfn.set_if(found.unwrap_or(std::ptr::null_mut()));
    Ok(found.err().unwrap_or(Status::Found))
}

driver! {
    /// The newest function of that name that a program built for `version` can call.
    early fn cuGetProcAddress_v2(
        symbol: Text, pfn: Out<*mut c_void>, version: c_int, flags: u64, status: Out<c_int>,
    ) {
        status.set_if(look_up(symbol, pfn, version, flags)? as c_int);
        Ok(())
    }

    /// The same for programs built before CUDA 12, without a status.
    early fn cuGetProcAddress(symbol: Text, pfn: Out<*mut c_void>, version: c_int, flags: u64) {
        match look_up(symbol, pfn, version, flags)? {
            Status::Found => Ok(()),
            Status::NoSuchName | Status::NoSuchVersion => Err(NOT_FOUND),
        }
    }

    /// The same for programs whose null stream is the thread's own: flag 0 means flag 2.
    early fn cuGetProcAddress_v2_ptsz(
        symbol: Text, pfn: Out<*mut c_void>, version: c_int, flags: u64, status: Out<c_int>,
    ) {
        let flags = if flags == 0 { PER_THREAD } else { flags };
        status.set_if(look_up(symbol, pfn, version, flags)? as c_int);
        Ok(())
    }
}
