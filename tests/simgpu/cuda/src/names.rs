//! `cuGetProcAddress`. The build script generates its table from `../data/cuda-names.tsv`.
//!
//! Behavior as documented for CUDA 12 and 13: for an unknown name `cuGetProcAddress_v2` succeeds and returns
//! a null pointer and a status. The older function with four arguments has no status and returns
//! `CUDA_ERROR_NOT_FOUND`. The real driver's handling of unknown flags is not documented; here they are
//! invalid.

use std::ffi::{c_int, c_void};

use simgpu::Driver;

use crate::abi::{CUerror, CUresult, Out, Text};
use crate::call::driver;
use crate::error::{INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`; 0 and 1 are both the legacy stream.
const PER_THREAD: u64 = 2;

/// Result of a lookup; the values of `CUdriverProcAddressQueryResult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Found = 0,
    NoSuchName = 1,
    NoSuchVersion = 2,
}

/// One version of one name.
struct Name {
    name: &'static str,
    /// CUDA version that introduced it: 1000 major + 10 minor.
    since: i32,
    /// Whether the null stream means the per-thread default stream.
    per_thread: bool,
    symbol: &'static str,
    function: unsafe extern "C" fn(),
}

macro_rules! symbols {
    ($($symbol:ident,)*) => {
        /// All functions of the table by exported symbol, declared only for their addresses.
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

include!(concat!(env!("OUT_DIR"), "/names.rs"));

/// Exported symbols that are in no row, with the CUDA version that introduced them.
const UNNAMED: [(&str, i32); 1] = [("cuGetProcAddress_v2_ptsz", 12000)];

/// Returns the exported symbols introduced after a CUDA version.
pub(crate) fn newer_than(version: i32) -> impl Iterator<Item = &'static str> {
    let rows = NAMES.iter().map(|row| (row.symbol, row.since)).chain(UNNAMED);
    rows.filter(move |(_, since)| *since > version)
        .map(|(symbol, _)| symbol)
}

/// Returns the newest function `name` that is not newer than `version` and `driver`; the names are sorted.
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

/// A function that is in no list (`SIMGPU_FUTURE`).
extern "C" fn future() -> CUresult {
    Err(NOT_SUPPORTED)
}

fn is_future(name: &str) -> bool {
    std::env::var("SIMGPU_FUTURE").is_ok_and(|future| future == name)
}

/// Stores the function found, if any, and returns the status.
fn look_up(symbol: Text, pfn: Out<*mut c_void>, version: c_int, flags: u64) -> Result<Status, CUerror> {
    // Since CUDA 13 a program may not request functions newer than the driver.
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
    /// Returns the newest function of this name that a program built for `version` can call.
    early fn cuGetProcAddress_v2(
        symbol: Text, pfn: Out<*mut c_void>, version: c_int, flags: u64, status: Out<c_int>,
    ) {
        status.set_if(look_up(symbol, pfn, version, flags)? as c_int);
        Ok(())
    }

    /// Variant for programs built before CUDA 12, without a status.
    early fn cuGetProcAddress(symbol: Text, pfn: Out<*mut c_void>, version: c_int, flags: u64) {
        match look_up(symbol, pfn, version, flags)? {
            Status::Found => Ok(()),
            Status::NoSuchName | Status::NoSuchVersion => Err(NOT_FOUND),
        }
    }

    /// Variant for programs built with the per-thread default stream: flag 0 means flag 2.
    early fn cuGetProcAddress_v2_ptsz(
        symbol: Text, pfn: Out<*mut c_void>, version: c_int, flags: u64, status: Out<c_int>,
    ) {
        let flags = if flags == 0 { PER_THREAD } else { flags };
        status.set_if(look_up(symbol, pfn, version, flags)? as c_int);
        Ok(())
    }
}
