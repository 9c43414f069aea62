//! The connection to the daemon: one `SOCK_SEQPACKET` socket. Registration passes two descriptors; doorbells
//! follow.
//!
//! This module does not interpret the blocks. Every wait has a time limit.

use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use gcgroup_abi::VERSION;
use gcgroup_abi::message::{self, Answer, Hello, RegistrationReply, Request, RoomQuery, RoomReply, Tag};

use super::packet_socket::{Packet, connect, is_family, receive, receive_into, send_with_file};
use super::patience::{Limit, MOST, Patience};
use crate::sys;
use crate::sys::descriptor::Descriptor;

/// Why the process is not registered.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No daemon listens.
    Absent,
    /// A daemon listens but has closed the connection or not answered in time.
    Unanswered,
    /// The daemon was not asked: this variable's value is not understood, and the program must be governed.
    Misunderstood(&'static str),
    /// The program has no free descriptor.
    NoDescriptor,
    /// The system refuses a call that governing needs.
    Forbidden(io::Error),
    /// The daemon has this other version of the blocks.
    Version(u32),
    /// The daemon refuses this process with this errno; `bars_cuda` if one of its rules forbids CUDA to the
    /// process while it is not governed.
    Refused { errno: u32, bars_cuda: bool },
}

impl Refusal {
    /// Returns whether a retry would fail in the same way.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Version(_) | Self::Forbidden(_) | Self::Misunderstood(_)
        ) || self.is_for_permission()
    }

    /// Returns a number that tells reasons apart, above 1.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Absent => 2,
            Self::Unanswered => 3,
            Self::NoDescriptor => 4,
            Self::Version(_) => 5,
            Self::Forbidden(_) => 6,
            Self::Misunderstood(_) => 7,
            Self::Refused { errno, .. } => errno.saturating_add(8),
        }
    }

    /// Returns whether the daemon says that it has too much to do.
    pub(crate) fn is_for_now(&self) -> bool {
        matches!(self, Self::Refused { errno, .. } if *errno == libc::EAGAIN.cast_unsigned())
    }

    /// Returns whether a listening daemon may admit the process on a retry.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Unanswered) || self.is_for_now()
    }

    /// Returns whether the daemon refuses for lack of permission (EACCES, EPERM).
    pub(crate) fn is_for_permission(&self) -> bool {
        const PERMISSION: [u32; 2] = [libc::EACCES.cast_unsigned(), libc::EPERM.cast_unsigned()];
        matches!(self, Self::Refused { errno, .. } if PERMISSION.contains(errno))
    }
}

/// Classifies an error on an accepted connection.
impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match sys::errno(&error) {
            Some(libc::EMFILE | libc::ENFILE) => Self::NoDescriptor,
            _ if sys::is_refusal(&error) => Self::Forbidden(error),
            _ => Self::Unanswered,
        }
    }
}

/// How long the program waits for a daemon that listens and does not answer, or answers `EAGAIN`: in all its
/// calls together, until one answers. A daemon that is busy has longer ([`Patience`]).
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The pause between two attempts.
pub(crate) const RETRY: Duration = Duration::from_millis(50);

/// Time that the program has waited since a daemon last answered, milliseconds.
static WAITED: AtomicU64 = AtomicU64::new(0);

/// A wait of the program for the daemon.
#[derive(Debug)]
pub(crate) struct Wait {
    began: Instant,
    most: Duration,
}

impl Wait {
    pub(crate) fn begin() -> Self {
        let waited = Duration::from_millis(WAITED.load(Relaxed));
        Self {
            began: Instant::now(),
            most: PATIENCE.saturating_sub(waited).max(RETRY),
        }
    }

    /// Returns how long the wait may last yet.
    pub(crate) fn left(&self) -> Duration {
        self.most.saturating_sub(self.began.elapsed())
    }

    /// Returns how long the wait of a program that must be governed may last yet, if the daemon answers that
    /// it has too much to do.
    pub(crate) fn left_while_busy(&self) -> Duration {
        MOST.saturating_sub(self.began.elapsed())
    }

    /// Returns the limits of one attempt.
    pub(crate) fn limit(&self) -> Limit {
        Limit::of_program(self.left().max(RETRY))
    }

    /// Ends the wait, with an answer of the daemon or without.
    pub(crate) fn end(self, is_answered: bool) {
        if is_answered {
            WAITED.store(0, Relaxed);
        } else {
            let waited = u64::try_from(self.began.elapsed().as_millis());
            WAITED.fetch_add(waited.unwrap_or(0), Relaxed);
        }
    }

