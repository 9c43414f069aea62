//! Functions for initialization, and queries about the system.

use core::ffi::{c_char, c_int, c_uint};
use std::fs;

use simgpu::Driver;

use crate::call::{Error, Out, code, nvml};
use crate::result::RESULTS;
use crate::users;

pub(crate) extern "C" fn nvmlInit() -> u32 {
    code(users::add())
}

pub(crate) extern "C" fn nvmlInit_v2() -> u32 {
    code(users::add())
}

/// Ignores the flags, which ask not to fail without a device and not to attach to any: the simulated machine
/// has devices and needs no attaching.
pub(crate) extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> u32 {
    code(users::add())
}

pub(crate) extern "C" fn nvmlShutdown() -> u32 {
    code(users::remove())
}

pub(crate) extern "C" fn nvmlErrorString(result: u32) -> *const c_char {
    RESULTS
        .iter()
        .find(|(number, _)| *number == result)
        .map_or(c"Unknown Error", |(_, words)| words)
        .as_ptr()
}

nvml! {
    fn nvmlSystemGetDriverVersion(version: Out<u8>, length: c_uint) =>
        |_| version.put_text(Driver::of_process().driver_version, length);

    /// NVML's version is its interface's number followed by the driver's version.
    fn nvmlSystemGetNVMLVersion(version: Out<u8>, length: c_uint) =>
        |_| {
            let Driver { cuda_version, driver_version, .. } = Driver::of_process();
            version.put_text(&format!("{}.{driver_version}", cuda_version / 1000), length)
        };

    fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2 (version: Out<c_int>) =>
        |_| version.put(Driver::of_process().cuda_version);

    /// Returns the name that the process was started with, truncated to the caller's length.
    fn nvmlSystemGetProcessName(pid: c_uint, name: Out<u8>, length: c_uint) => |_| {
        let room = (length as usize).checked_sub(1).ok_or(Error::InvalidArgument)?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Error::NotFound)?;
        let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
        let cut = &program[..program.len().min(room)];
        name.put_all(&[cut, &[0]].concat())
    };

    /// Returns 0: there are no S-class units.
    fn nvmlUnitGetCount(count: Out<c_uint>) => |_| count.put(0);
}
