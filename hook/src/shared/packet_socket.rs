//! A `SOCK_SEQPACKET` socket of the process: connects it, and sends and receives packets, each with at most
//! one descriptor.

use std::ffi::OsStr;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use gcgroup_abi::message::MAX_LENGTH;

use crate::sys;
use crate::sys::descriptor::Descriptor;

/// Returns the size of a type as socket calls take it.
#[expect(clippy::cast_possible_truncation, reason = "small structures only")]
const fn length<T>() -> libc::socklen_t {
    assert!(size_of::<T>() < 4096);
    size_of::<T>() as libc::socklen_t
}

#[expect(clippy::cast_possible_truncation, reason = "one")]
const AF_UNIX: libc::sa_family_t = libc::AF_UNIX as libc::sa_family_t;

/// Connects to the socket at `path`. Sending waits for at most `patience`.
pub(super) fn connect(path: &OsStr, patience: Duration) -> io::Result<Descriptor> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(sys::failed("socket"));
    }
    // SAFETY: just opened and not owned elsewhere.
    let socket = Descriptor::new(unsafe { OwnedFd::from_raw_fd(fd) })?;
    let fd = socket.get().ok_or(io::ErrorKind::NotConnected)?;
    let mut address = libc::sockaddr_un {
        sun_family: AF_UNIX,
        sun_path: [0; 108],
    };
    let path = path.as_bytes();
    if path.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::NotFound.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    // A full queue of a hung daemon must not block the program: unix(7), SO_SNDTIMEO.
    let timeout = libc::timeval {
        tv_sec: libc::time_t::try_from(patience.as_secs()).unwrap_or(1),
        // Zero would mean no limit.
        tv_usec: patience.subsec_micros().max(1).into(),
    };
    // SAFETY: option and address are of the sizes given, and outlive the calls.
    let answer = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&raw const timeout).cast(),
            length::<libc::timeval>(),
        );
        libc::connect(fd, (&raw const address).cast(), length::<libc::sockaddr_un>())
    };
    if answer != 0 {
        return Err(sys::failed("connect"));
    }
    Ok(socket)
}

/// Returns the credentials of the process that listens at the other end.
pub(super) fn peer(socket: RawFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = length::<libc::ucred>();
    // SAFETY: room for the credentials, of the size given.
    let answer = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    (answer == 0).then_some(peer)
}

/// Returns whether the process that listens at the other end is this one or its parent.
pub(super) fn is_family(socket: RawFd) -> bool {
    // SAFETY: take nothing, cannot fail.
    let family = unsafe { [libc::getpid(), libc::getppid()] };
    // The machine's first process may listen for a service, and is the parent of many.
    peer(socket).is_some_and(|peer| peer.pid > 1 && family.contains(&peer.pid))
}

/// Buffer for a control message with one descriptor, aligned as cmsg(3) requires.
type Ancillary = [u64; 4];
const _: () = {
    // SAFETY: arithmetic only.
    assert!(unsafe { libc::CMSG_SPACE(length::<RawFd>()) } as usize <= size_of::<Ancillary>());
};

/// Sends a packet with a descriptor.
pub(super) fn send_with_file(socket: RawFd, bytes: &[u8], file: RawFd) -> io::Result<()> {
    let mut ancillary: Ancillary = [0; 4];
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut header = header(&mut part, &mut ancillary);
    // SAFETY: the header names `ancillary`, which has room for one message with one descriptor, asserted
    // above.
    let sent = unsafe {
        header.msg_controllen = libc::CMSG_SPACE(length::<RawFd>()) as usize;
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        (*message).cmsg_level = libc::SOL_SOCKET;
        (*message).cmsg_type = libc::SCM_RIGHTS;
        (*message).cmsg_len = libc::CMSG_LEN(length::<RawFd>()) as usize;
        libc::CMSG_DATA(message).cast::<RawFd>().write_unaligned(file);
        libc::sendmsg(socket, &raw const header, libc::MSG_NOSIGNAL)
    };
    if sent == bytes.len().cast_signed() {
        Ok(())
    } else {
        Err(sys::failed("sendmsg"))
    }
}

