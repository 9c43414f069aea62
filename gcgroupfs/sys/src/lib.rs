//! System calls and mappings that need `unsafe`: the daemon's only module that has any.
//!
//! Each item turns a raw descriptor, address or system call into an owned or borrowed value that cannot be
//! misused. This module knows nothing of messages, processes or files.

#![allow(unsafe_code, reason = "the one module that is allowed to; see main.rs")]

pub mod checkpoint;
pub mod clock;
pub mod launch;
pub mod process;
pub mod procfs;

use std::fmt;
use std::io::{self, IoSliceMut};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use gcgroup_abi::{Control, map};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{self, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, sockopt};

use gcgroupfs_model::tree::Untrusted;

/// Maximum number of descriptors in one message: the kernel's `SCM_MAX_FD`.
const MAX_DESCRIPTORS: usize = 253;

/// A control block, mapped writable.
pub struct ControlMap(MmapRaw);

impl ControlMap {
    /// Maps a file of exactly [`map::CONTROL_SIZE`] bytes, which the caller has created.
    ///
    /// # Errors
    /// Those of mmap(2).
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

/// A usage block, mapped writable, because the daemon writes one word for each device.
pub struct UsageMap(MmapRaw);

impl UsageMap {
    /// Maps a file of exactly [`map::USAGE_SIZE`] bytes that cannot shrink, which the caller has checked.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(file: &impl AsFd) -> io::Result<Self> {
        let file = file.as_fd().as_raw_fd();
        Ok(Self(MmapOptions::new().len(map::USAGE_SIZE).map_raw(file)?))
    }

    /// Returns the block, through the wrapper that bounds all values.
    pub fn untrusted(&self) -> Untrusted<'_> {
        // SAFETY: page-aligned, USAGE_SIZE long, mapped for as long as `self` lives.
        Untrusted::new(unsafe { map::usage(self.0.as_ptr()) })
    }
}

impl fmt::Debug for UsageMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UsageMap")
    }
}

/// Wakes every thread, of any process, that waits on `word` (`FUTEX_WAKE` on shared memory).
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses only the address, which is that of a live word.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

/// Returns a descriptor of the process that `pid` denotes now: pidfd_open(2), Linux 5.3.
///
/// # Errors
/// `ESRCH` if there is none.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    new_descriptor(fd)
}

/// Returns a descriptor of the thread that `tid` denotes now: pidfd_open(2) with `PIDFD_THREAD`, Linux 6.9.
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

/// Sends a signal to the process of a pidfd, and to no later one with its pid: pidfd_send_signal(2), Linux
/// 5.1.
///
/// # Errors
/// `ESRCH` if it has ended; `EPERM`; `EINVAL` if it is not visible in this pid namespace.
pub fn send_signal(pidfd: &impl AsFd, signal: Signal) -> nix::Result<()> {
    let (fd, no_details) = (pidfd.as_fd().as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    let signal = signal as libc::c_int;
    // SAFETY: takes integers and a null pointer.
    Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, no_details, 0) }).map(drop)
}

/// Duplicates another thread's descriptor: pidfd_getfd(2), Linux 5.6.
///
/// # Errors
/// Those of pidfd_getfd(2).
pub fn pidfd_getfd(pidfd: &impl AsFd, number: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_fd().as_raw_fd(), number, 0) };
    new_descriptor(fd)
}

fn new_descriptor(fd: i64) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel has just created this descriptor; it has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes ownership of an inherited descriptor, and sets its close-on-exec flag.
///
/// # Errors
/// `EBADF` if it is not open.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) with F_SETFD takes integers.
    if number < 3 || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open, and its number came with the command line: it has no other owner here.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Makes descriptor `number` refer to the file of `with`.
///
/// # Errors
/// Those of dup3(2).
pub fn replace(number: i32, with: &impl AsFd) -> io::Result<()> {
    // SAFETY: takes integers; the owner of `number` stays its owner.
    let done = unsafe { libc::dup3(with.as_fd().as_raw_fd(), number, libc::O_CLOEXEC) };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Closes every descriptor from this number on: close_range(2), Linux 5.9. For a process that has just
/// started and has not opened any itself.
///
/// # Errors
/// The kernel is too old.
pub fn close_from(number: u32) -> io::Result<()> {
    // SAFETY: takes integers. The closed descriptors have no owner here: the process inherited them.
    if unsafe { libc::syscall(libc::SYS_close_range, number, u32::MAX, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets the close-on-exec flag of every descriptor from this number on: close_range(2) with
/// `CLOSE_RANGE_CLOEXEC`, Linux 5.11.
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

/// Returns the supplementary groups of the process that connected the socket's other end, as of then
/// (`SO_PEERGROUPS`, Linux 4.13).
///
/// # Errors
/// The descriptor is not a Unix socket.
pub fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<u32> = vec![0; 32];
    loop {
        let room = size_of_val(groups.as_slice());
        let mut length = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        // SAFETY: writes at most `length` bytes, for which `room` is large enough, and the length.
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
            // The buffer is too small; the kernel has returned the length that is needed.
            (_, Some(libc::ERANGE)) if there > groups.len() => groups.resize(there, 0),
            _ => return Err(error),
        }
    }
}

/// Accepts one connection, non-blocking and closed on exec.
///
/// # Errors
/// Those of accept4(2); `EAGAIN` if none is pending.
pub fn accept(listener: &impl AsFd) -> nix::Result<OwnedFd> {
    let fd = socket::accept4(
        listener.as_fd().as_raw_fd(),
        SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
    )?;
    // SAFETY: accept4 has just created this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

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

/// Receives and drops all packets of a connection that has been shut down for receiving. Returns whether the
/// connection is now empty, and so can be closed without waiting: a packet that carries descriptors stays,
/// with all behind it.
pub fn drain(socket: &OwnedFd) -> bool {
    // More packets than a sender's buffer holds, which counts at least 500 bytes for each.
    const MOST: usize = 1 << 16;
    for _ in 0..MOST {
        let mut byte = [0];
        match peek(socket, &mut byte) {
            Ok((_, flags)) if flags.contains(MsgFlags::MSG_CTRUNC) => return false,
            // Either an empty packet or the end. If credentials come with packets and there is no room for
            // them, the kernel sets `MSG_CTRUNC` for a packet.
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

/// A hook's view of a control block, for tests.
#[cfg(any(test, feature = "fixture"))]
#[derive(Debug)]
pub struct ControlReader(MmapRaw);

#[cfg(any(test, feature = "fixture"))]
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

#[cfg(any(test, feature = "fixture"))]
impl Deref for ControlReader {
    type Target = Control;

    fn deref(&self) -> &Control {
        // SAFETY: page-aligned, CONTROL_SIZE long, mapped for as long as `self` lives; tests only load.
        unsafe { map::control(self.0.as_ptr()) }
    }
}

/// Publishes a usage block as its hook does.
#[cfg(any(test, feature = "fixture"))]
pub fn publish_usage(file: &impl AsFd) {
    let file = file.as_fd().as_raw_fd();
    #[allow(clippy::unwrap_used, reason = "for tests")]
    let mapping = MmapOptions::new().len(map::USAGE_SIZE).map_raw(file).unwrap();
    // SAFETY: page-aligned, USAGE_SIZE long, mapped until the end of this function.
    unsafe { map::usage(mapping.as_ptr()) }.publish();
}

#[cfg(test)]
mod tests;
