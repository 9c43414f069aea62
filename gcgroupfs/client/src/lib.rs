//! Client of the daemon's socket: reads and writes control files, lists processes, makes and removes groups,
//! and begins jobs.
//!
//! The packets are described in `hook/abi/src/message/request.rs`.

pub mod cgroup;

use std::fmt::{self, Display};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use gcgroup_abi::message::{self, Tag};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time for which a client may be used by default, so that a slow daemon cannot hold up its caller for long.
const LIFE: Duration = Duration::from_secs(15);

/// Longest packet of an answer, bytes.
const MAX_ANSWER: usize = 32 << 10;

/// Longest text that is read, bytes.
const MAX_TEXT: usize = 64 << 20;

/// Length of a packet's header, bytes.
const HEADER: usize = 8;

const GET: u32 = 1;
const SET: u32 = 2;
const LIST: u32 = 3;
const MAKE: u32 = 4;
const REMOVE: u32 = 5;
const BEGIN: u32 = 8;
const LIST_GROUPS: u32 = 9;

/// Refusal of a request by the daemon: the errno that the operation gives at the mount, and the reason, which
/// may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub errno: Errno,
    pub why: String,
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.errno.desc())?;
        match self.why.as_str() {
            "" => Ok(()),
            why => write!(f, ": {why}"),
        }
    }
}

/// Connection to the daemon.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    life: Duration,
    end: Instant,
}

impl Client {
    /// Connects, for requests within 15 s.
    ///
    /// # Errors
    /// No daemon listens there.
    pub fn connect(path: &Path) -> anyhow::Result<Self> {
        Self::connect_for(path, LIFE)
    }

    /// Connects, for requests within `life`. The descriptor is closed on exec.
    ///
    /// # Errors
    /// No daemon listens there.
    pub fn connect_for(path: &Path, life: Duration) -> anyhow::Result<Self> {
        let connected = || {
            let socket = socket(
                AddressFamily::Unix,
                SockType::SeqPacket,
                SockFlag::SOCK_CLOEXEC,
                None,
            )?;
            let patience = TimeVal::new(i64::try_from(PATIENCE.as_secs()).unwrap_or(5), 0);
            setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
            setsockopt(&socket, sockopt::SendTimeout, &patience)?;
            connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
            Ok::<_, Errno>(socket)
        };
        let socket =
            connected().map_err(|errno| anyhow!("no daemon at {}: {}", path.display(), errno.desc()))?;
        Ok(Self {
            socket,
            life,
            end: Instant::now() + life,
        })
    }

    /// Returns the text of a control file.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub fn get(&mut self, path: &str) -> anyhow::Result<Result<String, Refusal>> {
        self.read(GET, path)
    }

    /// Writes a control file.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub fn set(&mut self, path: &str, value: &str) -> anyhow::Result<Result<(), Refusal>> {
        self.change(SET, path, value)
    }

    /// Makes a group.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub fn make(&mut self, path: &str) -> anyhow::Result<Result<(), Refusal>> {
        self.change(MAKE, path, "")
    }

    /// Removes a group.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub fn remove(&mut self, path: &str) -> anyhow::Result<Result<(), Refusal>> {
        self.change(REMOVE, path, "")
    }

    /// Returns a JSON line for each process and device, with the contents of these files.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub fn list(&mut self, names: &[&str]) -> anyhow::Result<Result<String, Refusal>> {
        self.read(LIST, &names.join("\n"))
    }

    /// Returns a JSON line for each group, and for each group and device, with the contents of these files.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub fn list_groups(&mut self, names: &[&str]) -> anyhow::Result<Result<String, Refusal>> {
        self.read(LIST_GROUPS, &names.join("\n"))
    }

    /// Makes a transient group for this process and its descendants, which is held while this process
    /// lives. Returns its path. `name` is the group's in `group`; `program` is the path of the job's program,
    /// for the rules.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub fn begin(
        &mut self,
        group: &str,
        name: &str,
        program: &str,
    ) -> anyhow::Result<Result<String, Refusal>> {
        let packet = request(BEGIN, 0, group, &format!("{name}\0{program}"))?;
        let mut path = Vec::new();
        let begun = self.ask(&packet, &mut path)?;
        Ok(begun.map(|_| String::from_utf8_lossy(&path).into_owned()))
    }

    fn change(&mut self, operation: u32, path: &str, value: &str) -> anyhow::Result<Result<(), Refusal>> {
        let packet = request(operation, 0, path, value)?;
        Ok(self.ask(&packet, &mut Vec::new())?.map(drop))
    }

    fn read(&mut self, operation: u32, name: &str) -> anyhow::Result<Result<String, Refusal>> {
        let mut text = Vec::new();
        loop {
            let before = text.len();
            ensure!(
                before < MAX_TEXT,
                "the daemon's answer is longer than {MAX_TEXT} bytes"
            );
            let packet = request(operation, u32::try_from(before)?, name, "")?;
            let total = match self.ask(&packet, &mut text)? {
                Ok(total) => total,
                Err(refusal) => return Ok(Err(refusal)),
            };
            if text.len() == before || text.len() >= total {
                return Ok(Ok(String::from_utf8_lossy(&text).into_owned()));
            }
        }
    }

    /// Sends a request, appends the answer's part to `text`, and returns the length of the whole.
    fn ask(&mut self, packet: &[u8], text: &mut Vec<u8>) -> anyhow::Result<Result<usize, Refusal>> {
        ensure!(
            Instant::now() < self.end,
            "the daemon takes longer than {} s",
            self.life.as_secs()
        );
        let descriptor = self.socket.as_raw_fd();
        send(descriptor, packet, MsgFlags::MSG_NOSIGNAL).context("cannot send to the daemon")?;
        let mut buffer = vec![0; MAX_ANSWER];
        let length =
            recv(descriptor, &mut buffer, MsgFlags::empty()).context("the daemon does not answer")?;
        let answer = buffer.get(..length).unwrap_or_default();
        if message::tag(answer).ok() != Some(Tag::Request) {
            bail!("the daemon's answer is invalid");
        }
        let word = |at: usize| {
            let bytes = answer.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(bytes))
        };
        let (Some(status), Some(total), Some(part)) =
            (word(HEADER), word(HEADER + 4), answer.get(HEADER + 8..))
        else {
            bail!("the daemon's answer is too short");
        };
        if status != 0 {
            return Ok(Err(Refusal {
                errno: Errno::from_raw(i32::try_from(status).unwrap_or_default()),
                why: String::from_utf8_lossy(part).into_owned(),
            }));
        }
        text.extend(part);
        Ok(Ok(usize::try_from(total)?))
    }
}

/// Returns the packet of a request.
///
/// # Errors
/// The name has 4 GiB or more.
fn request(operation: u32, offset: u32, name: &str, value: &str) -> anyhow::Result<Vec<u8>> {
    let mut packet = message::bare(Tag::Request).to_vec();
    for word in [operation, offset, u32::try_from(name.len())?] {
        packet.extend(word.to_le_bytes());
    }
    packet.extend(name.bytes().chain(value.bytes()));
    Ok(packet)
}