/// A received packet.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) buffer: [u8; MAX_LENGTH],
    pub(super) length: usize,
    pub(super) file: Option<OwnedFd>,
    /// Whether the kernel dropped control data for lack of room (`MSG_CTRUNC`).
    pub(super) is_cut: bool,
}

impl Packet {
    /// Returns the packet's bytes; empty if the other end is closed.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.length).unwrap_or(&[])
    }
}

/// Receives the next packet, with its descriptor if it has one. Returns `None` if there is none yet.
pub(super) fn receive(socket: RawFd) -> io::Result<Option<Packet>> {
    let mut packet = Packet {
        buffer: [0; MAX_LENGTH],
        length: 0,
        file: None,
        is_cut: false,
    };
    let mut ancillary: Ancillary = [0; 4];
    let (length, header) = match receive_into(socket, &mut packet.buffer, &mut ancillary) {
        Ok(received) => received,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
    };
    packet.length = length;
    packet.is_cut = header.msg_flags & libc::MSG_CTRUNC != 0;
    // SAFETY: the kernel filled in the header and `ancillary`; a null pointer means no message.
    let message = unsafe { libc::CMSG_FIRSTHDR(&raw const header).as_ref() };
    if let Some(message) =
        message.filter(|m| m.cmsg_type == libc::SCM_RIGHTS && m.cmsg_level == libc::SOL_SOCKET)
    {
        // SAFETY: a message of this type carries at least one descriptor, just opened for us.
        packet.file =
            Some(unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(message).cast::<RawFd>().read_unaligned()) });
    }
    Ok(Some(packet))
}

/// Receives the next packet. Returns its length, and the header, which refers to `ancillary`.
pub(super) fn receive_into(
    socket: RawFd,
    buffer: &mut [u8],
    ancillary: &mut [u64],
) -> io::Result<(usize, libc::msghdr)> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut header = header(&mut part, ancillary);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names a buffer and room for control messages that outlive the call.
    let length = unsafe { libc::recvmsg(socket, &raw mut header, flags) };
    let length = usize::try_from(length).map_err(|_| sys::failed("recvmsg"))?;
    header.msg_iov = std::ptr::null_mut();
    Ok((length, header))
}

fn header(part: &mut libc::iovec, ancillary: &mut [u64]) -> libc::msghdr {
    // SAFETY: all zeroes is an empty header.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header.msg_control = ancillary.as_mut_ptr().cast();
    header.msg_controllen = std::mem::size_of_val(ancillary);
    header
}

/// Makes both ends of a connection like the daemon's.
#[cfg(test)]
pub(super) fn pair() -> (Descriptor, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let answer = unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
            ends.as_mut_ptr(),
        )
    };
    assert_eq!(answer, 0);
    // SAFETY: just made.
    let [ours, theirs] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    (Descriptor::new(ours).unwrap(), theirs)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::sys::descriptor;
    use gcgroup_abi::VERSION;
    use gcgroup_abi::map::CONTROL_SIZE;
    use gcgroup_abi::message::RegistrationReply;

    #[test]
    fn descriptor_is_received_with_packet() {
        let (ours, theirs) = pair();
        let file = descriptor::sealed_file(c"control", CONTROL_SIZE).unwrap();
        send_with_file(
            theirs.as_raw_fd(),
            &RegistrationReply {
                abi: VERSION,
                status: 0,
                bars_cuda: false,
            }
            .to_bytes(),
            file.as_raw_fd(),
        )
        .unwrap();
        let packet = receive(ours.get().unwrap()).unwrap().unwrap();
        assert!(RegistrationReply::from_bytes(packet.bytes()).is_ok());
        assert!(descriptor::has_fixed_size(
            packet.file.as_ref().unwrap(),
            CONTROL_SIZE
        ));
    }
}
