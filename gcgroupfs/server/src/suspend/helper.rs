//! The helper process that calls the driver. It is kept for the next task if its last operation has
//! succeeded; while it is busy, another is started. It is replaced when it dies, or does not answer in time.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use gcgroupfs_sys::checkpoint::{Answer, CudaError, LONGEST, Operation, ProcessState, Request};
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

/// How long a helper is kept for the next task: a process that has initialised the driver keeps its module
/// from being unloaded, and GPUs from being reset or divided.
pub(super) const KEEP: Duration = Duration::from_secs(60);

/// A helper process and the socket that it reads. Dropping it kills the process.
type Running = (launch::Helper, OwnedFd);

/// The source of helpers.
pub(super) struct Helpers {
    launcher: Arc<Launcher>,
    /// A helper that no task uses, and since when. It has initialised the driver, and may have ended.
    idle: Mutex<Option<(Running, Instant)>>,
}

impl Helpers {
    pub(super) fn new(launcher: Arc<Launcher>) -> Self {
        Self {
            launcher,
            idle: Mutex::new(None),
        }
    }

    /// Ends the idle helper [`KEEP`] after its last use.
    pub(super) fn end_idle(&self) {
        (self.idle.lock()).take_if(|(_, since)| since.elapsed() >= KEEP);
    }
}

/// A helper in the service of one task.
pub(super) struct Helper {
    helpers: Arc<Helpers>,
    pid: u32,
    start_time: u64,
    running: Option<Running>,
    /// Whether the last answer shows that the driver is initialised.
    is_sound: bool,
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(running) = self.running.take().filter(|_| self.is_sound) {
            *self.helpers.idle.lock() = Some((running, Instant::now()));
        }
    }
}

impl Helper {
    /// Returns the helper for a process, which is started when it is needed.
    pub(super) fn new(helpers: Arc<Helpers>, pid: u32, start_time: u64) -> Self {
        Self {
            helpers,
            pid,
            start_time,
            running: None,
            is_sound: false,
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
        let deadline = Instant::now() + patience;
        let idle = match self.running {
            None => self.helpers.idle.lock().take(),
            Some(_) => None,
        };
        let is_reused = idle.is_some();
        if let Some((running, _)) = idle {
            self.running = Some(running);
        }
        let mut result = self.exchange(operation, deadline);
        if is_reused && result == Err(Failure::Ended) {
            // It had ended while no task used it.
            self.running = None;
            result = self.exchange(operation, deadline);
        }
        // Other errors may be those of initialising the driver.
        self.is_sound = matches!(result, Ok(_) | Err(Failure::Driver(CudaError::INVALID_VALUE)));
        if matches!(result, Err(Failure::Ended | Failure::TimedOut)) {
            // Dropping it kills it.
            self.running = None;
        }
        result
    }

    fn exchange(&mut self, operation: Operation, deadline: Instant) -> Result<ProcessState, Failure> {
        let request = Request {
            pid: self.pid,
            start_time: self.start_time,
            operation,
        };
        let socket = self.start().ok_or(Failure::Ended)?;
        let packet = serde_json::to_vec(&request).map_err(|_| Failure::Ended)?;
        let sent = nix::unistd::write(socket, &packet);
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
            let mut answer = [0; LONGEST];
            let length = match nix::unistd::read(socket, &mut answer) {
                Err(Errno::EINTR) => continue,
                length => length.unwrap_or(0),
            };
            let answer = serde_json::from_slice::<Answer>(answer.get(..length).unwrap_or_default());
            return answer.map_err(|_| Failure::Ended)?.map_err(Failure::Driver);
        }
    }

    /// Returns the socket of the helper, started if none runs.
    fn start(&mut self) -> Option<&OwnedFd> {
        if self.running.is_none() {
            let (ours, theirs) = packet_pair().ok()?;
            let helper = (self.helpers.launcher)
                .launch_with_driver(&[OsStr::new("checkpoint")], &theirs)
                .ok()?;
            self.running = Some((helper, ours));
        }
        self.running.as_ref().map(|(_, socket)| socket)
    }
}
