//! Client of the daemon's socket: its requests ([`Client`]), and one picture of a node ([`node`]).
//!
//! The packets are described in `hook/abi/src/message/request.rs`.

pub mod cgroup;
pub mod node;
mod refusal;

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use gcgroup_abi::message::{Answer, MAX_ANSWER, MAX_REQUEST, Operation, Request};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, getsockopt, recv, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;

pub use self::refusal::Refusal;
use self::refusal::strerror;

/// Longest wait for one answer of a daemon that does nothing, unless another is given.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait of a [patient](Client::patiently) client for one answer.
const MOST_PATIENCE: Duration = Duration::from_secs(60);

/// Longest text that is read, bytes.
const MAX_TEXT: usize = 64 << 20;

const SILENT: &str = "the daemon does not answer";

/// Answer to a request. The outer error: no daemon answers, or its answer is invalid.
pub type Answered<T> = anyhow::Result<Result<T, Refusal>>;

/// Connection to the daemon.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    /// Time for all requests together, and its end.
    life: Option<(Duration, Option<Instant>)>,
    /// Whether it waits longer for an answer while the daemon works.
    is_patient: bool,
    /// Whether an answer is outstanding that nobody waits for any more: it would be taken for the next one.
    is_lost: bool,
    /// Room for one answer.
    buffer: Vec<u8>,
}

impl Client {
    /// Connects. The connection and each answer take at most 5 s, an answer of a busy daemon longer
    /// ([`patiently`](Self::patiently)).
    ///
    /// # Errors
    /// No daemon listens there.
    pub fn connect(path: &Path) -> anyhow::Result<Self> {
        Ok(Self::connect_with(path, PATIENCE)?.patiently())
    }

    /// Connects. The connection and each answer take at most `patience`, which is not zero. The descriptor is
    /// closed on exec.
    ///
    /// # Errors
    /// No daemon listens there.
    pub fn connect_with(path: &Path, patience: Duration) -> anyhow::Result<Self> {
        let connected = || {
            let flags = SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
            let patience = TimeVal::new(
                patience.as_secs().try_into().unwrap_or(i64::MAX),
                patience.subsec_micros().into(),
            );
            setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
            setsockopt(&socket, sockopt::SendTimeout, &patience)?;
            connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
            Ok::<_, Errno>(socket)
        };
        let path = path.display();
        let socket = connected().map_err(|errno| match errno {
            Errno::EAGAIN => anyhow!("the daemon at {path} does not answer: its queue of clients is full"),
            errno => anyhow!("no daemon at {path}: {}", strerror(errno)),
        })?;
        Ok(Self {
            socket,
            life: None,
            is_patient: false,
            is_lost: false,
            buffer: vec![0; MAX_ANSWER],
        })
    }

    /// Waits for each answer as long as the daemon works, but at most a minute: on a busy machine it may be
    /// slow, and a daemon that hangs does nothing.
    #[must_use]
    pub fn patiently(self) -> Self {
        Self {
            is_patient: true,
            ..self
        }
    }

    /// Bounds the time of all requests together, so that a slow daemon cannot hold up the caller for long.
    #[must_use]
    pub fn within(self, life: Duration) -> Self {
        Self {
            life: Some((life, Instant::now().checked_add(life))),
            is_patient: false,
            ..self
        }
    }

    /// Returns the pid of the daemon, if it is in a pid namespace that can be seen from here.
    pub fn daemon(&self) -> Option<u32> {
        let credentials = getsockopt(&self.socket, sockopt::PeerCredentials).ok()?;
        u32::try_from(credentials.pid()).ok().filter(|pid| *pid != 0)
    }

