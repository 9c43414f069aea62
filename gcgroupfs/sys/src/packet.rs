//! Packets of `SOCK_SEQPACKET` sockets, with and without descriptors.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, sockopt};

#[cfg(test)]
mod tests;

/// Maximum number of descriptors in one message: the kernel's `SCM_MAX_FD`.
const MAX_DESCRIPTORS: usize = 253;

/// A received packet.
#[derive(Debug)]
pub struct Received {
    /// Length of the packet in the buffer, in bytes.
    pub length: usize,
    /// Descriptors received with the packet.
    pub descriptors: Vec<OwnedFd>,
    /// Whether the packet or the list of descriptors was longer than its buffer.
    pub truncated: bool,
}

/// Returns two connected `SOCK_SEQPACKET` sockets, closed on exec.
///
/// # Errors
/// Out of descriptors.
pub fn packet_pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    socket::socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
}

/// Result of [`receive_plain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {
    /// A packet of this many bytes without descriptors. It has been received.
    Packet(usize),
    /// A packet of this many bytes that carries descriptors. It is still in the socket.
    WithRights(usize),
    /// A packet that is longer than the buffer or empty, or the end of the connection.
    Senseless,
}

/// Receives a packet without descriptors, without waiting. Descriptors are never installed here, nor is the
/// last reference to one dropped, because closing it could block for ever.
///
/// # Errors
/// Those of recvmsg(2); `EAGAIN` if there is no packet.
pub fn receive_plain(socket: &OwnedFd, buffer: &mut [u8]) -> nix::Result<Plain> {
    let (length, flags) = peek(socket, buffer)?;
    if flags.contains(MsgFlags::MSG_CTRUNC) {
        return Ok(Plain::WithRights(length.min(buffer.len())));
    }
    if length == 0 || flags.contains(MsgFlags::MSG_TRUNC) {
        return Ok(Plain::Senseless);
    }
    // This is the packet just examined, because no other thread reads here.
    socket::recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT).map(Plain::Packet)
}

/// Peeks at the next packet without room for descriptors: the kernel sets `MSG_CTRUNC` if there are any, and
/// leaves them in the socket.
fn peek(socket: &OwnedFd, buffer: &mut [u8]) -> nix::Result<(usize, MsgFlags)> {
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
    let message = socket::recvmsg::<()>(socket.as_raw_fd(), &mut parts, None, flags)?;
    Ok((message.bytes, message.flags))
}

/// Returns whether a connection that is about to be closed holds packets, without reading them; true also if
/// that is unknown. Closing such a connection can wait for ever, because packets may carry descriptors.
pub fn holds_packets(socket: &OwnedFd) -> bool {
    // If credentials come with packets and there is no room for them, the kernel sets `MSG_CTRUNC` for each
    // packet, also for an empty one, and not for the end of the connection.
    if socket::setsockopt(socket, sockopt::PassCred, &true).is_err() {
        return true;
    }
    // An error of the socket, such as ECONNRESET, is reported once, before the packets.
    let seen = peek(socket, &mut [0]).or_else(|_| peek(socket, &mut [0]));
    match seen {
        Ok((_, flags)) => flags.contains(MsgFlags::MSG_CTRUNC),
        Err(errno) => errno != Errno::EAGAIN,
    }
}

/// Returns whether the socket's other end is closed.
pub fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Receives one packet with its descriptors, without waiting. The daemon never calls it for a client's
/// connection.
///
/// # Errors
/// Those of recvmsg(2); `EAGAIN` if there is no packet.
pub fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> nix::Result<Received> {
    let mut space = nix::cmsg_space!([i32; MAX_DESCRIPTORS]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = socket::recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let truncated = message
        .flags
        .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
    let mut descriptors = Vec::new();
    // An Err means MSG_CTRUNC, and received descriptors would leak; but there is room for the maximum.
    for part in message.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: the kernel has installed these descriptors for this message; they have no other owner.
            descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(Received {
        length: message.bytes,
        descriptors,
        truncated,
    })
}
