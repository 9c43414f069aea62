//! System calls and mappings that need `unsafe`: the daemon's only module that has any.
//!
//! Each item turns a raw descriptor, address or system call into an owned or borrowed value that cannot be
//! misused. This module knows nothing of messages, processes or files.

#![allow(unsafe_code, reason = "the one module that is allowed to; see main.rs")]

mod block_map;
pub mod checkpoint;
pub mod clock;
pub mod launch;
pub mod manager;
mod packet;
pub mod process;
pub mod procfs;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::AtomicU32;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{self, SockFlag};
use nix::unistd::{getpid, getppid};

pub use self::block_map::{ControlMap, UsageMap};
#[cfg(any(test, feature = "fixture"))]
pub use self::block_map::{ControlReader, publish_usage};
pub use self::packet::{Plain, Received, holds_packets, is_hung_up, packet_pair, receive, receive_plain};

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

/// Answer to `PIDFD_GET_INFO` (`struct pidfd_info` in the kernel's include/uapi/linux/pidfd.h).
#[repr(C)]
#[derive(Debug, Default)]
pub struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

nix::ioctl_readwrite!(pidfd_get_info, 0xff, 11, PidfdInfo);

/// Returns the status of a process that has ended and that its parent has waited for, as wait(2) tells it:
/// Linux 6.15.
pub fn exit_status(pidfd: &OwnedFd) -> Option<i32> {
    const PIDFD_INFO_EXIT: u64 = 8;
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the kernel writes at most the size of the structure, which is part of the request's number.
    let told = unsafe { pidfd_get_info(pidfd.as_raw_fd(), &raw mut info) };
    (told.is_ok() && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
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
    // SAFETY: it is open, and the parent process has named its number: it has no other owner here.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Starts a process that has `files` as its descriptors from 3 on. It blocks no signal, and is killed when
/// the calling thread ends.
///
/// # Errors
/// Out of processes, memory or descriptors.
pub(crate) fn spawn_with_files(mut command: Command, files: &[OwnedFd]) -> io::Result<Child> {
    // The numbers are in use here, so that neither the copies nor the descriptor by which the child reports
    // an error of execve(2) gets one of them.
    let mut reserved = vec![File::open("/dev/null")?];
    let end = manager::FIRST.saturating_add(i32::try_from(files.len()).unwrap_or(i32::MAX));
    while reserved.last().is_some_and(|file| file.as_raw_fd() < end) {
        reserved.push(File::open("/dev/null")?);
    }
    let copies = files
        .iter()
        .map(OwnedFd::try_clone)
        .collect::<io::Result<Vec<_>>>()?;
    let numbers: Vec<i32> = copies.iter().map(AsRawFd::as_raw_fd).collect();
    let parent = getpid();
    let prepare = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have ended before.
        if getppid() != parent {
            return Err(Errno::ESRCH.into());
        }
        SigSet::empty().thread_set_mask()?;
        for (number, to) in numbers.iter().zip(manager::FIRST..) {
            // SAFETY: takes integers; no object of the child owns `to`, since all are closed on exec.
            Errno::result(unsafe { libc::dup2(*number, to) })?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls only.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
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

/// Nice value of the daemon, whose share of a CPU is ten times that of a usual process.
const NICE: i32 = -10;

/// Gives this thread, and those that it starts, precedence over usual processes, if it may: programs that
/// start at once on a busy machine wait for the daemon and must not keep it from running.
pub fn raise_priority() {
    // SAFETY: take numbers only. A failure, for lack of a permission, leaves the value.
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) > NICE {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        }
    }
}

/// Returns whether a file has an extended attribute of this name: getxattr(2).
#[must_use]
pub fn has_attribute(file: &Path, name: &CStr) -> bool {
    let Ok(file) = CString::new(file.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: two C strings, and no room for the value.
    unsafe { libc::getxattr(file.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) >= 0 }
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
