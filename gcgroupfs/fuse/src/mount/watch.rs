//! Detects mounts that hide ours: readers of the mount point then silently see something else.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{info, warn};

use super::mountinfo::{Entry, entries};

/// Minimum time between two checks. Reading a long table takes time, and other processes can change it
/// continually.
const PAUSE: Duration = Duration::from_millis(400);

/// Logs once each time that our mount becomes hidden or visible.
#[derive(Debug)]
pub struct Watch {
    point: PathBuf,
    device: u64,
    /// The mount table; poll(2) reports each change once.
    table: File,
    /// Time of the last check.
    last: Option<Instant>,
    is_hidden: bool,
}

impl Watch {
    /// Watches the mount with this device number at `point`, which is absolute and without links.
    ///
    /// # Errors
    /// The mount table cannot be opened.
    pub fn new(point: &Path, device: u64) -> io::Result<Self> {
        Ok(Self {
            point: point.to_owned(),
            device,
            table: File::open("/proc/self/mountinfo")?,
            last: None,
            is_hidden: false,
        })
    }

    /// Reads the mount table if it has changed, at most once in 400 ms. Accesses no mounted file system,
    /// which might not answer.
    pub fn look(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            return;
        }
        let is_first = self.last.replace(now).is_none();
        let mut watched = [PollFd::new(self.table.as_fd(), PollFlags::POLLPRI)];
        let has_changed = poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        if !has_changed && !is_first {
            return;
        }
        let mut text = String::new();
        if self.table.rewind().is_err() || self.table.read_to_string(&mut text).is_err() {
            return;
        }
        let all: Vec<Entry> = entries(&text).collect();
        let hidden_by = hidden_by(&all, &self.point, self.device);
        let was_hidden = std::mem::replace(&mut self.is_hidden, hidden_by.is_some());
        let point = self.point.display();
        match hidden_by {
            Some(other) if !was_hidden => warn!(
                "{} is mounted over {}: the control files at {point} are hidden",
                other.source.display(),
                other.point.display()
            ),
            None if was_hidden => info!("nothing is mounted over {point} any more"),
            _ => {}
        }
    }
}

/// Returns a mount that hides ours: one at the same point or above it on which ours is not mounted, directly
/// or through others.
pub(super) fn hidden_by<'a>(all: &'a [Entry], point: &Path, device: u64) -> Option<&'a Entry> {
    let is_it = |entry: &&Entry| entry.is_ours && entry.device == device && entry.point == point;
    let ours = all.iter().rfind(is_it)?;
    let below = |entry: &&Entry| {
        all.iter()
            .find(|other| other.id == entry.parent && other.id != entry.id)
    };
    // The table may change while it is read and so contain a cycle.
    let chain = std::iter::successors(Some(ours), below).take(all.len());
    let chain: Vec<u64> = chain.map(|entry| entry.id).collect();
    all.iter()
        .find(|entry| point.starts_with(&entry.point) && !chain.contains(&entry.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "22 1 254:1 / / rw - ext4 /dev/root rw\n\
        30 22 0:20 / /run rw - tmpfs run rw\n\
        90 30 0:46 / /run/gc rw - fuse.gcgroup /run/g.sock rw\n\
        91 90 0:47 / /run/gc rw - fuse.gcgroup /run/g.sock rw\n\
        95 22 0:50 / /other rw - tmpfs none rw\n";

    fn hidden(more: &str) -> Option<u64> {
        let text = format!("{ROOT}{more}");
        let all: Vec<Entry> = entries(&text).collect();
        let device = all.iter().find(|entry| entry.id == 91).map(|entry| entry.device);
        hidden_by(&all, Path::new("/run/gc"), device.unwrap()).map(|entry| entry.id)
    }

    #[test]
    fn mount_over_ours_or_a_directory_above_hides_it() {
        assert_eq!(hidden(""), None);
        assert_eq!(hidden("96 91 0:51 / /run/gc rw - tmpfs none rw\n"), Some(96));
        assert_eq!(hidden("97 30 0:52 / /run rw - tmpfs none rw\n"), Some(97));
        assert_eq!(hidden("98 91 0:53 / /run/gc/team rw - tmpfs none rw\n"), None);
        assert_eq!(hidden("99 22 0:54 / /run2 rw - tmpfs none rw\n"), None);
    }

    #[test]
    fn unmounted_mount_is_hidden_by_nothing() {
        let all: Vec<Entry> = entries(ROOT).collect();
        assert!(hidden_by(&all, Path::new("/run/gc"), 1).is_none());
    }
}
