//! The launcher: a process that starts the daemon's helpers. The daemon starts it before it serves any
//! client.
//!
//! A forked process has copies of all open descriptors until it executes another program. A copy of a
//! client's connection could be the last one, and closing it could wait for that client: in execve(2), where
//! it blocks every reader of the process's files in /proc. The launcher has never had a client's connection,
//! so its children have none.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gcgroup_abi::environment::GCGROUP_SOCKET;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use parking_lot::Mutex;

/// Longest time that the launcher may take to start a process, seconds.
const PATIENCE: u16 = 5;

/// Longest wait for another thread's use of the launcher.
const SHORT_PATIENCE: Duration = Duration::from_millis(20);

/// Longest request, bytes.
const MAX_REQUEST: usize = 8192;

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
    pidfd: OwnedFd,
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
    pub fn launch_with_driver(&self, arguments: &[&OsStr], input: &impl AsFd) -> io::Result<Helper> {
        let errors = io::stderr();
        let mut running = self.running.lock();
        with(&mut running, |running| {
            running.ask(arguments, &[input.as_fd(), errors.as_fd()], MsgFlags::empty())?;
            running.answer()
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
            running.ask(arguments, &[input.as_fd()], MsgFlags::MSG_DONTWAIT)
        })
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
        setsockopt(&ours, sockopt::SendTimeout, &TimeVal::new(PATIENCE.into(), 0))?;
        let child = command_with_environment(&[OsStr::new("launch")])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, socket: ours })
    }

    /// Sends a request: the helper's arguments with its standard input and, where it needs the driver, its
    /// standard error.
    fn ask(&self, arguments: &[&OsStr], descriptors: &[BorrowedFd<'_>], flags: MsgFlags) -> io::Result<()> {
        let words = arguments.iter().map(|word| word.as_bytes()).collect::<Vec<_>>();
        let request = words.join(&0);
        send(&self.socket, &request, descriptors, flags)
    }

    /// Receives the helper that was started for the last request with standard error.
    fn answer(&self) -> io::Result<Helper> {
        let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        let is_ready = loop {
            match poll(&mut ready, PATIENCE * 1000) {
                Err(Errno::EINTR) => {}
                result => break result? > 0,
            }
        };
        // A late answer would be taken for the next one, so the launcher is replaced.
        if !is_ready {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut errno = [0; 4];
        let received = crate::receive(&self.socket, &mut errno)?;
        match (received.length, received.descriptors.into_iter().next()) {
            (4, Some(pidfd)) => Ok(Helper { pidfd }),
            (4, None) => Err(io::Error::from_raw_os_error(i32::from_le_bytes(errno))),
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
        let _ = crate::send_signal(&self.pidfd, Signal::SIGKILL);
    }
}

/// Sends one packet with descriptors.
fn send(
    socket: &impl AsFd,
    packet: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: MsgFlags,
) -> io::Result<()> {
    let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let rights = if raw.is_empty() { &[][..] } else { &rights };
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &[IoSlice::new(packet)],
        rights,
        flags,
        None,
    )?;
    Ok(())
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
    let mut children: Vec<(Child, OwnedFd)> = Vec::new();
    loop {
        let ends = children.iter().map(|(_, pidfd)| pidfd.as_fd());
        let descriptors = std::iter::once(daemon.as_fd()).chain(ends);
        let mut ready: Vec<_> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        children.retain_mut(|(child, _)| matches!(child.try_wait(), Ok(None)));
        let mut buffer = [0; MAX_REQUEST];
        let received = match crate::receive(&daemon, &mut buffer) {
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            received => received?,
        };
        let request = buffer.get(..received.length).unwrap_or_default();
        if request.is_empty() {
            return Ok(());
        }
        let needs_driver = received.descriptors.len() > 1;
        let started = spawn(request, needs_driver, received.descriptors);
        // If another helper cannot be started, the other end of its input is closed: that is the answer.
        if needs_driver {
            let (errno, pidfd) = match &started {
                Ok((_, pidfd)) => (0, Some(pidfd.as_fd())),
                Err(error) => (error.raw_os_error().unwrap_or(libc::EIO), None),
            };
            send(&daemon, &errno.to_le_bytes(), pidfd.as_slice(), MsgFlags::empty())?;
        }
        children.extend(started.ok());
    }
}

/// Starts a helper. Returns it with its pidfd, which is readable when it has ended.
fn spawn(words: &[u8], needs_driver: bool, descriptors: Vec<OwnedFd>) -> io::Result<(Child, OwnedFd)> {
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
    let mut child = command.spawn()?;
    let pidfd = crate::pidfd_open(child.id().cast_signed()).inspect_err(|_| {
        let _ = child.kill();
        let _ = child.wait();
    })?;
    Ok((child, pidfd))
}
