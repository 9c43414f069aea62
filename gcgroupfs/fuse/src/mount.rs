//! Mounts and unmounts at a path. This module knows neither FUSE messages nor the tree.
//!
//! The module calls mount(2) and umount2(2) directly: unmounting must work while clients hold files open, and
//! a new daemon must start on what a killed predecessor has left, a dead mount on which every path lookup
//! fails. So /proc/self/mountinfo is always read before the mount point is touched.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{getegid, geteuid};

mod abort;
mod helper;
mod mountinfo;

pub use mountinfo::{has, is_listed, point_of, socket_and_rest};

use abort::{abort_dead, is_connected};
use mountinfo::{MountEntry, TYPE, entries, hidden_by, mounts, ours};

/// How long an existing mount at the path may take to show whether a daemon answers for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The kernel's device for filesystems of processes.
pub const DEVICE: &str = "/dev/fuse";

/// Maximum number of symbolic links followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// A mount; dropping it unmounts, unless it is [kept](Mount::keep).
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
    /// Mount id, so that a mount made there later by another process is never unmounted.
    id: Option<u64>,
    device: u64,
    /// Whether it stays when it is dropped.
    is_kept: bool,
}

impl Mount {
    /// Mounts at `point`, creating the directory if missing, and replaces dead mounts there: those for which
    /// no daemon answers, and those of `source`, which this daemon now owns. Returns the open /dev/fuse,
    /// whose requests must be answered from now on.
    ///
    /// The kernel lists `source`, the daemon's socket, as the mounted device, by which [`point_of`] finds the
    /// mount. Without `allow_other` only the mounting user has access.
    ///
    /// # Errors
    /// `EBUSY` if another daemon answers there; errors of mount(2) or, for users other than root,
    /// fusermount3.
    pub fn new(point: &Path, source: &Path, allow_other: bool) -> io::Result<(Self, OwnedFd)> {
        let point = absolute(point)?;
        replace_dead(&point, source)?;
        // New parent directories can be searched by all users, like /run and /sys/fs/cgroup.
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&point)?;
        // A missing component may have been a link.
        let point = absolute(&point)?;
        let device = match mount_directly(&point, source, allow_other) {
            // A user other than root may mount in a user namespace of its own.
            Err(error) if !geteuid().is_root() && error.kind() == ErrorKind::PermissionDenied => {
                helper::mount(&point, source, allow_other)
            }
            other => other,
        }?;
        let (id, number) = match ours(&point)?.last() {
            Some(entry) => (Some(entry.id), entry.device),
            None => (None, 0),
        };
        let mount = Self {
            point,
            id,
            device: number,
            is_kept: false,
        };
        Ok((mount, device))
    }

    /// Returns the mount with that device number and `source` at `point`, which a killed daemon has left;
    /// `kernel` is its open /dev/fuse. `None` if it is gone, hidden or no longer connected.
    ///
    /// # Errors
    /// The mount table cannot be read.
    pub fn again(point: &Path, source: &Path, device: u64, kernel: &OwnedFd) -> io::Result<Option<Self>> {
        let point = absolute(point)?;
        let source = std::path::absolute(source)?;
        let is_it = |top: &MountEntry| top.is_ours && top.device == device && top.source == source;
        let top = mounts(&point)?
            .pop()
            .filter(is_it)
            .filter(|_| is_connected(kernel));
        Ok(top.map(|top| Self {
            point,
            id: Some(top.id),
            device,
            is_kept: true,
        }))
    }

    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Returns the device number that stat(2) reports for its files.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Leaves the mount to the next daemon, unless this one [unmounts](Self::unmount).
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Detaches the mount at once, even while clients hold files open. These files work as long as the daemon
    /// runs.
    ///
    /// # Errors
    /// Those of umount2(2) or fusermount3. None if it is unmounted already.
    pub fn unmount(&mut self) -> io::Result<()> {
        let Some(id) = self.id.take() else { return Ok(()) };
        match mounts(&self.point)?.last() {
            Some(top) if top.id == id => detach(&self.point),
            _ => Ok(()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if let Err(error) = self.unmount() {
            tracing::warn!(point = %self.point.display(), %error, "cannot unmount");
        }
    }
}

fn mount_directly(point: &Path, source: &Path, allow_other: bool) -> io::Result<OwnedFd> {
    let device: OwnedFd = OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE)
        .map_err(|error| io::Error::new(error.kind(), format!("{DEVICE} cannot be opened: {error}")))?
        .into();
    let mut options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        geteuid(),
        getegid()
    );
    if allow_other {
        options.push_str(",allow_other");
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some(source), point, Some(TYPE), flags, Some(options.as_str()))?;
    Ok(device)
}

