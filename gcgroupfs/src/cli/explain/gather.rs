//! Examines an ungoverned process, with the rights of the asking user.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gcgroup_abi::DEFAULT_SOCKET;
use gcgroup_abi::environment::GCGROUP_SOCKET;

use crate::elf;
use gcgroup_client::Client;
use gcgroupfs_model::diagnosis::{Daemon, HOOK, Observed, PRELOAD, Program};
use gcgroupfs_sys::{process, procfs};
use nix::unistd::geteuid;

/// Ancestors that are examined.
const MAX_ANCESTORS: usize = 64;

/// Open descriptors that are examined.
const MAX_DESCRIPTORS: usize = 4096;

/// Longest ld.so.preload that is read, bytes.
const MAX_PRELOADS: u64 = 64 << 10;

/// Key of auxv by which the kernel tells the loader to ignore the environment.
const AT_SECURE: u64 = 23;

/// Examines a process. `client` is the connection to the daemon, if one answers. `None`: no such process.
pub(super) fn observe(pid: u32, socket: &Path, client: Option<&Client>) -> Option<Observed> {
    let stat = process::stat(pid).ok()?;
    let uid = fs::metadata(format!("/proc/{pid}")).map_or(0, |file| file.uid());
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let mut named = preloads(pid);
    named.extend(system_preloads(&root));
    let own = procfs::variable(pid, GCGROUP_SOCKET.name);
    let daemon = match client {
        None => Daemon::Absent,
        Some(client) => {
            let started = client.daemon().and_then(|pid| process::stat(pid).ok());
            match started {
                Some(daemon) if daemon.start_time > stat.start_time => Daemon::Later,
                _ => Daemon::Present,
            }
        }
    };
    Some(Observed {
        pid,
        comm: stat.comm.to_string(),
        uid,
        program: File::open(format!("/proc/{pid}/exe")).map_or(Program::Unknown, |file| elf::kind(&file)),
        is_seen_by_root: geteuid().is_root(),
        files: files(pid),
        unreadable: unreadable(&root, &named, uid),
        named,
        is_privileged: is_privileged(pid),
        ancestor: ancestor(stat.parent),
        socket: own.unwrap_or_else(|| DEFAULT_SOCKET.to_owned()),
        daemon_socket: std::path::absolute(socket)
            .unwrap_or_else(|_| socket.to_owned())
            .to_string_lossy()
            .into_owned(),
        daemon,
    })
}

/// Returns the entries of `LD_PRELOAD` of a process that name our library.
fn preloads(pid: u32) -> Vec<String> {
    ours(&procfs::variable(pid, "LD_PRELOAD").unwrap_or_default())
}

/// Returns the entries of the process's /etc/ld.so.preload that name our library.
fn system_preloads(root: &Path) -> Vec<String> {
    ours(&short_text(&root.join("etc/ld.so.preload")).unwrap_or_default())
}

/// Reads the beginning of a file that another user may have replaced by a FIFO, a device or a link.
fn short_text(path: &Path) -> io::Result<String> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    file.take(MAX_PRELOADS).read_to_string(&mut text)?;
    Ok(text)
}

fn ours(list: &str) -> Vec<String> {
    let entries = list.split([':', ' ', '\n', '\t']);
    let ours = entries.filter(|entry| entry.rsplit('/').next() == Some(PRELOAD));
    ours.map(str::to_owned).collect()
}

/// Returns the paths of mapped files and of open devices; `None` without permission.
fn files(pid: u32) -> Option<Vec<String>> {
    let maps = procfs::read(pid, "maps").ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let mut files: Vec<String> = maps
        .lines()
        .filter_map(|line| Some(line.get(line.find('/')?..)?.to_owned()))
        .collect();
    files.sort_unstable();
    files.dedup();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let links = descriptors
        .take(MAX_DESCRIPTORS)
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.starts_with("/dev"));
    files.extend(links.map(|path| path.to_string_lossy().into_owned()));
    Some(files)
}

/// Returns the named libraries, and the hooks beside them, that are missing or that others than root may not
/// read.
fn unreadable(root: &Path, named: &[String], uid: u32) -> Vec<String> {
    let named = named
        .iter()
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from);
    let all = named.flat_map(|path| [path.with_file_name(HOOK), path]);
    let is_unreadable = |path: &PathBuf| {
        let below = root.join(path.strip_prefix("/").unwrap_or(path));
        fs::metadata(below).map_or(true, |file| {
            uid != 0 && file.uid() != uid && file.permissions().mode() & 0o004 == 0
        })
    };
    let unreadable = all.filter(is_unreadable);
    unreadable
        .map(|path| path.to_string_lossy().into_owned())
        .collect()
}

fn is_privileged(pid: u32) -> bool {
    let bytes = procfs::read(pid, "auxv").unwrap_or_default();
    let (pairs, _) = bytes.as_chunks::<16>();
    pairs.iter().any(|pair| {
        let (key, value) = pair.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        word(key) == AT_SECURE && word(value) != 0
    })
}

/// Returns the nearest ancestor whose environment preloads our library.
fn ancestor(parent: u32) -> Option<(u32, String)> {
    let mut pid = parent;
    for _ in 0..MAX_ANCESTORS {
        let stat = process::stat(pid).ok()?;
        if !preloads(pid).is_empty() {
            return Some((pid, stat.comm.to_string()));
        }
        pid = stat.parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_dynamic_and_has_files() {
        let me = std::process::id();
        let socket = Path::new("/nowhere");
        let observed = observe(me, socket, None).unwrap();
        assert_eq!(observed.program, Program::Dynamic);
        assert!(!observed.is_privileged);
        assert!(observed.files.unwrap().iter().any(|path| path.contains("libc")));
        // kernel.pid_max is 2^22 at most.
        assert!(observe(u32::MAX, socket, None).is_none());
    }

    #[test]
    fn our_library_is_found_in_lists() {
        let list = "/a/libother.so:/b/libgcgroup.so /c/libgcgroup.so\n/d/libgcgroup.so.old";
        assert_eq!(ours(list), ["/b/libgcgroup.so", "/c/libgcgroup.so"]);
    }
}
