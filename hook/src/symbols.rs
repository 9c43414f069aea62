//! Lookups of driver symbols, by `dlsym` and `cuGetProcAddress`, answered with the hook's wrappers.
//!
//! An answer is replaced only if the address that was found *is* the driver's function of a row: one name
//! stands for several functions of different signatures, and any library may export a name of the driver.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::coverage;
use crate::driver::cuda::{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult};
use crate::driver::interpose::Next;
use crate::driver::library::{self, CUDA, Library, forget_error};
use crate::driver::{thread, trace};
use crate::hook;
use crate::rows::{Row, parts};

/// Returns the wrapper for the driver's function `name` at `real`; `None` if that is not the function of a
/// row.
pub(crate) fn wrapper(rows: &[Row], name: &CStr, real: *mut c_void) -> Option<*mut c_void> {
    prepare(Library::of(name), rows, Some(real))?;
    let row = rows.iter().find(|row| row.name == name)?;
    is(row, real).then_some(row.ours.0)
}

/// Replaces the result of `cuGetProcAddress` for `symbol` if it is the driver's function of a row.
pub(crate) fn get_proc_address(
    rows: &[Row],
    symbol: *const c_char,
    found: *mut *mut c_void,
    next: Next<'_>,
) -> CUresult {
    next()?;
    if symbol.is_null() || found.is_null() {
        return Ok(());
    }
    // SAFETY: the driver has just read the program's symbol.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    // SAFETY: the driver has just written there.
    let found = unsafe { &mut *found };
    if let Some(ours) = of_address(rows, symbol, *found) {
        *found = ours;
    } else if !found.is_null() && is_unknown(symbol) {
        library::note_unknown(hook::get().map(|process| process.session.usage()));
        trace::line(|| format!("not hooked: {symbol:?}"));
    }
    Ok(())
}

/// Returns whether an answer for `symbol` that is in no row may need a hook: a new name of the driver, or a
/// new version of a hooked function. A name with a version suffix is looked up unchanged.
fn is_unknown(symbol: &CStr) -> bool {
    let name = symbol.to_bytes();
    name.starts_with(CUDA.prefix) && CUDA.is_prepared.load(Relaxed) && !coverage::is_left_alone(name)
}

/// Returns the wrapper for the driver's function at `real`. The name must match as well: a driver may return
/// one address for many names that it does not support.
fn of_address(rows: &[Row], symbol: &CStr, real: *mut c_void) -> Option<*mut c_void> {
    if real.is_null() {
        return None;
    }
    prepare(Library::of(symbol), rows, None)?;
    let symbol = symbol.to_bytes();
    let is_meant = |row: &&Row| {
        let name = row.name.to_bytes();
        name == symbol || parts(name).base == symbol
    };
    rows.iter()
        .filter(|row| is(row, real))
        .find(is_meant)
        .map(|row| row.ours.0)
}

/// Returns whether the row's function is at `address`.
fn is(row: &Row, address: *mut c_void) -> bool {
    row.real.is(address) || trace::behind(row.real.address()) == address
}

/// Looks up the driver's function of every row of a library, once; `None` if the library is not loaded. A row
/// that the driver lacks stays absent without affecting others.
fn prepare(library: &Library, rows: &[Row], member: Option<*mut c_void>) -> Option<()> {
    if library.is_prepared.load(Acquire) {
        return Some(());
    }
    thread::hold();
    library.handle(member)?;
    let by_version = library
        .find(c"cuGetProcAddress_v2")
        .filter(|address| !address.is_null());
    let rows = rows.iter().enumerate();
    for (number, row) in rows.filter(|(_, row)| row.name.to_bytes().starts_with(library.prefix)) {
        let exported = library.find(row.name)?;
        let given = by_version
            .and_then(|ask| ask_by_version(ask, row))
            .unwrap_or(null_mut());
        row.real.set(exported, given);
        trace::bound(number, row.name, row.ours.0, row.real, [exported, given]);
    }
    forget_error();
    library.is_prepared.store(true, Release);
    Some(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ROWS;
    use std::collections::HashSet;

    #[test]
    fn every_symbol_has_one_row() {
        let mut seen = HashSet::new();
        for row in ROWS {
            assert!(seen.insert(row.name), "{:?}", row.name);
        }
    }

    #[test]
    fn every_row_has_a_stub_for_the_trace() {
        assert!(ROWS.len() <= trace::STUBS, "{}", ROWS.len());
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
        let mut found = real;
        assert_eq!(
            get_proc_address(ROWS, c"cuMemAlloc".as_ptr(), &raw mut found, &|| Ok(())),
            Ok(())
        );
        assert_eq!(found, real);
    }
}
