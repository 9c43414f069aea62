//! The inotify helper process: started on demand, restarted after its death, and given up when it hangs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use crate::Spot;
use gcgroupfs_sys::launch::{self, Launcher};

/// Time limit of one command in milliseconds. The helper waits for no process but the daemon.
const PATIENCE: u16 = 5000;

/// Least time between two starts.
const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Helper {
    launcher: Arc<Launcher>,
    spot: Spot,
    running: Option<Running>,
    next_start: Instant,
}

struct Running {
    helper: launch::Helper,
    to: File,
    from: BufReader<File>,
}

impl Helper {
    pub(super) fn new(launcher: Arc<Launcher>, spot: Spot) -> Self {
        Self {
            launcher,
            spot,
            running: None,
            next_start: Instant::now(),
        }
    }

    /// Makes the helper execute a command, and stores the helper's pid in `pid`, 0 if it is gone.
    ///
    /// # Errors
    /// The errno of the system call; `ESRCH` without a helper.
    pub(super) fn ask(&mut self, command: &str, path: &str, pid: &AtomicU32) -> nix::Result<()> {
        if self.running.is_none() {
            self.start();
        }
        let running = self.running.as_mut().ok_or(Errno::ESRCH)?;
        pid.store(running.helper.pid(), Relaxed);
        match running.ask(command, path) {
            Some(0) => Ok(()),
            Some(errno) => Err(Errno::from_raw(errno)),
            None => {
                // Before the helper is waited for, so no other process can have its pid.
                pid.store(0, Relaxed);
                self.running = None;
                Err(Errno::ESRCH)
            }
        }
    }

    fn start(&mut self) {
        let now = Instant::now();
        if now < self.next_start {
            return;
        }
        self.next_start = now + RETRY;
        self.running = Running::start(&self.launcher, &self.spot)
            .inspect_err(|error| tracing::debug!(%error, "no helper: inotify will not see changes"))
            .ok();
    }
}

impl Running {
    fn start(launcher: &Arc<Launcher>, spot: &Spot) -> std::io::Result<Self> {
        let (input, to) = pipe2(OFlag::O_CLOEXEC)?;
        let (from, output) = pipe2(OFlag::O_CLOEXEC)?;
        let number = spot.device.to_string();
        let words = [OsStr::new("replay"), spot.point.as_os_str(), OsStr::new(&number)];
        let helper = launcher.launch(&words, &input, Some(&output))?;
        Ok(Self {
            helper,
            to: to.into(),
            from: BufReader::new(from.into()),
        })
    }

    /// Returns the errno that the helper answers, 0 for success; `None` without an answer.
    fn ask(&mut self, command: &str, path: &str) -> Option<i32> {
        self.to.write_all(format!("{command} {path}\n").as_bytes()).ok()?;
        let mut watched = [PollFd::new(self.from.get_ref().as_fd(), PollFlags::POLLIN)];
        while match poll(&mut watched, PollTimeout::from(PATIENCE)) {
            Ok(0) => return None,
            result => result == Err(Errno::EINTR),
        } {}
        let mut line = String::new();
        self.from.read_line(&mut line).ok()?;
        line.trim_end().parse().ok()
    }
}
