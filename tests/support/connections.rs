//! Connections to the daemon by many users.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::thread;

use gcgroup_abi::message::{Operation, Request};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket};

/// Connects without sending anything.
///
/// # Errors
/// The system's error, for example if no process listens or descriptors are exhausted.
pub fn open_connection(path: &Path) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(connection.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(connection)
}

/// Makes `each` idle connections for each of `uids`. Requires root.
///
/// # Panics
/// If a connection cannot be made.
#[track_caller]
pub fn idle_connections(path: &Path, uids: impl IntoIterator<Item = u32>, each: usize) -> Vec<OwnedFd> {
    // One thread per user: a thread that is no longer root cannot change its user again.
    let of_one = |uid: u32| {
        let open_all = move || {
            become_user(uid);
            (0..each)
                .map(|_| open_connection(path))
                .collect::<nix::Result<Vec<_>>>()
        };
        thread::scope(|scope| scope.spawn(open_all).join())
            .expect("the thread ends without a panic")
            .expect("each client connects")
    };
    uids.into_iter().flat_map(of_one).collect()
}

/// Changes the effective user of the calling thread only.
///
/// # Panics
/// If the process is not root.
pub fn become_user(uid: u32) {
    const KEEP: libc::uid_t = libc::uid_t::MAX;
    // SAFETY: passes only numbers. The C library's function would change all threads.
    let answer = unsafe { libc::syscall(libc::SYS_setresuid, KEEP, uid, KEEP) };
    assert_eq!(answer, 0, "{}", io::Error::last_os_error());
}

/// Requests the list of devices on a connection, and waits for the answer.
///
/// # Errors
/// If the daemon has closed the connection.
pub fn ask_for_devices(connection: &OwnedFd) -> nix::Result<()> {
    let request = Request {
        operation: Operation::Get,
        offset: 0,
        name: "devices",
        value: b"",
    };
    let packet: Vec<u8> = request.to_bytes();
    send(connection.as_raw_fd(), &packet, MsgFlags::MSG_NOSIGNAL)?;
    match recv(connection.as_raw_fd(), &mut [0; 4096], MsgFlags::empty())? {
        0 => Err(nix::Error::ECONNRESET),
        _ => Ok(()),
    }
}

/// Raises the soft limit of descriptors to the hard limit, and returns it.
///
/// # Panics
/// If the limit cannot be read or set.
pub fn raise_descriptors() -> u64 {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit can be read");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("the soft limit can be raised");
    most
}