    /// Lets a forked child wait anew.
    pub(crate) fn reset_in_child() {
        WAITED.store(0, Relaxed);
    }
}

/// Registers the process. Returns the connection and the control block's file.
///
/// The program may close the connection at any time and open a file of its own under the number.
///
/// # Errors
/// [`Refusal::Absent`] or [`Refusal::Unanswered`] if that happens; otherwise the reason why the process is
/// not registered.
pub(crate) fn register(
    path: &OsStr,
    hello: &Hello,
    usage: &Descriptor,
    limit: Limit,
) -> Result<(Descriptor, Descriptor), Refusal> {
    let socket = connect(path, limit.idle()).map_err(not_connected)?;
    let fd = || socket.get().ok_or(Refusal::Unanswered);
    let patience = Patience::new(limit, fd()?);
    let usage = usage.get().ok_or(Refusal::Unanswered)?;
    send_with_file(fd()?, &hello.to_bytes(), usage)?;
    let packet = reply(&socket, patience)?;
    accepted_reply(socket, packet)
}

/// Asks what the groups of a process that has not registered allow it. Returns `None` if no daemon answers
/// within `patience`.
pub(crate) fn room(path: &OsStr, query: &RoomQuery, patience: Duration) -> Option<RoomReply> {
    let socket = connect(path, patience).ok()?;
    let fd = socket.get()?;
    sys::send(fd, &query.to_bytes());
    let packet = reply(&socket, Patience::new(patience.into(), fd)).ok()?;
    RoomReply::from_bytes(packet.bytes()).ok()
}

/// Classifies an error of [`connect`]. `EAGAIN`: a daemon listens, and its queue has been full for all of the
/// time.
fn not_connected(error: io::Error) -> Refusal {
    let is_full = error.kind() == io::ErrorKind::WouldBlock;
    match error.into() {
        Refusal::Unanswered if !is_full => Refusal::Absent,
        refusal => refusal,
    }
}

/// Waits for the daemon's first packet.
fn reply(socket: &Descriptor, mut patience: Patience) -> Result<Packet, Refusal> {
    let fd = || socket.get().ok_or(Refusal::Unanswered);
    loop {
        let left = patience.left().ok_or(Refusal::Unanswered)?;
        if sys::poll([Some(fd()?)], Some(left)) == [false] {
            continue;
        }
        let fd = fd()?;
        if let Some(packet) = receive(fd)? {
            return Ok(packet);
        }
    }
}

/// Tells the daemon that the process cannot be governed, since it has no usage block to share: a registration
/// without one.
pub(crate) fn excuse(path: &OsStr, hello: &Hello) {
    const PATIENCE: Duration = Duration::from_secs(1);
    if let Ok(socket) = connect(path, PATIENCE)
        && let Some(fd) = socket.get()
    {
        sys::send(fd, &hello.to_bytes());
        // The daemon does not read from a connection that is closed.
        let _ = reply(&socket, Patience::new(PATIENCE.into(), fd));
    }
}

/// Longest text of a [`request`] and of its answer, bytes: a list of 63 devices, twice.
pub(crate) const MAX_TEXT: usize = 8 << 10;

/// Sends a request, and returns the text of the answer.
///
/// # Errors
/// As [`register`]. [`Refusal::Absent`] also if this process or its parent is the daemon, which would wait
/// for itself; [`Refusal::Refused`] with EMSGSIZE if the answer is longer than [`MAX_TEXT`].
pub(crate) fn request(path: &OsStr, request: &Request<'_>, limit: Limit) -> Result<Vec<u8>, Refusal> {
    let socket = connect(path, limit.idle()).map_err(not_connected)?;
    let fd = || socket.get().ok_or(Refusal::Unanswered);
    let mut patience = Patience::new(limit, fd()?);
    if is_family(fd()?) {
        return Err(Refusal::Absent);
    }
    sys::send(fd()?, &request.to_bytes::<Vec<u8>>());
    let mut answer = vec![0; MAX_TEXT];
    loop {
        let left = patience.left().ok_or(Refusal::Unanswered)?;
        if sys::poll([Some(fd()?)], Some(left)) == [false] {
            continue;
        }
        match receive_into(fd()?, &mut answer, &mut []) {
            Ok((_, header)) if header.msg_flags & libc::MSG_TRUNC != 0 => {
                return Err(Refusal::Refused {
                    errno: libc::EMSGSIZE.cast_unsigned(),
                    bars_cuda: false,
                });
            }
            Ok((length, _)) => answer.truncate(length),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        break;
    }
    let answer = Answer::from_bytes(&answer).map_err(|_| Refusal::Unanswered)?;
    match answer.status {
        0 => Ok(answer.part.to_vec()),
        errno => Err(Refusal::Refused {
            errno,
            bars_cuda: false,
        }),
    }
}

fn accepted_reply(socket: Descriptor, packet: Packet) -> Result<(Descriptor, Descriptor), Refusal> {
    let reply = RegistrationReply::from_bytes(packet.bytes()).map_err(|_| Refusal::Unanswered)?;
    if reply.abi != VERSION {
        return Err(Refusal::Version(reply.abi));
    }
    if reply.status != 0 {
        return Err(Refusal::Refused {
            errno: reply.status,
            bars_cuda: reply.bars_cuda,
        });
    }
    match packet.file {
        Some(control) => Ok((socket, Descriptor::here(control)?)),
        None if packet.is_cut => Err(Refusal::NoDescriptor),
        None => Err(Refusal::Unanswered),
    }
}

/// Result of [`listen`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    Doorbell,
    /// The daemon is gone, or the program closed the socket.
    Lost,
}

