//! The helper that calls the driver to suspend and resume other processes. The daemon itself never loads the
//! driver: its calls can wait for the other process, and its faults would end the daemon.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};

use gcgroupfs_sys as sys;
use gcgroupfs_sys::checkpoint::{Answer, CudaError, Driver, LONGEST, Request};
use gcgroupfs_sys::process;

/// A process, and its pidfd unless it had ended when it was first asked for.
struct Target {
    pid: u32,
    start_time: u64,
    pidfd: Option<OwnedFd>,
}

impl Target {
    /// Opens the process. Its start time is read once: a read that fails later would pass for its end.
    fn open(Request { pid, start_time, .. }: Request) -> io::Result<Self> {
        let pidfd = match process::open(pid, start_time) {
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => None,
            pidfd => Some(pidfd?),
        };
        Ok(Self {
            pid,
            start_time,
            pidfd,
        })
    }

    fn has_ended(&self) -> bool {
        self.pidfd.as_ref().is_none_or(process::is_dead)
    }
}

/// Performs the operations that arrive on standard input, a socket, and answers each. Ends with the daemon.
///
/// # Errors
/// The daemon's socket is gone, or a process cannot be examined.
pub(crate) fn run() -> anyhow::Result<()> {
    // A service manager signals all processes of a service; an operation must not be interrupted by that.
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    SigSet::from_iter(signals).thread_block()?;
    let _ = sys::close_from(3);
    let driver = Driver::load();
    let daemon = io::stdin();
    let mut target: Option<Target> = None;
    let mut packet = [0; LONGEST];
    loop {
        let length = nix::unistd::read(daemon.as_fd(), &mut packet)?;
        let Some(text) = packet.get(..length).filter(|text| !text.is_empty()) else {
            return Ok(());
        };
        let request: Request = serde_json::from_slice(text)?;
        let is_it = |target: &Target| (target.pid, target.start_time) == (request.pid, request.start_time);
        let process = match target.take().filter(is_it) {
            Some(target) => target,
            None => Target::open(request)?,
        };
        let answer: Answer = match &driver {
            Err(error) => Err(*error),
            // The pid may be another process's now.
            Ok(_) if process.has_ended() => Err(CudaError::INVALID_VALUE),
            Ok(driver) => {
                let number = i32::try_from(request.pid).context("no pid")?;
                driver.perform(number, request.operation)
            }
        };
        target = Some(process);
        nix::unistd::write(daemon.as_fd(), &serde_json::to_vec(&answer)?)?;
    }
}
