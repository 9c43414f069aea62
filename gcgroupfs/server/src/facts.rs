//! Facts about a process, as the kernel reports them: what rules examine. Only the wish is the process's own
//! word.

use std::fs;
use std::path::PathBuf;

use gcgroup_abi::environment::GCGROUP_GROUP;
use nix::errno::Errno;
use nix::unistd::{Uid, User};

use gcgroupfs_model::rules::Facts;
use gcgroupfs_sys as sys;
use gcgroupfs_sys::process::{self, Peer};
use gcgroupfs_sys::procfs;

/// Returns the facts about a process at the other end of a socket. The names of its user and of its
/// container are not looked up.
///
/// # Errors
/// * `ESRCH`: it has ended.
/// * `ETIMEDOUT`: it blocks the reads of /proc.
pub fn of_peer(peer: &Peer, wish: Option<&str>) -> nix::Result<Facts> {
    let proc = Proc::read(peer.pid)?;
    // Alive after the reads, so they were about this process and not about a later one with its pid.
    if process::is_dead(&peer.pidfd) {
        return Err(Errno::ESRCH);
    }
    Ok(Facts {
        pid: peer.pid,
        uid: peer.uid,
        gid: peer.gid,
        groups: peer.groups.clone(),
        user: None,
        comm: peer.stat.comm.clone(),
        exe: proc.exe,
        cgroups: proc.cgroups,
        container: None,
        wish: wish.map(str::to_owned),
    })
}

/// Returns the facts about any process, with the name of its user and without that of its container. Its wish
/// is read from its initial environment, if that is permitted.
///
/// # Errors
/// * `ESRCH`: there is no such process.
/// * `ETIMEDOUT`: it blocks the reads of /proc.
pub fn of_pid(pid: u32) -> nix::Result<Facts> {
    let of_pid = i32::try_from(pid).map_err(|_| Errno::ESRCH)?;
    let pidfd = sys::pidfd_open(of_pid).map_err(|_| Errno::ESRCH)?;
    let stat = process::stat(pid)?;
    let proc = Proc::read(pid)?;
    let wish = procfs::variable(pid, GCGROUP_GROUP.name).filter(|wish| !wish.is_empty());
    let status = parse_status(&text(pid, "status")).ok_or(Errno::ESRCH)?;
    if process::is_dead(&pidfd) {
        return Err(Errno::ESRCH);
    }
    Ok(Facts {
        pid,
        uid: status.uid,
        gid: status.gid,
        groups: status.groups,
        user: user_name(status.uid),
        comm: stat.comm,
        exe: proc.exe,
        cgroups: proc.cgroups,
        container: None,
        wish,
    })
}

/// Returns the name of a user. May block: names can come over a network.
pub fn user_name(uid: u32) -> Option<String> {
    Some(User::from_uid(Uid::from_raw(uid)).ok()??.name)
}

/// Facts that are read from /proc.
struct Proc {
    exe: Option<PathBuf>,
    cgroups: Vec<String>,
}

impl Proc {
    fn read(pid: u32) -> nix::Result<Self> {
        let exe = match procfs::read_link(pid, "exe") {
            Err(Errno::ETIMEDOUT) => return Err(Errno::ETIMEDOUT),
            exe => exe.ok().map(undeleted),
        };
        Ok(Self {
            exe,
            cgroups: parse_cgroups(&text(pid, "cgroup")),
        })
    }
}

fn text(pid: u32, name: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Strips the kernel's " (deleted)": a program whose file was replaced is still that program.
fn undeleted(exe: PathBuf) -> PathBuf {
    match exe.to_str().and_then(|text| text.strip_suffix(" (deleted)")) {
        Some(text) => text.into(),
        None => exe,
    }
}

/// Effective ids and supplementary groups.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Parses /proc/PID/status: `Uid:` and `Gid:` are followed by the real, effective, saved and filesystem ids.
fn parse_status(text: &str) -> Option<Status> {
    let numbers = |key: &str| procfs::status_values(text, key);
    Some(Status {
        uid: *numbers("Uid")?.get(1)?,
        gid: *numbers("Gid")?.get(1)?,
        groups: numbers("Groups")?,
    })
}

/// Parses /proc/PID/cgroup, lines of `NUMBER:CONTROLLERS:PATH`; version 2 has number 0 and no controllers.
/// Returns the paths without duplicates, that of version 2 first.
fn parse_cgroups(text: &str) -> Vec<String> {
    let (mut unified, mut others) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        if let (Some(number), Some(_), Some(path)) = (fields.next(), fields.next(), fields.next()) {
            let paths = if number == "0" { &mut unified } else { &mut others };
            if !paths.iter().any(|known| known == path) {
                paths.push(path.to_owned());
            }
        }
    }
    others.retain(|path| !unified.contains(path));
    unified.extend(others);
    unified
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_effective_ids_are_second_of_four() {
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t27 1001 \nNStgid:\t1\n";
        let status = parse_status(text).unwrap();
        assert_eq!((status.uid, status.gid, status.groups), (2, 6, vec![27, 1001]));
        let text = "Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t\n";
        assert!(parse_status(text).unwrap().groups.is_empty());
        for text in ["", "Uid:\t1\nGid:\t1\t1\nGroups:\t", "Uid:\t1\t2\n"] {
            assert_eq!(parse_status(text), None, "{text:?}");
        }
    }

    #[test]
    fn cgroups_v2_first_without_duplicates() {
        let text = "4:memory:/slurm/job_1\n3:cpu,cpuacct:/slurm/job_1\n1:name=systemd:/a:b\n0::/a:b\nodd\n";
        assert_eq!(parse_cgroups(text), ["/a:b", "/slurm/job_1"]);
    }

    #[test]
    fn facts_of_own_pid_match_own_process() {
        let me = of_pid(std::process::id()).unwrap();
        assert_eq!(me.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(me.exe, std::env::current_exe().ok());
        assert_eq!(me.user, user_name(me.uid));
        assert!(me.is_in_group(nix::unistd::getegid().as_raw()));
        assert!(me.cgroups.iter().all(|path| path.starts_with('/')));
        assert_eq!(of_pid(u32::MAX), Err(Errno::ESRCH));
    }

    #[test]
    fn undeleted_strips_suffix_of_replaced_program() {
        assert_eq!(undeleted("/bin/a (deleted)".into()), PathBuf::from("/bin/a"));
        assert_eq!(undeleted("/bin/a".into()), PathBuf::from("/bin/a"));
    }
}
