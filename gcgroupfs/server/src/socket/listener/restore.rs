//! Creates the socket again where its file was removed or replaced, without waiting.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nix::sys::socket::{SockFlag, UnixAddr, connect};

use super::{FileId, clear, id, make, make_directory, new_socket};
use gcgroupfs_sys::process;

/// Creates a socket at `path` unless the file identified by `ours` is there, returns it, and stores the new
/// file's identity in `ours`.
///
/// # Errors
/// Another daemon listens there, or the path cannot be written.
pub(super) fn restore(path: &Path, ours: &mut FileId) -> anyhow::Result<Option<OwnedFd>> {
    if is_there(path, ours)? {
        return Ok(None);
    }
    let address = UnixAddr::new(path)?;
    make_directory(path)?;
    move_aside(path)?;
    clear(path, &address, Duration::ZERO)?;
    let (socket, file) = make(path, &address)?;
    *ours = file;
    Ok(Some(socket))
}

/// Returns whether the file at `path` is our socket's. Its inode number may have been reused; if the ctime
/// differs as well, the kernel is asked which process listens there.
fn is_there(path: &Path, ours: &mut FileId) -> anyhow::Result<bool> {
    let there = match fs::symlink_metadata(path) {
        Ok(file) => id(&file),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(false);
        }
        Err(error) => return Err(error).with_context(|| format!("cannot look at {}", path.display())),
    };
    if there == *ours {
        return Ok(true);
    }
    let is_same = (there.0, there.1) == (ours.0, ours.1) && {
        let probe = new_socket(SockFlag::SOCK_NONBLOCK)?;
        connect(probe.as_raw_fd(), &UnixAddr::new(path)?).is_ok()
            && process::owner(&probe).is_ok_and(|(pid, ..)| pid == std::process::id())
    };
    if is_same {
        *ours = there;
    }
    Ok(is_same)
}

/// Renames a file that is no socket to `NAME.displaced`.
fn move_aside(path: &Path) -> anyhow::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".displaced");
        fs::rename(path, &aside).with_context(|| format!("cannot move {} away", path.display()))?;
    }
    Ok(())
}