/// Reads one packet, if there is one.
pub(crate) fn listen(connection: &Descriptor) -> Heard {
    let Some(fd) = connection.get() else {
        return Heard::Lost;
    };
    match receive(fd) {
        Ok(None) => Heard::Nothing,
        Ok(Some(packet)) if packet.bytes().is_empty() => Heard::Lost,
        // A packet kind of a later daemon is treated as a doorbell.
        Ok(Some(_)) => Heard::Doorbell,
        Err(_) => Heard::Lost,
    }
}

/// Rings the daemon to look at the usage block. Returns false if the program closed the connection. If the
/// socket is full, the daemon has been rung already. Any thread of the program may call this.
pub(crate) fn ring(connection: &Descriptor) -> bool {
    let Some(fd) = connection.get() else { return false };
    sys::send(fd, &message::bare(Tag::Doorbell));
    true
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::shared::packet_socket::pair;
    use crate::sys::descriptor;
    use gcgroup_abi::map::USAGE_SIZE;
    use gcgroup_abi::message::MAX_LENGTH;

    #[test]
    fn register_without_listener_is_absent() {
        let usage = Descriptor::new(descriptor::sealed_file(c"usage", USAGE_SIZE).unwrap()).unwrap();
        let path = std::env::temp_dir().join(format!("gcgroup-nobody-{}", std::process::id()));
        let answer = register(
            path.as_os_str(),
            &Hello::PLAIN,
            &usage,
            Duration::from_secs(1).into(),
        );
        assert!(matches!(answer, Err(Refusal::Absent)));
        let long = "x".repeat(200);
        let answer = register(
            long.as_ref(),
            &Hello::PLAIN,
            &usage,
            Duration::from_secs(1).into(),
        );
        assert!(matches!(answer, Err(Refusal::Absent)));
    }

    #[test]
    fn refusal_keeps_its_reason() {
        for (reply, want) in [
            (
                RegistrationReply {
                    abi: VERSION + 1,
                    status: 0,
                    bars_cuda: false,
                },
                format!("Version({})", VERSION + 1),
            ),
            (
                RegistrationReply {
                    abi: VERSION,
                    status: 95,
                    bars_cuda: true,
                },
                "Refused { errno: 95, bars_cuda: true }".to_owned(),
            ),
            (
                RegistrationReply {
                    abi: VERSION,
                    status: 0,
                    bars_cuda: false,
                },
                "Unanswered".to_owned(),
            ),
        ] {
            let (ours, _theirs) = pair();
            let mut buffer = [0; MAX_LENGTH];
            buffer[..RegistrationReply::LENGTH].copy_from_slice(&reply.to_bytes());
            let answer = accepted_reply(
                ours,
                Packet {
                    buffer,
                    length: RegistrationReply::LENGTH,
                    file: None,
                    is_cut: false,
                },
            );
            assert_eq!(format!("{:?}", answer.unwrap_err()), want);
        }
    }

    #[test]
    fn listen_reports_doorbell_and_closed_end() {
        let (ours, theirs) = pair();
        assert_eq!(listen(&ours), Heard::Nothing);
        ring(&ours);
        let packet = receive(theirs.as_raw_fd()).unwrap().unwrap();
        assert_eq!(message::tag(packet.bytes()), Ok(Tag::Doorbell));
        let theirs = Descriptor::new(theirs).unwrap();
        ring(&theirs);
        assert_eq!(listen(&ours), Heard::Doorbell);
        drop(theirs);
        assert_eq!(listen(&ours), Heard::Lost);
    }
}
