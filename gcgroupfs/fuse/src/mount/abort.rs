//! Aborts FUSE connections over which no daemon answers.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::mount::{MntFlags, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::minor;

use super::mountinfo::mounts;

/// Directory of the kernel's FUSE connections, named by the minor device numbers.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Aborts the connection of the mount with this device number at `point`, whose daemon has ended but cannot
/// exit: waiting requests fail. No other process may mount at `point` meanwhile.
pub(super) fn abort_dead(point: &Path, device: u64) {
    if let Err(error) = by_number(device).or_else(|_| by_place(point, device)) {
        tracing::debug!(point = %point.display(), %error, "the connection cannot be broken");
    }
}

/// Aborts by the kernel's list of connections. The file belongs to the mounting user.
fn by_number(device: u64) -> io::Result<()> {
    // Opened for writing without O_CREAT, so that no file is created.
    let mut file = OpenOptions::new()
        .write(true)
        .open(format!("{CONNECTIONS}/{}/abort", minor(device)))?;
    file.write_all(b"1")
}

/// Aborts as `umount -f` does, for root: the connection is aborted but the mount stays, because it is open
/// here.
fn by_place(point: &Path, device: u64) -> io::Result<()> {
    // The kernel sends no request for that.
    let root = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(point)?;
    let number = root.as_raw_fd();
    let opened = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let id = opened.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse::<u64>().ok());
    if (mounts(point)?.iter()).any(|mount| Some(mount.id) == id && mount.device == device) {
        // It fails with EBUSY after aborting the connection.
        let _ = umount2(format!("/proc/self/fd/{number}").as_str(), MntFlags::MNT_FORCE);
    }
    Ok(())
}

/// Returns whether the connection of this end still exists (otherwise fuse_dev_poll() returns POLLERR).
pub(super) fn is_connected(kernel: &impl AsFd) -> bool {
    let mut watched = [PollFd::new(kernel.as_fd(), PollFlags::empty())];
    let answer = poll(&mut watched, PollTimeout::ZERO);
    answer == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::super::{detach, mount_directly};
    use super::*;

    /// Needs root and /dev/fuse, as mounting does.
    #[test]
    fn abort_breaks_only_the_connection_with_that_number() {
        let directory = tempfile::tempdir().unwrap();
        let point = directory.path().canonicalize().unwrap();
        let kernel = mount_directly(&point, Path::new("source"), false).unwrap();
        let number = mounts(&point).unwrap().last().unwrap().device;
        abort_dead(&point, number + 1);
        assert!(is_connected(&kernel));
        abort_dead(&point, number);
        assert!(!is_connected(&kernel));
        assert_eq!(mounts(&point).unwrap().len(), 1);
        detach(&point).unwrap();
    }
}
