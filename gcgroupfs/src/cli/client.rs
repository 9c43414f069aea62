//! Client of the daemon's socket, for the command line.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use libc::time_t;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockFlag, UnixAddr, connect, getsockopt, recv, send, setsockopt, sockopt};
use nix::sys::time::TimeVal;

use gcgroupfs_server::protocol::{Answer, MAX_ANSWER, Operation, Request};
use gcgroupfs_server::socket::new_socket;

/// Reason that says no more than its errno.
const NOT_FOUND: &str = "no such file or directory";

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
}

impl Client {
    /// Connects with a timeout of 10 seconds.
    ///
    /// # Errors
    /// No daemon listens there.
    pub(super) fn connect(path: &Path) -> anyhow::Result<Self> {
        Self::connect_with(path, PATIENCE)
    }

    /// Connects. The connection and each answer take at most `patience`, which is not zero.
    ///
    /// # Errors
    /// No daemon listens there.
    pub(super) fn connect_with(path: &Path, patience: Duration) -> anyhow::Result<Self> {
        let connected = || {
            let socket = new_socket(SockFlag::empty())?;
            let patience = TimeVal::new(
                time_t::try_from(patience.as_secs()).unwrap_or(time_t::MAX),
                patience.subsec_micros().into(),
            );
            setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
            setsockopt(&socket, sockopt::SendTimeout, &patience)?;
            connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
            Ok::<_, Errno>(socket)
        };
        let socket =
            connected().map_err(|errno| anyhow!("no daemon at {}: {}", path.display(), strerror(errno)))?;
        Ok(Self { socket })
    }

    /// Returns the pid of the daemon, if it is in a pid namespace that can be seen from here.
    pub(super) fn daemon(&self) -> Option<u32> {
        let credentials = getsockopt(&self.socket, sockopt::PeerCredentials).ok()?;
        u32::try_from(credentials.pid()).ok().filter(|pid| *pid != 0)
    }

    /// Reads a control file.
    ///
    /// # Errors
    /// As reading it at the mount.
    pub(super) fn get(&mut self, path: &str) -> anyhow::Result<Vec<u8>> {
        self.try_get(path)?
            .map_err(|errno| anyhow!("{path}: {}", strerror(errno)))
    }

    /// Returns the contents of a control file, or the errno that reading it at the mount gives.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub(super) fn try_get(&mut self, path: &str) -> anyhow::Result<Result<Vec<u8>, Errno>> {
        self.read(Operation::Get, path)
    }

    /// Writes a control file.
    ///
    /// # Errors
    /// As writing it at the mount.
    pub(super) fn set(&mut self, path: &str, value: &str) -> anyhow::Result<()> {
        self.tell(Operation::Set, path, value)
    }

    /// Makes a group.
    ///
    /// # Errors
    /// As mkdir(2) at the mount.
    pub(super) fn make(&mut self, path: &str) -> anyhow::Result<()> {
        self.tell(Operation::Make, path, "")
    }

    /// Removes a group.
    ///
    /// # Errors
    /// As rmdir(2) at the mount.
    pub(super) fn remove(&mut self, path: &str) -> anyhow::Result<()> {
        self.tell(Operation::Remove, path, "")
    }

    fn tell(&mut self, operation: Operation, path: &str, value: &str) -> anyhow::Result<()> {
        let request = Request {
            operation,
            offset: 0,
            name: path,
            value: value.as_bytes(),
        };
        let mut buffer = vec![0; MAX_ANSWER];
        let answer = self.ask(&request, &mut buffer)?;
        match answer.status {
            0 => Ok(()),
            status => bail!("{path}: {}{}", strerror(errno(status)), reason(answer.part)),
        }
    }

    /// Returns whether a process of ours may begin in a group, or the errno of the refusal.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub(super) fn may_begin(&mut self, group: &str) -> anyhow::Result<Result<(), Errno>> {
        Ok(self.read(Operation::MayBegin, group)?.map(drop))
    }

    /// Returns a JSON line for each process and device, with the contents of these files.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub(super) fn list(&mut self, names: &[&str]) -> anyhow::Result<Vec<u8>> {
        self.lines(Operation::List, names)
    }

    /// Returns a JSON line for each group and device, with the contents of these files.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub(super) fn list_groups(&mut self, names: &[&str]) -> anyhow::Result<Vec<u8>> {
        self.lines(Operation::ListGroups, names)
    }

    fn lines(&mut self, operation: Operation, names: &[&str]) -> anyhow::Result<Vec<u8>> {
        self.read(operation, &names.join("\n"))?
            .map_err(|errno| anyhow!("{}", strerror(errno)))
    }

    /// Reads a text in as many parts as it takes.
    fn read(&mut self, operation: Operation, name: &str) -> anyhow::Result<Result<Vec<u8>, Errno>> {
        let mut text = Vec::new();
        let mut buffer = vec![0; MAX_ANSWER];
        loop {
            let offset = u32::try_from(text.len())?;
            let answer = self.ask(
                &Request {
                    operation,
                    offset,
                    name,
                    value: &[],
                },
                &mut buffer,
            )?;
            if answer.status != 0 {
                return Ok(Err(errno(answer.status)));
            }
            text.extend(answer.part);
            if answer.part.is_empty() || u64::from(answer.total) <= text.len() as u64 {
                return Ok(Ok(text));
            }
        }
    }

    fn ask<'a>(&mut self, request: &Request<'_>, buffer: &'a mut [u8]) -> anyhow::Result<Answer<'a>> {
        send(
            self.socket.as_raw_fd(),
            &request.to_bytes(),
            MsgFlags::MSG_NOSIGNAL,
        )
        .context("cannot send to the daemon")?;
        let length =
            recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()).context("the daemon does not answer")?;
        let packet = buffer.get(..length).unwrap_or_default();
        Answer::from_bytes(packet).map_err(|_| anyhow!("the daemon's answer is invalid"))
    }
}

fn errno(status: u32) -> Errno {
    Errno::from_raw(i32::try_from(status).unwrap_or(libc::EIO))
}

/// Returns the daemon's reason of a refusal behind a colon; empty if it gave none, or only the errno's words.
fn reason(part: &[u8]) -> String {
    match String::from_utf8_lossy(part).into_owned() {
        reason if reason.is_empty() || reason == NOT_FOUND => String::new(),
        reason => format!(": {reason}"),
    }
}

/// Returns the errno's text in the C library's words, as a shell shows it.
pub(super) fn strerror(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    // The standard library adds " (os error N)".
    text.rsplit_once(" (os error")
        .map_or(text.clone(), |(words, _)| words.to_owned())
}
