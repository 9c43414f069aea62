//! The helper process: started when it is needed, again after its death, and given up on when it hangs.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Spot;

/// How long it may take for one thing, milliseconds. It waits for nobody but us.
const PATIENCE: u16 = 5000;

/// The least time between two starts.
const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Helper {
    spot: Spot,
    running: Option<Running>,
    next_start: Instant,
}

struct Running {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Helper {
    pub(super) fn new(spot: Spot) -> Self {
        Self {
            spot,
            running: None,
            next_start: Instant::now(),
        }
    }

    /// Has one thing done, while `pid` tells who does it.
    ///
    /// # Errors
    /// What the system call said; `ESRCH` if there is no helper.
    pub(super) fn ask(&mut self, command: &str, path: &str, pid: &AtomicU32) -> nix::Result<()> {
        if self.running.is_none() {
            self.start();
        }
        let running = self.running.as_mut().ok_or(Errno::ESRCH)?;
        pid.store(running.child.id(), Relaxed);
        match running.ask(command, path) {
            Some(0) => Ok(()),
            Some(errno) => Err(Errno::from_raw(errno)),
            None => {
                // Until it has been waited for, nobody else can have its pid.
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
        self.running = Running::start(&self.spot)
            .inspect_err(|error| tracing::debug!(%error, "no helper: inotify will not see changes"))
            .ok();
    }
}

impl Running {
    fn start(spot: &Spot) -> std::io::Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg("touch")
            .arg(&spot.point)
            .arg(spot.device.to_string())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Who stops the daemon from the keyboard does not mean the helper.
            .process_group(0)
            .spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Self {
                child,
                to,
                from: BufReader::new(from),
            }),
            _ => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The errno that it answers, or 0; nothing if it does not answer.
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

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // One that hangs in the kernel dies when the mount answers it: not to be waited for here.
        let deadline = Instant::now() + RETRY;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
