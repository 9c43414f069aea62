//! The system calls and mappings that need `unsafe`: the only module of the daemon that has any.
//!
//! Everything here turns a raw descriptor, address or system call into an owned or borrowed value that cannot
//! be misused. It knows nothing of messages, processes or files.

#![allow(unsafe_code, reason = "the one module that is allowed to; see main.rs")]

use std::fmt;
use std::io::{self, IoSliceMut};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use gcgroup_abi::{Control, Usage, map};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, sockopt};

/// The most descriptors one message can carry: the kernel's `SCM_MAX_FD`.
const MAX_DESCRIPTORS: usize = 253;

/// A control block, mapped writable.
pub struct ControlMap(MmapRaw);

impl ControlMap {
    /// Maps a file of exactly [`map::CONTROL_SIZE`] bytes; the caller has made it so.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn new(file: &impl AsFd) -> io::Result<Self> {
        let file = file.as_fd().as_raw_fd();
        Ok(Self(MmapOptions::new().len(map::CONTROL_SIZE).map_raw(file)?))
    }
}

impl Deref for ControlMap {
    type Target = Control;

    fn deref(&self) -> &Control {
        // SAFETY: page-aligned, CONTROL_SIZE long, mapped for as long as `self` lives.
        unsafe { map::control(self.0.as_ptr()) }
    }
}

impl fmt::Debug for ControlMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlMap")
    }
}

/// A usage block, mapped. Writable, since one word for each device is the daemon's.
pub struct UsageMap(MmapRaw);

impl UsageMap {
    /// Maps a file of exactly [`map::USAGE_SIZE`] bytes that cannot shrink; the caller has checked it.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn new(file: &impl AsFd) -> io::Result<Self> {
        let file = file.as_fd().as_raw_fd();
        Ok(Self(MmapOptions::new().len(map::USAGE_SIZE).map_raw(file)?))
    }
}

/// All of a usage block, for tests that write it without regard to what it means.
#[cfg(any(test, fuzzing))]
pub fn words(usage: &Usage) -> &[std::sync::atomic::AtomicU64] {
    let words = std::ptr::from_ref(usage).cast();
    // SAFETY: the block is nothing but atomics, page-aligned and USAGE_SIZE long, and as long borrowed.
    unsafe { std::slice::from_raw_parts(words, map::USAGE_SIZE / 8) }
}

impl Deref for UsageMap {
    type Target = Usage;

    fn deref(&self) -> &Usage {
        // SAFETY: page-aligned, USAGE_SIZE long, mapped for as long as `self` lives.
        unsafe { map::usage(self.0.as_ptr()) }
    }
}

impl fmt::Debug for UsageMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UsageMap")
    }
}

/// Wakes every thread, of any process, that waits on `word` (`FUTEX_WAKE` on shared memory).
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE reads nothing but the address, which is that of a live word.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

/// A descriptor for the process that `pid` names now: pidfd_open(2), Linux 5.3.
///
/// # Errors
/// `ESRCH` if there is none.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    new_descriptor(fd)
}

/// A descriptor for the thread that `tid` names now: pidfd_open(2) with `PIDFD_THREAD`, Linux 6.9.
///
/// # Errors
/// `ESRCH` if there is none.
pub fn pidfd_open_thread(tid: i32) -> io::Result<OwnedFd> {
    // PIDFD_THREAD, in the kernel's include/uapi/linux/pidfd.h.
    const THREAD: i32 = libc::O_EXCL;
    // SAFETY: takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, THREAD) };
    new_descriptor(fd)
}

/// A copy of another thread's descriptor: pidfd_getfd(2), Linux 5.6.
///
/// # Errors
/// What pidfd_getfd(2) says.
pub fn pidfd_getfd(pidfd: &impl AsFd, number: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_fd().as_raw_fd(), number, 0) };
    new_descriptor(fd)
}

