//! The helper process that calls the driver for one process. It is replaced when it dies, or does not answer
//! in time.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use gcgroupfs_sys::checkpoint::{ANSWER_LENGTH, CudaError, Operation, ProcessState, answer_from_bytes};
use gcgroupfs_sys::launch::{self, Launcher};
use gcgroupfs_sys::packet_pair;

/// Why an operation has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("{}", describe(.0))]
    Driver(CudaError),
    #[error("the helper process ended")]
    Ended,
    #[error("the driver did not answer in time")]
    TimedOut,
}

fn describe(error: &CudaError) -> String {
    match *error {
        CudaError::INVALID_VALUE => "the process has ended, or does not use the driver".to_owned(),
        CudaError::OUT_OF_MEMORY => "out of memory".to_owned(),
        CudaError::NOT_SUPPORTED => {
            "the driver cannot move this process: it is too old, or the process uses MPS, or memory that it \
             cannot move"
                .to_owned()
        }
        CudaError::NO_SUCH_GPU => "CUDA_VISIBLE_DEVICES of the daemon hides the GPU".to_owned(),
        CudaError::NO_DRIVER => "libcuda.so.1 cannot be loaded".to_owned(),
        CudaError(number) => format!("the driver's error {number}"),
    }
}

pub(super) struct Helper {
    launcher: Arc<Launcher>,
    pid: u32,
    start_time: u64,
    running: Option<(launch::Helper, OwnedFd)>,
}

impl Helper {
    /// Returns the helper for a process, which is started when it is needed.
    pub(super) fn new(launcher: Arc<Launcher>, pid: u32, start_time: u64) -> Self {
        Self {
            launcher,
            pid,
            start_time,
            running: None,
        }
    }

    /// Performs an operation.
    ///
    /// # Errors
    /// The driver's error, or the helper's end. Then the state of the process is unknown until it is asked
    /// for.
    pub(super) fn perform(
        &mut self,
        operation: Operation,
        patience: Duration,
    ) -> Result<ProcessState, Failure> {
        let result = self.exchange(operation, Instant::now() + patience);
        if matches!(result, Err(Failure::Ended | Failure::TimedOut)) {
            // Dropping it kills it.
            self.running = None;
        }
        result
    }

    fn exchange(&mut self, operation: Operation, deadline: Instant) -> Result<ProcessState, Failure> {
        let socket = self.start().ok_or(Failure::Ended)?;
        let sent = nix::unistd::write(socket, &operation.to_bytes());
        sent.map_err(|_| Failure::Ended)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut watched = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut watched, timeout) {
                Err(Errno::EINTR) => continue,
                Ok(0) => return Err(Failure::TimedOut),
                _ => {}
            }
            let mut answer = [0; ANSWER_LENGTH];
            return match nix::unistd::read(socket, &mut answer) {
                Err(Errno::EINTR) => continue,
                Ok(ANSWER_LENGTH) => answer_from_bytes(answer).map_err(Failure::Driver),
                _ => Err(Failure::Ended),
            };
        }
    }

    /// Returns the socket of the helper, started if none runs.
    fn start(&mut self) -> Option<&OwnedFd> {
        if self.running.is_none() {
            let (ours, theirs) = packet_pair().ok()?;
            let words = [
                "checkpoint".to_owned(),
                self.pid.to_string(),
                self.start_time.to_string(),
            ];
            let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
            let helper = self.launcher.launch_with_driver(&words, &theirs).ok()?;
            self.running = Some((helper, ours));
        }
        self.running.as_ref().map(|(_, socket)| socket)
    }
}
