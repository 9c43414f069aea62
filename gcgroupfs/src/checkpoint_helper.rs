//! The helper that calls the driver to suspend and resume another process. The daemon itself never loads the
//! driver: its calls can wait for the other process, and its faults would end the daemon.

use std::io;
use std::os::fd::AsFd;

use anyhow::Context;
use clap::Args;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};

use gcgroupfs_sys as sys;
use gcgroupfs_sys::checkpoint::{CudaError, Driver, OPERATION_LENGTH, Operation, answer_to_bytes};
use gcgroupfs_sys::process;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    pid: u32,
    /// Its start time in clock ticks since boot
    start_time: u64,
}

/// Performs the operations that arrive on standard input, a socket, and answers each. Ends with the daemon.
///
/// # Errors
/// The daemon's socket is gone, or the process.
pub(crate) fn run(Arguments { pid, start_time }: &Arguments) -> anyhow::Result<()> {
    // A service manager signals all processes of a service; an operation must not be interrupted by that.
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    SigSet::from_iter(signals).thread_block()?;
    let _ = sys::close_from(3);
    let number = i32::try_from(*pid).context("no pid")?;
    // Read once: a read that fails later would pass for the end of the process.
    let process = match process::open(*pid, *start_time) {
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => None,
        process => Some(process?),
    };
    let has_ended = || process.as_ref().is_none_or(process::is_dead);
    let driver = Driver::load();
    let daemon = io::stdin();
    let mut packet = [0; OPERATION_LENGTH];
    while nix::unistd::read(daemon.as_fd(), &mut packet)? == OPERATION_LENGTH {
        let operation = Operation::from_bytes(&packet).context("no operation")?;
        let answer = match &driver {
            Err(error) => Err(*error),
            // The pid may be another process's now.
            Ok(_) if has_ended() => Err(CudaError::INVALID_VALUE),
            Ok(driver) => driver.perform(number, operation),
        };
        nix::unistd::write(daemon.as_fd(), &answer_to_bytes(answer))?;
    }
    Ok(())
}
