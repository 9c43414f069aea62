//! The helper that has the kernel tell inotify(7) of what the daemon did: it does the same once more, through the
//! mount. It is started by the daemon, knows nothing of what it touches, and ends with the daemon.
//!
//! Nothing on the mount stays open between two commands, so that it can be unmounted at any time; and each command
//! looks first whether the mount is still there, so that what lies under it is never touched.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use clap::Args;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, truncate, unlinkat};

use crate::file::PAGE;

/// What the daemon has it do, one line each: the command's letter, a blank, and a path below the mount point. It
/// answers each with a line, an errno or 0.
pub const MODIFY: &str = "m";
pub const CREATE: &str = "c";
pub const DELETE: &str = "d";

#[derive(Debug, Args)]
pub struct Arguments {
    point: PathBuf,
    /// The mount's device number
    device: u64,
}

/// Serves until there is no daemon any more.
///
/// # Errors
/// The daemon's pipes are gone.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // Where a command hangs, the end of the pipe would not be seen.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        let status = match act(arguments, &line?) {
            Ok(()) => 0,
            Err(errno) => errno as i32,
        };
        writeln!(out, "{status}")?;
        out.flush()?;
    }
    Ok(())
}

fn act(arguments: &Arguments, line: &str) -> nix::Result<()> {
    let (command, path) = line.split_once(' ').ok_or(Errno::EINVAL)?;
    let root = root(arguments)?;
    match command {
        // The size that all of them have: IN_MODIFY, and nothing else happens.
        MODIFY => truncate(
            format!("/proc/self/fd/{}/{path}", root.as_raw_fd()).as_str(),
            i64::try_from(PAGE).map_err(|_| Errno::EFBIG)?,
        ),
        CREATE => mkdirat(&root, path, Mode::from_bits_truncate(0o755)),
        DELETE => unlinkat(&root, path, UnlinkatFlags::RemoveDir),
        _ => Err(Errno::EINVAL),
    }
}

fn root(Arguments { point, device }: &Arguments) -> nix::Result<File> {
    let errno = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    let root = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(point)
        .map_err(errno)?;
    if root.metadata().map_err(errno)?.dev() == *device {
        Ok(root)
    } else {
        Err(Errno::ENODEV)
    }
}
