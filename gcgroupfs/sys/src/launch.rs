//! The launcher: a process that starts the daemon's helpers. The daemon starts it before it serves any
//! client.
//!
//! A forked process has copies of all open descriptors until it executes another program. A copy of a
//! client's connection could be the last one, and closing it could wait for that client: in execve(2), where
//! it blocks every reader of the process's files in /proc. The launcher has never had a client's connection,
//! so its children have none.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gcgroup_abi::environment::GCGROUP_SOCKET;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::socket::{ControlMessage, MsgFlags, send, sendmsg, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;
use parking_lot::Mutex;

/// Longest time that the launcher may take to start a process.
const PATIENCE: TimeVal = TimeVal::new(5, 0);

/// Longest wait for another thread's use of the launcher.
const SHORT_PATIENCE: Duration = Duration::from_millis(20);

/// Longest request, bytes.
const MAX_REQUEST: usize = 8192;

/// First byte of a request: start a helper without an answer.
const START_UNWATCHED: u8 = b'u';
/// First byte of a request: start a helper that needs the driver, and answer with its pid.
const START_WITH_DRIVER: u8 = b'd';
/// First byte of a request: stop tracking a helper, and reap it when it ends.
const RELEASE: u8 = b'r';

/// The daemon's end of the connection to the launcher.
#[derive(Debug)]
pub struct Launcher {
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    socket: OwnedFd,
}

/// A running helper. Dropping it kills the process.
#[derive(Debug)]
pub struct Helper {
    launcher: Arc<Launcher>,
    pid: Pid,
}

impl Launcher {
    /// Starts the process. Must be called before the daemon has any client's descriptor, and after it has
    /// marked inherited descriptors as closed on exec.
    ///
    /// # Errors
    /// Out of processes or descriptors.
    pub fn start() -> io::Result<Self> {
        Ok(Self {
            running: Mutex::new(Some(Running::start()?)),
        })
    }

    /// Runs `gcgroupfs ARGUMENTS` with this standard input and the daemon's environment, which says where the
    /// driver is. The process is not governed, and has the daemon's standard error.
    ///
    /// # Errors
    /// The launcher does not answer in time, or cannot start it.
    pub fn launch_with_driver(
        self: &Arc<Self>,
        arguments: &[&OsStr],
        input: &impl AsFd,
    ) -> io::Result<Helper> {
        let errors = io::stderr();
        let mut running = self.running.lock();
        let answer = with(&mut running, |running| {
            running.ask(START_WITH_DRIVER, arguments, &[input.as_fd(), errors.as_fd()])?;
            running.answer()
        })?;
        Ok(Helper {
            launcher: self.clone(),
            pid: Pid::from_raw(answer),
        })
    }

    /// Runs `gcgroupfs ARGUMENTS` without waiting for its start or its end.
    ///
    /// # Errors
    /// The launcher has ended, or is busy.
    pub fn launch_unwatched(&self, arguments: &[&OsStr], input: &impl AsFd) -> io::Result<()> {
        let running = self.running.try_lock_for(SHORT_PATIENCE);
        let mut running = running.ok_or(io::ErrorKind::WouldBlock)?;
        with(&mut running, |running| {
            running.ask(START_UNWATCHED, arguments, &[input.as_fd()])
        })
    }

    fn release(&self, pid: Pid) {
        let request = [&[RELEASE][..], &pid.as_raw().to_le_bytes()].concat();
        if let Some(running) = &*self.running.lock() {
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            let _ = send(running.socket.as_raw_fd(), &request, flags);
        }
    }
}

/// Calls `ask` with the running launcher, or with a new one if that has ended.
///
/// A new launcher is forked from the daemon in its present state. It closes what it inherits at once; only in
/// that instant could a copy be the last one. Without a launcher the daemon could start no helper.
fn with<T>(running: &mut Option<Running>, mut ask: impl FnMut(&Running) -> io::Result<T>) -> io::Result<T> {
    if let Some(before) = &*running {
        match ask(before) {
            Err(error) if is_gone(&error) => {
                tracing::warn!("the launcher of helpers has ended; starting another");
                *running = None;
            }
            result => return result,
        }
    }
    ask(running.insert(Running::start()?))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
    )
}

