//! Client of the daemon's socket. The packets are described in `gcgroupfs/server/src/protocol.rs`.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use gcgroup_abi::message::{self, Tag};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// Longest wait for one answer, and for a daemon that is being restarted.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two attempts to reach the daemon.
const RETRY: Duration = Duration::from_millis(50);

/// Longest packet of an answer, bytes.
const MAX_ANSWER: usize = 32 << 10;

/// Longest text that is read, bytes.
const MAX_TEXT: usize = 1 << 20;

/// Length of a packet's header, bytes.
const HEADER: usize = 8;

const GET: u32 = 1;
const SET: u32 = 2;
const BEGIN: u32 = 8;

/// A request that the daemon refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    why: String,
}

impl Refusal {
    fn describe(&self) -> String {
        match self.why.as_str() {
            "" => self.errno.desc().to_owned(),
            why => format!("{}: {why}", self.errno.desc()),
        }
    }
}

/// Connection to the daemon.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
}

impl Client {
    /// Connects. The descriptor is closed on exec, so tasks do not inherit it.
    ///
    /// # Errors
    /// No daemon listens there.
    pub(crate) fn connect(path: &Path) -> anyhow::Result<Self> {
        let connected = || {
            let flags = SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
            let patience = TimeVal::new(i64::try_from(PATIENCE.as_secs()).unwrap_or(5), 0);
            setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
            setsockopt(&socket, sockopt::SendTimeout, &patience)?;
            connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
            Ok::<_, Errno>(socket)
        };
        let socket =
            connected().map_err(|errno| anyhow!("no daemon at {}: {}", path.display(), errno.desc()))?;
        Ok(Self { socket })
    }

    /// Connects, for [`PATIENCE`], since the daemon may be restarting.
    ///
    /// # Errors
    /// No daemon listens there.
    pub(crate) fn connect_patiently(path: &Path) -> anyhow::Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Self::connect(path) {
                Err(_) if Instant::now() < deadline => thread::sleep(RETRY),
                connected => return connected,
            }
        }
    }

    /// Returns the text of a control file.
    ///
    /// # Errors
    /// No daemon answers, or it refuses.
    pub(crate) fn get(&mut self, path: &str) -> anyhow::Result<String> {
        let mut text = Vec::new();
        loop {
            let before = text.len();
            let packet = request(GET, u32::try_from(before)?, path, b"")?;
            let total = self
                .ask(&packet, &mut text)?
                .map_err(|refusal| anyhow!("{path}: {}", refusal.describe()))?;
            if text.len() == before || text.len() >= total || text.len() > MAX_TEXT {
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
        }
    }

    /// Writes a control file.
    ///
    /// # Errors
    /// No daemon answers, or it refuses.
    pub(crate) fn set(&mut self, path: &str, value: &str) -> anyhow::Result<()> {
        let packet = request(SET, 0, path, value.as_bytes())?;
        let answer = self.ask(&packet, &mut Vec::new())?;
        answer
            .map(drop)
            .map_err(|refusal| anyhow!("{path} = {value}: {}", refusal.describe()))
    }

    /// Makes a transient group for this process and its descendants, which is held while this process lives
    /// or the connection is open. Returns its path and the connection, which takes no further requests.
    ///
    /// # Errors
    /// No daemon answers.
    pub(crate) fn begin(
        mut self,
        group: &str,
        name: &str,
    ) -> anyhow::Result<Result<(String, OwnedFd), Refusal>> {
        let mut value = name.as_bytes().to_vec();
        value.push(0);
        value.extend(b"/usr/sbin/slurmstepd");
        let packet = request(BEGIN, 0, group, &value)?;
        let mut path = Vec::new();
        Ok(match self.ask(&packet, &mut path)? {
            Ok(_) => Ok((String::from_utf8_lossy(&path).into_owned(), self.socket)),
            Err(refusal) => Err(refusal),
        })
    }

    /// Sends a request, appends the answer's part to `text`, and returns the length of the whole.
    fn ask(&mut self, packet: &[u8], text: &mut Vec<u8>) -> anyhow::Result<Result<usize, Refusal>> {
        let descriptor = self.socket.as_raw_fd();
        send(descriptor, packet, MsgFlags::MSG_NOSIGNAL).context("cannot send to the daemon")?;
        let mut buffer = vec![0; MAX_ANSWER];
        let length =
            recv(descriptor, &mut buffer, MsgFlags::empty()).context("the daemon does not answer")?;
        let answer = buffer.get(..length).unwrap_or_default();
        if message::tag(answer).ok() != Some(Tag::Request) {
            bail!("the daemon's answer is invalid");
        }
        let word = |at: usize| Some(u32::from_le_bytes(*answer.get(at..)?.first_chunk()?));
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

/// Makes the group of a step for this process, for [`PATIENCE`]: the daemon may be restarting, and the group
/// of an earlier run of the step exists until the daemon has noticed its end.
///
/// # Errors
/// The daemon refuses, or does not answer.
pub(crate) fn begin_patiently(socket: &Path, group: &str, name: &str) -> anyhow::Result<(String, OwnedFd)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let begun = Client::connect_patiently(socket)?.begin(group, name)?;
        match begun {
            Ok(begun) => return Ok(begun),
            Err(Refusal {
                errno: Errno::EEXIST | Errno::EAGAIN,
                ..
            }) if Instant::now() < deadline => thread::sleep(RETRY),
            Err(refusal) => bail!("group {group}/{name}: {}", refusal.describe()),
        }
    }
}

/// Returns the packet of a request.
fn request(operation: u32, offset: u32, name: &str, value: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut packet = message::bare(Tag::Request).to_vec();
    for word in [operation, offset, u32::try_from(name.len())?] {
        packet.extend(word.to_le_bytes());
    }
    packet.extend(name.bytes().chain(value.iter().copied()));
    Ok(packet)
}
