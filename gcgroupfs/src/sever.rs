//! Shuts down the connections of a killed daemon that cannot end: otherwise its clients would take it for
//! alive and not look for its successor.
//!
//! This is done in a disposable process: if the daemon ends meanwhile, the last reference to what clients
//! have sent is dropped here.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use clap::Args;
use nix::sys::socket::{Shutdown, UnixAddr, getsockname, getsockopt, shutdown, sockopt};
use tracing::warn;

use gcgroupfs_sys as sys;
use gcgroupfs_sys::launch::Launcher;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The daemon's pid
    pid: i32,
    /// The socket on which it accepted connections
    socket: PathBuf,
}

/// Starts a process that shuts down the connections of the daemon with this pid, which cannot end.
pub(crate) fn start(pid: u32, socket: &Path, launcher: &Launcher) {
    warn!("the daemon before this one cannot end ({pid})");
    let pid = pid.to_string();
    let words = [OsStr::new("sever"), OsStr::new(&pid), socket.as_os_str()];
    let started = File::open("/dev/null").and_then(|input| launcher.launch_unwatched(&words, &input));
    if let Err(error) = started {
        warn!("cannot disconnect its clients: {error}");
    }
}

/// Shuts down every connection that the process has accepted on the socket.
///
/// # Errors
/// The process has ended.
pub(crate) fn run(Arguments { pid, socket }: &Arguments) -> anyhow::Result<()> {
    let _ = sys::close_from(3);
    // Threads share their descriptors, but a thread that has ended has none.
    for thread in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let Some(tid) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(pidfd) = sys::pidfd_open_thread(tid) else {
            continue;
        };
        let descriptors = fs::read_dir(thread.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let numbers: Vec<i32> = descriptors
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        let sockets = numbers
            .iter()
            .filter_map(|number| sys::pidfd_getfd(&pidfd, *number).ok());
        let mut has_any = false;
        for connection in sockets.filter(|descriptor| is_connection(descriptor, socket)) {
            has_any = true;
            // It may have been shut down already.
            let _ = shutdown(connection.as_raw_fd(), Shutdown::Both);
        }
        if has_any {
            break;
        }
    }
    Ok(())
}

/// Returns whether the descriptor is a connection that was accepted on the socket, and not the socket itself.
fn is_connection(descriptor: &impl std::os::fd::AsFd, socket: &Path) -> bool {
    let name = getsockname::<UnixAddr>(descriptor.as_fd().as_raw_fd());
    let listens = getsockopt(&descriptor.as_fd(), sockopt::AcceptConn);
    name.is_ok_and(|name| name.path() == Some(socket)) && listens == Ok(false)
}
