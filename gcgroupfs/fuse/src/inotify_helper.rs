//! The inotify replay helper: repeats the daemon's changes through the mount, so that the kernel reports them
//! to inotify(7). The daemon starts it; it knows nothing of what it touches, and ends with the daemon.
//!
//! Nothing on the mount stays open between two commands, so that it can be unmounted at any time. Each
//! command first checks that the mount is still there, so that the directory below it is never touched.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, truncate, unlinkat};

use gcgroupfs_model::file::PAGE;

/// Commands, one per line: the letter, a blank, and a path below the mount point. Each is answered with a
/// line: an errno or 0.
pub const MODIFY: &str = "m";
pub const CREATE: &str = "c";
pub const DELETE: &str = "d";

/// Serves until the daemon has ended: repeats changes through the mount at `point` with this device number.
///
/// # Errors
/// The daemon's pipes are gone.
pub fn run(point: &Path, device: u64) -> anyhow::Result<()> {
    // A command that hangs would not see the end of the pipe.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        let status = match act(point, device, &line?) {
            Ok(()) => 0,
            Err(errno) => errno as i32,
        };
        writeln!(out, "{status}")?;
        out.flush()?;
    }
    Ok(())
}

fn act(point: &Path, device: u64, line: &str) -> nix::Result<()> {
    let (command, path) = line.split_once(' ').ok_or(Errno::EINVAL)?;
    let root = root(point, device)?;
    match command {
        // Truncates to the size that the file has: only IN_MODIFY results.
        MODIFY => truncate(
            format!("/proc/self/fd/{}/{path}", root.as_raw_fd()).as_str(),
            i64::try_from(PAGE).map_err(|_| Errno::EFBIG)?,
        ),
        CREATE => mkdirat(&root, path, Mode::from_bits_truncate(0o755)),
        DELETE => unlinkat(&root, path, UnlinkatFlags::RemoveDir),
        _ => Err(Errno::EINVAL),
    }
}

fn root(point: &Path, device: u64) -> nix::Result<File> {
    let errno = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    let root = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(point)
        .map_err(errno)?;
    if root.metadata().map_err(errno)?.dev() == device {
        Ok(root)
    } else {
        Err(Errno::ENODEV)
    }
}
