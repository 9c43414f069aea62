//! Functions and names by which Slurm calls the plugin, passed on to `plugin`. Declared by hand from
//! `slurm/spank.h`.

#![allow(unreachable_pub, reason = "Slurm finds these symbols by name")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::options::ROWS;
use crate::plugin::{self, Callback};
use crate::release::{Release, refusal};
use crate::spank::{self, SUCCESS, Spank, log_error};

/// Status of a callback that refuses.
const FAILURE: c_int = -1;

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that Slurm looks up")]
pub static plugin_name: [u8; 14] = *b"gcgroup_slurm\0";

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that Slurm looks up")]
pub static plugin_type: [u8; 6] = *b"spank\0";

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that Slurm looks up")]
pub static plugin_version: AtomicU32 = AtomicU32::new(0);

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that Slurm looks up")]
pub static spank_plugin_version: c_uint = 1;

/// Sets `plugin_version`, which Slurm compares with its own before it calls the plugin, to that of the
/// running Slurm if that is served. Runs when the plugin is loaded.
extern "C" fn set_version() {
    let library = spank::library();
    match Release::with_library(library) {
        Some(release) => plugin_version.store(release.version_number(), Relaxed),
        // Slurm refuses version 0.
        None => log_error(&refusal(library)),
    }
}

// SAFETY: the dynamic linker calls the functions of this section, which take no arguments, after it has
// resolved the library's symbols.
#[cfg_attr(not(test), used, unsafe(link_section = ".init_array"))]
#[cfg_attr(test, allow(dead_code, reason = "unit tests have no Slurm"))]
static AT_LOAD: extern "C" fn() = set_version;

extern "C" fn take_option(number: c_int, value: *const c_char, _remote: c_int) -> c_int {
    let value = if value.is_null() {
        String::new()
    } else {
        // SAFETY: Slurm passes a string that ends with a NUL.
        unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned()
    };
    guard(|| {
        let row = usize::try_from(number).ok().and_then(|number| ROWS.get(number));
        row.map_or(Ok(()), |row| plugin::take_option(row, &value))
    })
}

/// Runs a callback; logs its error. A panic counts as one, so that slurmstepd survives it.
fn guard(callback: impl FnOnce() -> anyhow::Result<()>) -> c_int {
    match panic::catch_unwind(panic::AssertUnwindSafe(callback)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(error)) => {
            log_error(&format!("{error:#}"));
            FAILURE
        }
        Err(_) => {
            log_error("internal error of the plugin");
            FAILURE
        }
    }
}

/// Calls the plugin for a callback of Slurm.
fn dispatch(callback: Callback, handle: *mut c_void, count: c_int, words: *const *const c_char) -> c_int {
    guard(|| {
        let count = if words.is_null() {
            0
        } else {
            usize::try_from(count).unwrap_or(0)
        };
        let word = |at: usize| {
            // SAFETY: Slurm passes `count` strings that end with a NUL.
            let word = unsafe { CStr::from_ptr(*words.add(at)) };
            word.to_string_lossy().into_owned()
        };
        let arguments = (0..count).map(word).collect();
        let spank = Spank {
            handle,
            arguments,
            take_option,
        };
        plugin::call(callback, &spank)
    })
}

/// Defines the functions that Slurm calls: a row for each.
macro_rules! callbacks {
    ($($name:ident => $callback:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(handle: *mut c_void, count: c_int, words: *const *const c_char) -> c_int {
                dispatch(Callback::$callback, handle, count, words)
            }
        )*
    };
}

callbacks! {
    slurm_spank_init => Init;
    slurm_spank_init_post_opt => InitPostOpt;
    slurm_spank_task_init_privileged => TaskInitPrivileged;
    slurm_spank_task_init => TaskInit;
    slurm_spank_task_post_fork => TaskPostFork;
    slurm_spank_exit => Exit;
}