    /// Returns the text of a control file.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn get(&mut self, path: &str) -> Answered<String> {
        self.read(Operation::Get, path)
    }

    /// Writes a control file.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn set(&mut self, path: &str, value: &str) -> Answered<()> {
        self.tell(Operation::Set, path, value.as_bytes())
    }

    /// Makes a group.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn make(&mut self, path: &str) -> Answered<()> {
        self.tell(Operation::Make, path, &[])
    }

    /// Removes a group.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn remove(&mut self, path: &str) -> Answered<()> {
        self.tell(Operation::Remove, path, &[])
    }

    /// Asks whether a process of this user may begin in a group.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn may_begin(&mut self, group: &str) -> Answered<()> {
        self.tell(Operation::MayBegin, group, &[])
    }

    /// Explains a process or a group, as JSON.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn explain(&mut self, path: &str) -> Answered<String> {
        self.read(Operation::Explain, path)
    }

    /// Returns a JSON line for each event with a higher number than `last`, the oldest first.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn events(&mut self, last: u64) -> Answered<String> {
        self.read(Operation::Events, &last.to_string())
    }

    /// Returns a JSON line for each program that has ended, the oldest first; with a `pid`, of that process
    /// only. There may be empty lines.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn ended(&mut self, pid: Option<u32>) -> Answered<String> {
        self.read(
            Operation::Ended,
            &pid.map_or(String::new(), |pid| pid.to_string()),
        )
    }

    /// Returns a JSON line for each process, and for each process and device, with the contents of these
    /// files.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn list(&mut self, files: &[&str]) -> Answered<String> {
        self.lines(Operation::List, files)
    }

    /// Returns a JSON line for each group, and for each group and device, with the contents of these files.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn list_groups(&mut self, files: &[&str]) -> Answered<String> {
        self.lines(Operation::ListGroups, files)
    }

    fn lines(&mut self, operation: Operation, files: &[&str]) -> Answered<String> {
        let answered = self.read(operation, &files.join("\n"))?;
        Ok(answered.map_err(|refusal| Refusal {
            path: String::new(),
            ..refusal
        }))
    }

    /// Returns the UUIDs of the devices that a process of this user in `group` may use; an empty name: where
    /// it would begin. `None`: all, or the daemon does not tell.
    pub fn devices(&mut self, group: &str) -> Option<Vec<String>> {
        let text = self.read(Operation::Devices, group).ok()?.ok()?;
        let (uuids, _) = text.split_once('\n')?;
        let uuids = uuids.split(',').filter(|uuid| !uuid.is_empty());
        Some(uuids.map(str::to_owned).collect())
    }

    /// Holds values, `FILE VALUE`, on processes and groups for this process until it ends.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn hold(&mut self, values: &[String], paths: &[String]) -> Answered<()> {
        let answered = self.tell(Operation::Hold, &values.join("\n"), paths.join("\n").as_bytes())?;
        Ok(answered.map_err(|refusal| Refusal {
            path: paths.join(" "),
            ..refusal
        }))
    }

    /// Makes a transient group for the program that this process is about to execute, and for its
    /// descendants. The group is held while this process lives. Returns its path. Without a `group` the
    /// daemon chooses where it lies; without a `name` it is named `job-PID`. `program` is for the rules.
    ///
    /// # Errors
    /// As [`Answered`].
    pub fn begin(&mut self, group: &str, name: &str, program: &Path) -> Answered<String> {
        let value = [name.as_bytes(), b"\0", program.as_os_str().as_bytes()].concat();
        let mut text = Vec::new();
        let begun = self.ask(Operation::Begin, group, &value, &mut text)?;
        Ok(begun.map(|_| lossy(text)))
    }

    /// Returns a text that changes when the daemon's main thread, which answers clients, runs; `None` if the
    /// kernel does not tell.
    fn work(&self) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/schedstat", self.daemon()?)).ok()
    }

    fn tell(&mut self, operation: Operation, path: &str, value: &[u8]) -> Answered<()> {
        Ok(self.ask(operation, path, value, &mut Vec::new())?.map(drop))
    }

    /// Reads a text in as many parts as it takes.
    fn read(&mut self, operation: Operation, name: &str) -> Answered<String> {
        let mut text = Vec::new();
        loop {
            let before = text.len();
            ensure!(
                before < MAX_TEXT,
                "the daemon's answer is longer than {MAX_TEXT} bytes"
            );
            let total = match self.ask(operation, name, &[], &mut text)? {
                Ok(total) => total,
                Err(refusal) => return Ok(Err(refusal)),
            };
            if text.len() == before || text.len() >= total {
                return Ok(Ok(lossy(text)));
            }
        }
    }

    /// Sends a request for the text that follows `text`, appends the answer's part to it, and returns the
    /// length of the whole.
    fn ask(&mut self, operation: Operation, name: &str, value: &[u8], text: &mut Vec<u8>) -> Answered<usize> {
        if let Some((life, Some(end))) = self.life {
            ensure!(
                Instant::now() < end,
                "the daemon takes longer than {} s",
                life.as_secs()
            );
        }
        let packet: Vec<u8> = Request {
            operation,
            offset: u32::try_from(text.len())?,
            name,
            value,
        }
        .to_bytes();
        ensure!(
            packet.len() <= MAX_REQUEST,
            "the request is longer than {MAX_REQUEST} bytes"
        );
        ensure!(!self.is_lost, SILENT);
        let length = self.exchange(&packet);
        self.is_lost = length.is_err();
        let answer = self.buffer.get(..length?).unwrap_or_default();
        let answer = Answer::from_bytes(answer).map_err(|_| anyhow!("the daemon's answer is invalid"))?;
        if answer.status != 0 {
            return Ok(Err(Refusal {
                path: name.to_owned(),
                errno: Errno::from_raw(answer.status.try_into().unwrap_or(Errno::EIO as i32)),
                why: String::from_utf8_lossy(answer.part).into_owned(),
            }));
        }
        text.extend_from_slice(answer.part);
        Ok(Ok(usize::try_from(answer.total)?))
    }

    /// Sends a request, waits for its answer, which is in the buffer then, and returns its length.
    ///
    /// # Errors
    /// The daemon does not answer in time.
    fn exchange(&mut self, packet: &[u8]) -> anyhow::Result<usize> {
        let descriptor = self.socket.as_raw_fd();
        let (began, mut worked) = (Instant::now(), self.is_patient.then(|| self.work()).flatten());
        send(descriptor, packet, MsgFlags::MSG_NOSIGNAL).context("cannot send to the daemon")?;
        loop {
            match recv(descriptor, &mut self.buffer, MsgFlags::empty()) {
                Err(Errno::EAGAIN) if worked.is_some() && began.elapsed() < MOST_PATIENCE => {
                    let before = std::mem::replace(&mut worked, self.work());
                    ensure!(worked != before, SILENT);
                }
                Err(Errno::EAGAIN) => bail!(SILENT),
                received => return received.context(SILENT),
            }
        }
    }
}

/// Returns the text of bytes that the daemon wrote as text.
fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::socketpair;

    use super::*;

    #[test]
    fn late_answer_is_not_taken_for_that_of_the_next_request() {
        let flags = SockFlag::empty();
        let (near, far) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        setsockopt(&near, sockopt::ReceiveTimeout, &TimeVal::new(0, 1)).unwrap();
        let mut client = Client {
            socket: near,
            life: None,
            is_patient: false,
            is_lost: false,
            buffer: vec![0; MAX_ANSWER],
        };
        let first = client.get("first").unwrap_err();
        let late: Vec<u8> = Answer::part(b"of the first", 0).to_bytes();
        send(far.as_raw_fd(), &late, MsgFlags::empty()).unwrap();
        let second = client.get("second").unwrap_err();
        assert_eq!([first, second].map(|error| error.to_string()), [SILENT; 2]);
    }
}
