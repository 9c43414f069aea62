//! Client of the daemon's socket, for the command line.

use std::fmt::{self, Display};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use gcgroup_abi::message::{Answer, MAX_ANSWER, MAX_REQUEST, Operation, Request};
use libc::time_t;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockFlag, UnixAddr, connect, getsockopt, recv, send, setsockopt, sockopt};
use nix::sys::time::TimeVal;

use gcgroupfs_model::tree::Explanation;
use gcgroupfs_server::socket::new_socket;

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
    /// As reading it at the mount, with the daemon's explanation.
    pub(super) fn get(&mut self, path: &str) -> anyhow::Result<Vec<u8>> {
        self.try_get(path)?
            .map_err(|refusal| anyhow!("{path}: {refusal}"))
    }

    /// Returns the contents of a control file, or the refusal.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub(super) fn try_get(&mut self, path: &str) -> anyhow::Result<Result<Vec<u8>, Refusal>> {
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
        match Refusal::of(&self.ask(&request, &mut buffer)?) {
            None => Ok(()),
            Some(refusal) => bail!("{path}: {refusal}"),
        }
    }

    /// Returns whether a process of ours may begin in a group, or the refusal.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub(super) fn may_begin(&mut self, group: &str) -> anyhow::Result<Result<(), Refusal>> {
        Ok(self.read(Operation::MayBegin, group)?.map(drop))
    }

    /// Returns the UUIDs of the devices that a process of ours in `group` may use; an empty name: where it
    /// would begin. `None`: all, or the daemon does not tell.
    pub(super) fn devices(&mut self, group: &str) -> Option<Vec<String>> {
        let answer = self.read(Operation::Devices, group).ok()?.ok()?;
        let text = String::from_utf8(answer).ok()?;
        let (uuids, _) = text.split_once('\n')?;
        let uuids = uuids.split(',').filter(|uuid| !uuid.is_empty());
        Some(uuids.map(str::to_owned).collect())
    }

    /// Explains a process or a group. `None`: there is none of that name.
    ///
    /// # Errors
    /// The daemon refuses, or does not answer.
    pub(super) fn explain(&mut self, path: &str) -> anyhow::Result<Option<Explanation>> {
        match self.read(Operation::Explain, path)? {
            Ok(text) => Ok(Some(
                serde_json::from_slice(&text).context("the daemon's answer is invalid")?,
            )),
            Err(refusal) if refusal.errno == Errno::ENOENT => Ok(None),
            Err(refusal) => bail!("{path}: {refusal}"),
        }
    }

    /// Holds values, `FILE VALUE`, on processes and groups for this process until it ends; or returns the
    /// refusal.
    ///
    /// # Errors
    /// No daemon answers, its answer is invalid, or the request is too long.
    pub(super) fn hold(
        &mut self,
        values: &[String],
        paths: &[String],
    ) -> anyhow::Result<Result<(), Refusal>> {
        let paths = paths.join("\n");
        let request = Request {
            operation: Operation::Hold,
            offset: 0,
            name: &values.join("\n"),
            value: paths.as_bytes(),
        };
        if request.to_bytes::<Vec<u8>>().len() > MAX_REQUEST {
            bail!("too many names: their list is longer than {MAX_REQUEST} bytes");
        }
        let mut buffer = vec![0; MAX_ANSWER];
        Ok(Refusal::of(&self.ask(&request, &mut buffer)?).map_or(Ok(()), Err))
    }

    /// Makes a transient group for the program that this process is about to execute, and for its
    /// descendants. Returns its path, or the refusal. Without a name the group is named `job-PID`.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub(super) fn begin(
        &mut self,
        group: Option<&str>,
        name: Option<&str>,
        program: &Path,
    ) -> anyhow::Result<Result<String, Refusal>> {
        let mut value = name.unwrap_or_default().as_bytes().to_vec();
        value.push(0);
        value.extend(program.as_os_str().as_bytes());
        let request = Request {
            operation: Operation::Begin,
            offset: 0,
            name: group.unwrap_or_default(),
            value: &value,
        };
        let mut buffer = vec![0; MAX_ANSWER];
        let answer = self.ask(&request, &mut buffer)?;
        if let Some(refusal) = Refusal::of(&answer) {
            return Ok(Err(refusal));
        }
        Ok(Ok(String::from_utf8(answer.part.to_vec())?))
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
            .map_err(|refusal| anyhow!("{refusal}"))
    }

    /// Reads a text in as many parts as it takes.
    fn read(&mut self, operation: Operation, name: &str) -> anyhow::Result<Result<Vec<u8>, Refusal>> {
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
            if let Some(refusal) = Refusal::of(&answer) {
                return Ok(Err(refusal));
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
            &request.to_bytes::<Vec<u8>>(),
            MsgFlags::MSG_NOSIGNAL,
        )
        .context("cannot send to the daemon")?;
        let length =
            recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()).context("the daemon does not answer")?;
        let packet = buffer.get(..length).unwrap_or_default();
        Answer::from_bytes(packet).map_err(|_| anyhow!("the daemon's answer is invalid"))
    }
}

/// A request that the daemon refused.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The error of the same operation at the mount.
    pub(super) errno: Errno,
    /// The daemon's explanation; empty from an earlier daemon.
    why: String,
}

impl Refusal {
    /// Returns the refusal in an answer, if it is one.
    fn of(answer: &Answer<'_>) -> Option<Self> {
        let status = i32::try_from(answer.status).unwrap_or(libc::EIO);
        (status != 0).then(|| Self {
            errno: Errno::from_raw(status),
            why: String::from_utf8_lossy(answer.part).into_owned(),
        })
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&strerror(self.errno))?;
        if self.why.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.why)
    }
}

/// Returns the errno's text in the C library's words, as a shell shows it.
fn strerror(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    // The standard library adds " (os error N)".
    text.rsplit_once(" (os error")
        .map_or(text.clone(), |(words, _)| words.to_owned())
}
