//! Breaking a connection that nobody answers over.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::mount::{MntFlags, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::minor;

use super::mounts;

/// Where the kernel shows its FUSE connections, in directories named by the device numbers' minors.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Has those who wait for an answer from the mount of this device number at `point` get an error, and what
/// writes to its connection come back. `kernel` is the connection's other end: once that is broken, its
/// number and its place may be those of another mount, which is left alone.
pub fn abort(point: &Path, device: u64, kernel: &impl AsFd) {
    abort_if(point, device, || is_connected(kernel));
}

/// The same for the mount of a daemon that has ended. Nobody else may mount at `point` meanwhile.
pub(super) fn abort_dead(point: &Path, device: u64) {
    abort_if(point, device, || true);
}

/// What is asked last, after all that is broken has been opened, says whether that is the right one.
fn abort_if(point: &Path, device: u64, is_right: impl Fn() -> bool) {
    let by_number = by_number(device, &is_right);
    if let Err(error) = by_number.or_else(|_| by_place(point, device, &is_right)) {
        tracing::debug!(point = %point.display(), %error, "the connection cannot be broken");
    }
}

/// By the kernel's list. The file belongs to who has mounted it.
fn by_number(device: u64, is_right: impl Fn() -> bool) -> io::Result<()> {
    // For writing alone, so that nothing is made where it is not.
    let mut file = OpenOptions::new()
        .write(true)
        .open(format!("{CONNECTIONS}/{}/abort", minor(device)))?;
    if is_right() { file.write_all(b"1") } else { Ok(()) }
}

/// As `umount -f` does, for root: the mount is broken but stays, since it is open here.
fn by_place(point: &Path, device: u64, is_right: impl Fn() -> bool) -> io::Result<()> {
    // The kernel asks nobody for that.
    let root = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(point)?;
    let number = root.as_raw_fd();
    let opened = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let id = opened.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse::<u64>().ok());
    let is_there = (mounts(point)?.iter()).any(|mount| Some(mount.id) == id && mount.device == device);
    if is_there && is_right() {
        // It says EBUSY, and has broken the connection by then.
        let _ = umount2(format!("/proc/self/fd/{number}").as_str(), MntFlags::MNT_FORCE);
    }
    Ok(())
}

/// Whether the kernel has not let go of the mount that this end belongs to (fuse_dev_poll() says POLLERR
/// then).
pub fn is_connected(kernel: &impl AsFd) -> bool {
    let mut watched = [PollFd::new(kernel.as_fd(), PollFlags::empty())];
    let answer = poll(&mut watched, PollTimeout::ZERO);
    answer == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::super::{detach, mount_as_root};
    use super::*;

    /// Needs root and /dev/fuse, as mounting does.
    #[test]
    fn a_connection_is_broken_and_never_its_successor_in_the_same_place() {
        let directory = tempfile::tempdir().unwrap();
        let point = directory.path().canonicalize().unwrap();
        let device = || mounts(&point).unwrap().last().unwrap().device;
        let first = mount_as_root(&point, Path::new("first"), false).unwrap();
        let number = device();
        abort(&point, number + 1, &first);
        assert!(is_connected(&first));
        abort(&point, number, &first);
        assert!(!is_connected(&first));
        assert_eq!(mounts(&point).unwrap().len(), 1);
        detach(&point).unwrap();
        drop(first);

        let old = mount_as_root(&point, Path::new("old"), false).unwrap();
        detach(&point).unwrap();
        let new = mount_as_root(&point, Path::new("new"), false).unwrap();
        abort(&point, device(), &old);
        assert!(is_connected(&new));
        abort_dead(&point, device());
        assert!(!is_connected(&new));
        detach(&point).unwrap();
    }
}