impl Running {
    fn start() -> io::Result<Self> {
        let (ours, theirs) = crate::packet_pair()?;
        setsockopt(&ours, sockopt::ReceiveTimeout, &PATIENCE)?;
        setsockopt(&ours, sockopt::SendTimeout, &PATIENCE)?;
        let child = command_with_environment(&[OsStr::new("launch")])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, socket: ours })
    }

    fn ask(&self, kind: u8, arguments: &[&OsStr], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let words = arguments.iter().map(|word| word.as_bytes()).collect::<Vec<_>>();
        let request = [&[kind][..], &words.join(&0)].concat();
        let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let parts = [IoSlice::new(&request)];
        let flags = match kind {
            START_UNWATCHED => MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
            _ => MsgFlags::MSG_NOSIGNAL,
        };
        sendmsg::<()>(self.socket.as_raw_fd(), &parts, &rights, flags, None)?;
        Ok(())
    }

    /// Returns the pid of the helper started last.
    fn answer(&self) -> io::Result<i32> {
        let mut bytes = [0; 4];
        let length = loop {
            match nix::unistd::read(&self.socket, &mut bytes) {
                Err(Errno::EINTR) => {}
                // A late answer would be taken for the next one, so the launcher is replaced.
                Err(Errno::EAGAIN) => return Err(io::ErrorKind::UnexpectedEof.into()),
                result => break result?,
            }
        };
        match (length, i32::from_le_bytes(bytes)) {
            (4, pid @ 1..) => Ok(pid),
            (4, error) => Err(io::Error::from_raw_os_error(-error)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its socket is closed after this, so it ends by itself; one that has ended already is reaped here.
        let _ = self.child.try_wait();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Until it is released, no other process can have its pid.
        let _ = kill(self.pid, Signal::SIGKILL);
        self.launcher.release(self.pid);
    }
}

/// Returns a helper's command: this program, without environment, in its own process group, so that stopping
/// the daemon from the keyboard does not stop the helper.
pub fn command(arguments: &[&OsStr]) -> Command {
    let mut command = command_with_environment(arguments);
    command.env_clear();
    command
}

fn command_with_environment(arguments: &[&OsStr]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(arguments)
        .current_dir("/")
        .stderr(Stdio::null())
        .process_group(0);
    command
}

/// Runs the launcher: starts what the daemon at the other end of standard input asks for, until the daemon
/// has ended.
///
/// # Errors
/// Standard input is not a socket of the daemon's.
pub fn run() -> anyhow::Result<()> {
    // A service manager signals all processes of a service, but helpers live as long as the daemon.
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    SigSet::from_iter(signals).thread_block()?;
    // Before anything else is executed from here (Linux 5.9; before that, the daemon's descriptors are closed
    // on exec).
    let _ = crate::close_from(3);
    let daemon = io::stdin();
    // Helpers that are tracked until they are released, and helpers to reap when they end.
    let mut watched: HashMap<u32, Child> = HashMap::new();
    let mut released: Vec<(Child, OwnedFd)> = Vec::new();
    loop {
        let ends = released.iter().map(|(_, pidfd)| pidfd.as_fd());
        let descriptors = std::iter::once(daemon.as_fd()).chain(ends);
        let mut ready: Vec<_> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        released.retain_mut(|(child, _)| matches!(child.try_wait(), Ok(None)));
        let mut buffer = [0; MAX_REQUEST];
        let received = match crate::receive(&daemon, &mut buffer) {
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            received => received?,
        };
        let request = buffer.get(..received.length).unwrap_or_default();
        match request.split_first() {
            Some((&RELEASE, pid)) => {
                let pid = pid.try_into().map(u32::from_le_bytes).unwrap_or(0);
                released.extend(watched.remove(&pid).and_then(with_pidfd));
            }
            Some((&START_WITH_DRIVER, words)) => {
                let answer = match spawn(words, true, received.descriptors) {
                    Ok(child) => {
                        let pid = child.id();
                        watched.insert(pid, child);
                        pid.cast_signed()
                    }
                    Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
                };
                nix::unistd::write(&daemon, &answer.to_le_bytes())?;
            }
            // If it cannot be started, the other end of its input is closed: that is the answer.
            Some((&START_UNWATCHED, words)) => {
                let child = spawn(words, false, received.descriptors).ok();
                released.extend(child.and_then(with_pidfd));
            }
            _ => return Ok(()),
        }
    }
}

/// Returns a child with its pidfd, which is readable when it has ended.
fn with_pidfd(child: Child) -> Option<(Child, OwnedFd)> {
    let pidfd = crate::pidfd_open(child.id().cast_signed()).ok()?;
    Some((child, pidfd))
}

fn spawn(words: &[u8], needs_driver: bool, descriptors: Vec<OwnedFd>) -> io::Result<Child> {
    let words: Vec<_> = words
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    let words: Vec<_> = words.iter().map(OsString::as_os_str).collect();
    let mut descriptors = descriptors.into_iter().map(Stdio::from);
    let [input, errors] = [(); 2].map(|()| descriptors.next().unwrap_or_else(Stdio::null));
    let mut command = match needs_driver {
        false => command(&words),
        true => command_with_environment(&words),
    };
    command.stdin(input).stdout(Stdio::null());
    if needs_driver {
        // Where every program is governed, a library in it finds no daemon.
        command.env(GCGROUP_SOCKET.name, "/dev/null").stderr(errors);
    }
    command.spawn()
}
