//! Finds mounts in /proc/self/mountinfo, without access to their paths.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::stat::makedev;

/// File system type in mountinfo.
pub(super) const TYPE: &str = "fuse.gcgroup";

/// Returns the mount point of the daemon that listens on `socket`, if it is visible to this process.
pub fn point_of(socket: &Path) -> Option<PathBuf> {
    let socket = std::path::absolute(socket).ok()?;
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    visible(&text)
        .into_iter()
        .find(|entry| entry.is_ours && entry.is_whole && entry.source == socket)
        .map(|entry| entry.point)
}

/// Returns whether the mount with this device number is still listed at `point`: it was not unmounted,
/// although its connection has ended.
pub fn is_listed(point: &Path, device: u64) -> bool {
    ours(point).is_ok_and(|entries| entries.iter().any(|entry| entry.device == device))
}

/// Returns whether `path`, an absolute path, lies on a gcgroupfs mount.
pub fn has(path: &Path) -> bool {
    socket_and_rest(path).is_some()
}

/// Splits an absolute path that lies on a gcgroupfs mount into the socket of its daemon and the path below
/// the mount point.
pub fn socket_and_rest(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    split(&text, path)
}

fn split(mountinfo: &str, path: &Path) -> Option<(PathBuf, PathBuf)> {
    let entries = visible(mountinfo).into_iter();
    let under = entries.filter(|entry| path.starts_with(&entry.point));
    let entry = under.max_by_key(|entry| entry.point.components().count())?;
    let rest = path.strip_prefix(&entry.point).ok()?;
    entry.is_ours.then(|| (entry.source.clone(), rest.to_owned()))
}

/// One line of /proc/self/mountinfo.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    pub(super) id: u64,
    /// Id of the parent mount.
    pub(super) parent: u64,
    pub(super) device: u64,
    pub(super) point: PathBuf,
    /// Mount source: for our mounts, the daemon's socket.
    pub(super) source: PathBuf,
    pub(super) is_ours: bool,
    /// Whether the root of the file system is mounted, not a directory in it.
    pub(super) is_whole: bool,
}

/// Returns the mounts at `point`, the visible one last.
pub(super) fn mounts(point: &Path) -> io::Result<Vec<MountEntry>> {
    Ok(at(&fs::read_to_string("/proc/self/mountinfo")?, point))
}

/// Returns the gcgroupfs mounts at `point`, the visible one last.
pub(super) fn ours(point: &Path) -> io::Result<Vec<MountEntry>> {
    Ok(mounts(point)?.into_iter().filter(|entry| entry.is_ours).collect())
}

/// Returns the mounts at `point` from the text of /proc/self/mountinfo.
fn at(mountinfo: &str, point: &Path) -> Vec<MountEntry> {
    entries(mountinfo).filter(|entry| entry.point == point).collect()
}

/// Returns the visible mounts: of several at one point the last hides the others.
fn visible(mountinfo: &str) -> Vec<MountEntry> {
    let mut last = BTreeMap::new();
    for entry in entries(mountinfo) {
        last.insert(entry.point.clone(), entry);
    }
    last.into_values().collect()
}

/// Parses the text of /proc/self/mountinfo (proc(5)).
pub(super) fn entries(mountinfo: &str) -> impl Iterator<Item = MountEntry> {
    mountinfo.lines().filter_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ');
        let id = fields.next()?.parse().ok()?;
        let parent = fields.next()?.parse().ok()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let device = makedev(major.parse().ok()?, minor.parse().ok()?);
        let root = fields.next()?;
        let point = unescaped(fields.next()?).into();
        let mut kind = kind.split(' ');
        Some(MountEntry {
            id,
            parent,
            device,
            point,
            is_ours: kind.next() == Some(TYPE),
            source: unescaped(kind.next()?).into(),
            is_whole: root == "/",
        })
    })
}

/// Decodes a path of mountinfo, in which blanks, tabs, newlines and backslashes are written `\ooo`.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut out, part| {
        match part.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
        out
    })
}

/// Returns a mount that hides ours: one at the same point or above it on which ours is not mounted, directly
/// or through others.
pub(super) fn hidden_by<'a>(all: &'a [MountEntry], point: &Path, device: u64) -> Option<&'a MountEntry> {
    let is_it = |entry: &&MountEntry| entry.is_ours && entry.device == device && entry.point == point;
    let ours = all.iter().rfind(is_it)?;
    let below = |entry: &&MountEntry| {
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

    const MOUNTINFO: &str = "\
        22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
        91 22 0:47 / /gcgroup rw,nosuid,nodev - fuse.gcgroup /run/g.sock rw,user_id=0,group_id=0\n\
        92 91 0:48 / /gcgroup rw - tmpfs none rw\n\
        93 92 0:49 / /gcgroup rw,nosuid shared:7 master:1 - fuse.gcgroup /run/g.sock rw\n\
        94 22 0:50 / /with\\040blank\\134 rw - fuse.gcgroup /run/h\\040.sock rw\n\
        96 22 0:50 /7 /part rw - fuse.gcgroup /run/g.sock rw\n\
        95 22 0:51 / /other rw - fuse.sshfs host: rw\n";

    #[test]
    fn mounts_are_found_by_path_and_type_in_order() {
        let found: Vec<_> = at(MOUNTINFO, Path::new("/gcgroup"))
            .iter()
            .map(|entry| (entry.id, entry.is_ours))
            .collect();
        assert_eq!(found, [(91, true), (92, false), (93, true)]);
        let one = |point| match at(MOUNTINFO, Path::new(point)).as_slice() {
            [entry] => (
                entry.id,
                entry.is_ours,
                entry.is_whole,
                entry.source.display().to_string(),
            ),
            entries => panic!("{entries:?}"),
        };
        assert_eq!(one("/with blank\\"), (94, true, true, "/run/h .sock".into()));
        assert_eq!(one("/part"), (96, true, false, "/run/g.sock".into()));
        assert_eq!(one("/other"), (95, false, true, "host:".into()));
        assert_eq!(at(MOUNTINFO, Path::new("/gc")), []);
    }

    #[test]
    fn last_of_several_mounts_at_a_point_is_visible() {
        let seen: Vec<_> = visible(MOUNTINFO).iter().map(|entry| entry.id).collect();
        assert_eq!(seen, [22, 93, 95, 96, 94]);
    }

    const ROOT: &str = "22 1 254:1 / / rw - ext4 /dev/root rw\n\
        30 22 0:20 / /run rw - tmpfs run rw\n\
        90 30 0:46 / /run/gc rw - fuse.gcgroup /run/g.sock rw\n\
        91 90 0:47 / /run/gc rw - fuse.gcgroup /run/g.sock rw\n\
        95 22 0:50 / /other rw - tmpfs none rw\n";

    fn hidden(more: &str) -> Option<u64> {
        let text = format!("{ROOT}{more}");
        let all: Vec<MountEntry> = entries(&text).collect();
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
        let all: Vec<MountEntry> = entries(ROOT).collect();
        assert!(hidden_by(&all, Path::new("/run/gc"), 1).is_none());
    }
}