fn new_descriptor(fd: i64) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel just gave us this descriptor; nobody else has it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes a descriptor that was inherited under this number, and closes it on the next exec.
///
/// # Errors
/// `EBADF` if there is none.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) with F_SETFD takes integers.
    if number < 3 || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open, and its number came with the command line: nobody here has taken it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Puts what `with` is open on in the place of what `number` is open on.
///
/// # Errors
/// What dup3(2) says.
pub fn replace(number: i32, with: &impl AsFd) -> io::Result<()> {
    // SAFETY: takes integers; whoever owns `number` goes on owning it.
    let done = unsafe { libc::dup3(with.as_fd().as_raw_fd(), number, libc::O_CLOEXEC) };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Closes every descriptor from this number on: close_range(2), Linux 5.9. For a process that has just begun,
/// which has not opened any itself.
///
/// # Errors
/// The kernel is too old.
pub fn close_from(number: u32) -> io::Result<()> {
    // SAFETY: takes integers. Nobody here owns what is closed: the process has it from who executed it.
    if unsafe { libc::syscall(libc::SYS_close_range, number, u32::MAX, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Has every descriptor from this number on closed on exec: close_range(2) with `CLOSE_RANGE_CLOEXEC`, Linux
/// 5.11.
///
/// # Errors
/// The kernel is too old.
pub fn close_on_exec_from(number: u32) -> io::Result<()> {
    // SAFETY: takes integers, and closes nothing here.
    let done = unsafe { libc::syscall(libc::SYS_close_range, number, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The supplementary groups of who connected the socket's other end, as they were then (`SO_PEERGROUPS`,
/// Linux 4.13).
///
/// # Errors
/// The socket is none of ours.
pub fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<u32> = vec![0; 32];
    loop {
        let room = size_of_val(groups.as_slice());
        let mut length = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        // SAFETY: writes at most `length` bytes, of which there is room for `room`, and the length.
        let done = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let error = io::Error::last_os_error();
        let there = length as usize / size_of::<u32>();
        match (done, error.raw_os_error()) {
            (0, _) => {
                groups.truncate(there);
                return Ok(groups);
            }
            // Too many: the length is what it takes.
            (_, Some(libc::ERANGE)) if there > groups.len() => groups.resize(there, 0),
            _ => return Err(error),
        }
    }
}

/// Accepts one connection, non-blocking and closed on exec.
///
/// # Errors
/// What accept4(2) says; `EAGAIN` if nobody waits.
pub fn accept(listener: &impl AsFd) -> nix::Result<OwnedFd> {
    let fd = socket::accept4(
        listener.as_fd().as_raw_fd(),
        SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
    )?;
    // SAFETY: accept4 just gave us this descriptor; nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// One packet, as it came.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the buffer that are the packet.
    pub length: usize,
    /// Every descriptor that came along.
    pub descriptors: Vec<OwnedFd>,
    /// The packet, or the list of descriptors, was longer than the room for it.
    pub truncated: bool,
}

/// Two connected `SOCK_SEQPACKET` sockets, closed on exec.
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

/// The next packet of a connection, when its descriptors are not to be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {
    /// A packet of so many bytes, without descriptors. It has been taken.
    Packet(usize),
    /// A packet of so many bytes that carries descriptors. It is still in the socket.
    WithRights(usize),
    /// A packet that is longer than the buffer, or has no bytes; or there will be none any more.
    Senseless,
}

/// Receives a packet without descriptors, without waiting. Descriptors are never installed here, nor is the
/// last reference to one dropped: closing it could take for ever.
///
/// # Errors
/// What recvmsg(2) says; `EAGAIN` if there is none.
pub fn receive_plain(socket: &OwnedFd, buffer: &mut [u8]) -> nix::Result<Plain> {
    let (length, flags) = peek(socket, buffer)?;
    if flags.contains(MsgFlags::MSG_CTRUNC) {
        return Ok(Plain::WithRights(length.min(buffer.len())));
    }
    if length == 0 || flags.contains(MsgFlags::MSG_TRUNC) {
        return Ok(Plain::Senseless);
    }
    // Nobody else reads here, so this is what was looked at.
    socket::recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT).map(Plain::Packet)
}

/// Looks at the next packet, with no room for descriptors: the kernel then says `MSG_CTRUNC` if there are
/// any, and leaves them where they are.
fn peek(socket: &OwnedFd, buffer: &mut [u8]) -> nix::Result<(usize, MsgFlags)> {
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
    let message = socket::recvmsg::<()>(socket.as_raw_fd(), &mut parts, None, flags)?;
    Ok((message.bytes, message.flags))
}

/// Takes all packets out of a connection that has been shut down for receiving, so that no more come. Says
/// whether that is done: a packet that carries descriptors stays, with all behind it. A connection without
/// packets can be closed without waiting.
pub fn drain(socket: &OwnedFd) -> bool {
    // More than a sender's buffer holds, which counts 500 bytes and more for each.
    const MOST: usize = 1 << 16;
    for _ in 0..MOST {
        let mut byte = [0];
        match peek(socket, &mut byte) {
            Ok((_, flags)) if flags.contains(MsgFlags::MSG_CTRUNC) => return false,
            // Either a packet of no bytes or the end. If credentials are to come with packets, and there is
            // no room for them, the kernel says so of a packet.
            Ok((0, _)) => {
                if socket::setsockopt(socket, sockopt::PassCred, &true).is_err() {
                    return false;
                }
                let there = peek(socket, &mut byte);
                if socket::setsockopt(socket, sockopt::PassCred, &false).is_err() {
                    return false;
                }
                match there {
                    Ok((_, flags)) if flags.contains(MsgFlags::MSG_CTRUNC) => {}
                    _ => return true,
                }
            }
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return true,
        }
        if socket::recv(socket.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT).is_err() {
            return false;
        }
    }
    false
}

/// Receives one packet with its descriptors, without waiting. The daemon never calls it for a client's
/// connection.
///
/// # Errors
/// What recvmsg(2) says; `EAGAIN` if there is none.
pub fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> nix::Result<Received> {
    let mut space = nix::cmsg_space!([i32; MAX_DESCRIPTORS]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = socket::recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let truncated = message
        .flags
        .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
    let mut descriptors = Vec::new();
    // An Err means MSG_CTRUNC; the descriptors that did arrive would leak, but there is room for all there
    // can be.
    for part in message.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: the kernel installed these descriptors for this message; nobody else has them.
            descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(Received {
        length: message.bytes,
        descriptors,
        truncated,
    })
}

/// What tests of the other side need: a hook's view of a control block, and a hook's publishing.
#[cfg(test)]
#[derive(Debug)]
pub struct ControlReader(MmapRaw);

#[cfg(test)]
impl ControlReader {
    pub fn new(file: &impl AsFd) -> io::Result<Self> {
        let file = file.as_fd().as_raw_fd();
        Ok(Self(
            MmapOptions::new()
                .len(map::CONTROL_SIZE)
                .map_raw_read_only(file)?,
        ))
    }
}

#[cfg(test)]
impl Deref for ControlReader {
    type Target = Control;

    fn deref(&self) -> &Control {
        // SAFETY: page-aligned, CONTROL_SIZE long, mapped for as long as `self` lives; tests only load.
        unsafe { map::control(self.0.as_ptr()) }
    }
}

/// Publishes a usage block as its hook does.
#[cfg(test)]
pub fn publish_usage(file: &impl AsFd) {
    let file = file.as_fd().as_raw_fd();
    let mapping = MmapOptions::new().len(map::USAGE_SIZE).map_raw(file).unwrap();
    // SAFETY: page-aligned, USAGE_SIZE long, mapped until the end of this function.
    unsafe { map::usage(mapping.as_ptr()) }.publish();
}

#[cfg(test)]
mod tests;
