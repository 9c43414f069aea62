//! Runs fusermount3(1), which mounts for users other than root: it opens /dev/fuse, mounts, and sends the
//! descriptor over a socket.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use gcgroupfs_sys as sys;

const PROGRAM: &str = "fusermount3";

/// Mounts at `point` for the calling user.
///
/// # Errors
/// The program is not installed, or refuses.
pub(super) fn mount(point: &Path, source: &Path, allow_other: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::Stream,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
    // Escaped, because commas and backslashes would end the option.
    let source = source.to_string_lossy().replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!("fsname={source},subtype=gcgroup,nosuid,nodev,noexec,default_permissions");
    if allow_other {
        options.push_str(",allow_other");
    }
    let mut command = Command::new(PROGRAM);
    command
        .arg("-o")
        .arg(options)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    run(command, point)?;
    drop(theirs);
    // The program has ended, so its message has arrived.
    let mut byte = [0];
    let received = sys::receive(&ours, &mut byte)?;
    received
        .descriptors
        .into_iter()
        .next()
        .ok_or_else(|| io::Error::other(format!("{PROGRAM} sent no descriptor")))
}

/// Unmounts `point`, even while it is in use.
///
/// # Errors
/// Those of [`mount`].
pub(super) fn unmount(point: &Path) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.args(["-u", "-q", "-z"].map(OsStr::new));
    run(command, point)
}

fn run(mut command: Command, point: &Path) -> io::Result<()> {
    let output = command
        .arg("--")
        .arg(point)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot run {PROGRAM} (Debian's package fuse3): {error}"),
            )
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(io::Error::other(format!("{PROGRAM} failed: {said}")))
}
