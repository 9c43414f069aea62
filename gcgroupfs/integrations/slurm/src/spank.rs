//! Functions of Slurm that the plugin calls. Declared by hand from `slurm/spank.h`;
//! `tests/headers.c` compares them with the headers of each release that the tests run with.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};

use crate::options::ROWS;

/// `ESPANK_SUCCESS`, and the status of a callback without an error.
pub(crate) const SUCCESS: c_int = 0;

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

/// Function that Slurm calls with an option's number and value.
pub(crate) type OptionCallback = extern "C" fn(c_int, *const c_char, c_int) -> c_int;

#[repr(C)]
struct RawOption {
    name: *const c_char,
    value: *const c_char,
    help: *const c_char,
    has_value: c_int,
    number: c_int,
    callback: Option<OptionCallback>,
}

unsafe extern "C" {
    fn spank_context() -> c_int;
    fn spank_option_register(spank: *mut c_void, option: *mut RawOption) -> c_int;
    fn spank_get_item(spank: *mut c_void, item: c_int, ...) -> c_int;
    fn spank_getenv(spank: *mut c_void, name: *const c_char, buffer: *mut c_char, length: c_int) -> c_int;
    fn spank_setenv(spank: *mut c_void, name: *const c_char, value: *const c_char, replaces: c_int) -> c_int;
    fn slurm_api_version() -> c_long;
    fn slurm_error(format: *const c_char, ...);
    fn slurm_verbose(format: *const c_char, ...);
}

/// The handle of a callback. Valid for that call only.
#[derive(Debug)]
pub(crate) struct Spank {
    pub(crate) handle: *mut c_void,
    /// Arguments of the plugin in `plugstack.conf`.
    pub(crate) arguments: Vec<String>,
    /// Passed the options of [`ROWS`] by their index.
    pub(crate) take_option: OptionCallback,
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
                callback: Some(self.take_option),
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

/// Returns the number in the name of the running Slurm's `libslurm.so`; 0 if it has none.
pub(crate) fn library() -> u32 {
    // SAFETY: the function takes no arguments and returns a constant.
    let version = unsafe { slurm_api_version() };
    u32::try_from(version >> 16).unwrap_or(0)
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