fn detach(point: &Path) -> io::Result<()> {
    if geteuid().is_root() {
        match umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            // Not mounted any more.
            Err(Errno::EINVAL) => Ok(()),
            result => Ok(result?),
        }
    } else {
        helper::unmount(point)
    }
}

/// Returns the mount that is reached at `point`; none if another one lies over a directory above.
fn visible_at(point: &Path) -> io::Result<Option<MountEntry>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    let mut all: Vec<MountEntry> = entries(&text).collect();
    let top = all.iter().rposition(|entry| entry.point == point);
    let top = top.filter(|at| hidden_by(&all, point, all[*at].device).is_none());
    Ok(top.map(|at| all.swap_remove(at)))
}

/// Detaches every gcgroupfs mount at `point` for which no daemon answers.
fn replace_dead(point: &Path, source: &Path) -> io::Result<()> {
    while let Some(top) = visible_at(point)?.filter(|top| top.is_ours) {
        if top.source != source && is_alive(point)? {
            return Err(io::Error::new(
                ErrorKind::ResourceBusy,
                format!("{} is served by another daemon", point.display()),
            ));
        }
        tracing::info!(point = %point.display(), id = top.id, "replacing a dead mount");
        abort_dead(point, top.device);
        detach(point)?;
    }
    Ok(())
}

/// Returns whether a daemon answers for the mount at `point`. Checked on a separate thread, because a daemon
/// that neither answers nor dies would block the caller for ever.
fn is_alive(point: &Path) -> io::Result<bool> {
    let (sender, receiver) = channel();
    let point = point.to_owned();
    thread::Builder::new()
        .name("probe".to_owned())
        // Opening sends a request to the daemon; attributes may come from the kernel's cache.
        .spawn(move || sender.send(File::open(point)))?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(error)) => Ok(!matches!(
            error.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO | libc::ENODEV)
        )),
        Err(RecvTimeoutError::Timeout) => Ok(true),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the probe ended without an answer")),
    }
}

/// Returns the path as the kernel lists mounts: absolute and without links.
fn absolute(point: &Path) -> io::Result<PathBuf> {
    let mut point = below_links(point)?;
    for _ in 0..MAX_LINKS {
        // The last component may be a dead mount. Reading it as a link sends no request to a daemon.
        match fs::read_link(&point) {
            Ok(target) => point = below_links(&point.parent().unwrap_or(&point).join(target))?,
            Err(_) => return Ok(point),
        }
    }
    Err(Errno::ELOOP.into())
}

/// Resolves all links except that of the last component, which is not accessed.
fn below_links(point: &Path) -> io::Result<PathBuf> {
    let point = std::path::absolute(point)?;
    match point.components().next_back() {
        Some(Component::Normal(name)) => match point.parent().map(fs::canonicalize) {
            Some(Ok(parent)) => Ok(parent.join(name)),
            // Nothing can be mounted in a directory that does not exist.
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => Ok(point),
            Some(Err(error)) => Err(error),
            None => Ok(point),
        },
        _ => Err(io::Error::new(
            ErrorKind::InvalidInput,
            format!("{} cannot be mounted on", point.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_point_is_listed_without_links() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        assert_eq!(absolute(&real.join("link/point")).unwrap(), real.join("point"));
        assert_eq!(absolute(&real.join("point/")).unwrap(), real.join("point"));
        assert_eq!(
            absolute(&real.join("none/point")).unwrap(),
            real.join("none/point")
        );
        let link = |target: &Path, name| {
            std::os::unix::fs::symlink(target, real.join(name)).unwrap();
            absolute(&real.join(name))
        };
        assert_eq!(link(Path::new("point"), "to").unwrap(), real.join("point"));
        link(Path::new("link/none/at"), "to-none").unwrap();
        fs::create_dir_all(real.join("none/at")).unwrap();
        assert_eq!(absolute(&real.join("to-none")).unwrap(), real.join("none/at"));
        assert!(link(Path::new("itself"), "itself").is_err());
        assert!(absolute(Path::new("/")).is_err());
        assert!(absolute(&real.join("x/..")).is_err());
    }
}
