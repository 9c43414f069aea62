//! The library and the system as a whole.

use core::ffi::{c_char, c_int, c_uint};
use std::fs;

use parking_lot::Mutex;
use simgpu::{Driver, Machine};

use crate::call::{Error, Place, RESULTS, Result, code, nvml};
use crate::sample;

/// How many times the library has been initialised and not shut down.
static USERS: Mutex<u32> = Mutex::new(0);

/// The machine, if the library is initialised.
pub(crate) fn machine() -> Result<&'static Machine> {
    if *USERS.lock() == 0 {
        return Err(Error::Uninitialized);
    }
    attached()
}

fn attached() -> Result<&'static Machine> {
    Machine::attached().map_err(|_| Error::DriverNotLoaded)
}

fn initialise() -> Result {
    let mut users = USERS.lock();
    let machine = attached()?;
    if *users == 0 {
        sample::begin(machine);
    }
    *users = users.saturating_add(1);
    Ok(())
}

// SAFETY: NVML's function of that name, with its signature.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> u32 {
    code(initialise())
}

// SAFETY: likewise.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    code(initialise())
}

/// The flags ask not to fail without a device, and not to attach to any; the simulated machine has devices
/// and needs no attaching.
// SAFETY: likewise.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> u32 {
    code(initialise())
}

// SAFETY: likewise.
#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    let mut users = USERS.lock();
    if *users == 0 {
        return code(Err(Error::Uninitialized));
    }
    *users -= 1;
    0
}

// SAFETY: likewise.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: u32) -> *const c_char {
    RESULTS
        .iter()
        .find(|(number, _)| *number == result)
        .map_or(c"Unknown Error", |(_, words)| words)
        .as_ptr()
}

nvml! {
    fn nvmlSystemGetDriverVersion(version: Place<u8>, length: c_uint) =>
        |_| version.put_text(Driver::of_process().driver_version, length);

    /// NVML's own version is the driver's behind the number of its interface.
    fn nvmlSystemGetNVMLVersion(version: Place<u8>, length: c_uint) =>
        |_| {
            let Driver { cuda_version, driver_version, .. } = Driver::of_process();
            version.put_text(&format!("{}.{driver_version}", cuda_version / 1000), length)
        };

    fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2 (version: Place<c_int>) =>
        |_| version.put(Driver::of_process().cuda_version);

    /// The name a process was started by, cut to the caller's length.
    fn nvmlSystemGetProcessName(pid: c_uint, name: Place<u8>, length: c_uint) => |_| {
        let room = (length as usize).checked_sub(1).ok_or(Error::InvalidArgument)?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Error::NotFound)?;
        let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
        let cut = &program[..program.len().min(room)];
        name.put_all(&[cut, &[0]].concat())
    };

    /// No S-class units.
    fn nvmlUnitGetCount(count: Place<c_uint>) => |_| count.put(0);
}
