//! Interface to SPANK: Slurm's functions that the plugin calls, and the functions that Slurm calls, which are
//! passed on to `plugin`. Declared by hand from `slurm/spank.h`.

#![allow(unreachable_pub, reason = "Slurm finds these symbols by name")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic;

use crate::options::ROWS;
use crate::plugin::{self, Callback};

/// `ESPANK_SUCCESS`, and the status of a callback without an error.
const SUCCESS: c_int = 0;

/// Status of a callback that refuses.
const FAILURE: c_int = -1;

/// Longest value of an environment variable that is read, bytes.
const MAX_VALUE: usize = 64 << 10;

/// Items of `spank_get_item` with a `uint32_t`, as in `enum spank_item`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item {
    JobId = 2,
    StepId = 3,
}

/// Where the plugin is loaded, as in `enum spank_context`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Context {
    /// srun, sbatch or salloc.
    Submission,
    /// slurmstepd.
    Step,
    /// slurmd, and prolog and epilog.
    Other,
}

#[repr(C)]
struct RawOption {
    name: *const c_char,
    value: *const c_char,
    help: *const c_char,
    has_value: c_int,
    number: c_int,
    callback: Option<extern "C" fn(c_int, *const c_char, c_int) -> c_int>,
}

unsafe extern "C" {
    fn spank_context() -> c_int;
    fn spank_option_register(spank: *mut c_void, option: *mut RawOption) -> c_int;
    fn spank_get_item(spank: *mut c_void, item: c_int, ...) -> c_int;
    fn spank_getenv(spank: *mut c_void, name: *const c_char, buffer: *mut c_char, length: c_int) -> c_int;
    fn spank_setenv(spank: *mut c_void, name: *const c_char, value: *const c_char, replaces: c_int) -> c_int;
    fn slurm_error(format: *const c_char, ...);
    fn slurm_verbose(format: *const c_char, ...);
}

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that Slurm looks up")]
pub static plugin_name: [u8; 14] = *b"gcgroup_slurm\0";

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that Slurm looks up")]
pub static plugin_type: [u8; 6] = *b"spank\0";

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that Slurm looks up")]
pub static plugin_version: c_uint = version();

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name that Slurm looks up")]
pub static spank_plugin_version: c_uint = 1;

/// Returns the version of Slurm that build.rs has found.
const fn version() -> c_uint {
    let digits = env!("SLURM_VERSION").as_bytes();
    let (mut version, mut at) = (0, 0);
    while at < digits.len() {
        version = version * 10 + (digits[at] - b'0') as c_uint;
        at += 1;
    }
    version
}

/// The handle of a callback. Valid for that call only.
#[derive(Debug)]
pub(crate) struct Spank {
    handle: *mut c_void,
    /// Arguments of the plugin in `plugstack.conf`.
    pub(crate) arguments: Vec<String>,
}

impl Spank {
    /// Returns a number of the step.
    pub(crate) fn item(&self, item: Item) -> Option<u32> {
        let mut value: u32 = 0;
        // SAFETY: the handle is that of the current callback, and these items have a `uint32_t *`.
        let status = unsafe { spank_get_item(self.handle, item as c_int, &raw mut value) };
        (status == SUCCESS).then_some(value)
    }

    /// Returns a variable of the tasks' environment.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        let mut buffer = vec![0_u8; MAX_VALUE];
        let length = c_int::try_from(buffer.len()).ok()?;
        // SAFETY: the handle is that of the current callback; the buffer has `length` bytes.
        let status = unsafe { spank_getenv(self.handle, name.as_ptr(), buffer.as_mut_ptr().cast(), length) };
        if status != SUCCESS {
            return None;
        }
        let value = CStr::from_bytes_until_nul(&buffer).ok()?;
        Some(value.to_string_lossy().into_owned())
    }

    /// Sets a variable of the task's environment.
    ///
    /// # Errors
    /// Slurm refuses it.
    pub(crate) fn set_variable(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let (c_name, c_value) = (CString::new(name)?, CString::new(value)?);
        // SAFETY: the handle is that of the current callback; Slurm copies both strings.
        let status = unsafe { spank_setenv(self.handle, c_name.as_ptr(), c_value.as_ptr(), 1) };
        anyhow::ensure!(status == SUCCESS, "Slurm does not set {name}: error {status}");
        Ok(())
    }

    /// Registers the options of [`ROWS`]. Allowed only in `slurm_spank_init`.
    ///
    /// # Errors
    /// Slurm refuses one of them.
    pub(crate) fn register_options(&self) -> anyhow::Result<()> {
        for (number, row) in ROWS.iter().enumerate() {
            let text = |text: &str| CString::new(text).map(CString::into_raw);
            // Slurm keeps the pointers, so the strings are never freed.
            let mut option = RawOption {
                name: text(row.name)?,
                value: text(row.value.unwrap_or_default())?,
                help: text(row.help)?,
                has_value: row.value.is_some().into(),
                number: c_int::try_from(number)?,
                callback: Some(take_option),
            };
            // SAFETY: the handle is that of the current callback. Slurm copies the option; its strings live
            // as long as the process.
            let status = unsafe { spank_option_register(self.handle, &raw mut option) };
            anyhow::ensure!(
                status == SUCCESS,
                "Slurm refuses option --{}: error {status}",
                row.name
            );
        }
        Ok(())
    }
}

/// Returns where the plugin is loaded.
pub(crate) fn context() -> Context {
    // SAFETY: the function takes no arguments and may be called at any time.
    match unsafe { spank_context() } {
        1 | 3 => Context::Submission,
        2 => Context::Step,
        _ => Context::Other,
    }
}

/// Writes an error to Slurm's log; while a step starts also to its user's terminal.
pub(crate) fn log_error(text: &str) {
    if let Ok(text) = CString::new(format!("gcgroup: {text}")) {
        // SAFETY: the format takes one string.
        unsafe { slurm_error(c"%s".as_ptr(), text.as_ptr()) };
    }
}

/// Writes a line to Slurm's log if that is verbose.
pub(crate) fn log_verbose(text: &str) {
    if let Ok(text) = CString::new(format!("gcgroup: {text}")) {
        // SAFETY: the format takes one string.
        unsafe { slurm_verbose(c"%s".as_ptr(), text.as_ptr()) };
    }
}

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
        plugin::call(callback, &Spank { handle, arguments })
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
