//! Identity of the process at the other end of a socket, from the kernel: pid, start time, owner, name, and a
//! pidfd.
//!
//! Nothing that a process says about itself is trusted, except its name (`comm`), which is only displayed.
//! Examining a process takes no longer than [`procfs`] allows.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};

use crate::procfs;
use gcgroupfs_model::text::Comm;

/// A process that connected.
#[derive(Debug)]
pub struct Peer {
    /// Pid in the daemon's pid namespace.
    pub pid: u32,
    /// Effective ids when it connected.
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups when it connected.
    pub groups: Vec<u32>,
    /// Whether it is in another pid namespace than the daemon: in a container.
    pub is_contained: bool,
    pub stat: Stat,
    /// Readable once the process is dead.
    pub pidfd: OwnedFd,
}

/// Contents of `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    pub comm: Comm,
    /// Pid of its parent (field 4); 0 if the parent is outside of our pid namespace.
    pub parent: u32,
    /// Start time in clock ticks since boot (field 22). With the pid it identifies a process until the
    /// machine restarts.
    pub start_time: u64,
    /// Start addresses of its program and its stack (fields 26 and 28). They change with an exec; `None`
    /// while it executes a program or exits, or without permission.
    pub image: Option<(u64, u64)>,
    /// Whether it has begun to end (`PF_EXITING` of field 9).
    pub is_ending: bool,
}

/// Returns the pid (0 if it has none here), uid and gid of the process at the socket's other end, as they
/// were when it connected.
///
/// # Errors
/// The descriptor is not a connected socket.
pub fn owner(socket: &impl AsFd) -> nix::Result<(u32, u32, u32)> {
    let peer = getsockopt(socket, sockopt::PeerCredentials)?;
    Ok((u32::try_from(peer.pid()).unwrap_or(0), peer.uid(), peer.gid()))
}

/// Identifies the process that connected the socket's other end.
///
/// # Errors
/// * `ESRCH`: it is dead, or in a pid namespace that is not below the daemon's.
/// * `ETIMEDOUT`: it blocks the reads of /proc.
pub fn peer(socket: &impl AsFd) -> nix::Result<Peer> {
    let (credentials, pid, pidfd) = other_end(socket)?;
    let stat = stat(pid)?;
    let is_contained = !shares_our_pids(pid);
    // Alive after /proc was read, so the reads were about this process and not about a later one with its
    // pid.
    if is_dead(&pidfd) {
        return Err(Errno::ESRCH);
    }
    Ok(Peer {
        pid,
        uid: credentials.uid(),
        gid: credentials.gid(),
        // Without SO_PEERGROUPS (before Linux 4.13) supplementary groups are ignored.
        groups: crate::peer_groups(socket).unwrap_or_default(),
        is_contained,
        stat,
        pidfd,
    })
}

/// Returns whether the socket's other end is in a container with its own pid namespace; true also if that is
/// unknown.
///
/// Root in there is uid 0 for the kernel too, unless it has a user namespace (`user_namespaces(7)`), but is
/// not the machine's root.
pub fn is_contained(socket: &impl AsFd) -> bool {
    other_end(socket).map_or(true, |(_, pid, pidfd)| !shares_our_pids(pid) || is_dead(&pidfd))
}

/// As [`is_contained`] of a process by its pid in our pid namespace. Does not wait for it.
pub fn is_in_container(pid: u32) -> bool {
    !shares_our_pids(pid)
}

/// Returns the credentials, pid and pidfd of the process that connected.
fn other_end(socket: &impl AsFd) -> nix::Result<(UnixCredentials, u32, OwnedFd)> {
    let credentials = getsockopt(socket, sockopt::PeerCredentials)?;
    let pid = u32::try_from(credentials.pid())
        .ok()
        .filter(|pid| *pid > 0)
        .ok_or(Errno::ESRCH)?;
    // SO_PEERPIDFD (Linux 6.5) refers to the process that connected even if its pid was reused since.
    let pidfd = match getsockopt(socket, sockopt::PeerPidfd) {
        Ok(pidfd) => pidfd,
        Err(_) => crate::pidfd_open(credentials.pid()).map_err(|_| Errno::ESRCH)?,
    };
    Ok((credentials, pid, pidfd))
}

/// Returns whether a process is in our pid namespace and not in one below it: then it has as many pids as we
/// have (`NSpid`, Linux 4.1). Without a free descriptor for that the links to the namespaces are compared,
/// which the kernel shows of fewer processes.
fn shares_our_pids(pid: u32) -> bool {
    static OWN: OnceLock<usize> = OnceLock::new();
    let depth = |pid| procfs::status(pid, "NSpid").map(|pids| pids.len());
    let link = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = std::process::id();
    let of_own = OWN.get().copied().or_else(|| {
        let depth = depth(own)?;
        Some(*OWN.get_or_init(|| depth))
    });
    match (depth(pid), of_own) {
        (Some(depth), Some(own)) => depth == own,
        _ => link(pid).is_some_and(|namespace| link(own) == Some(namespace)),
    }
}

/// Returns the real, effective and saved uid of a process, without waiting for it.
pub fn uids(pid: u32) -> Option<[u32; 3]> {
    procfs::status(pid, "Uid")?.first_chunk().copied()
}

/// Returns the pid of a process's parent, without waiting for either; 0 if that is outside of our pid
/// namespace. `None` if there is no such process.
pub fn parent(pid: u32) -> Option<u32> {
    procfs::status(pid, "PPid")?.first().copied()
}

/// Sends a signal to the process with a pid and its pidfd if kill(2) would let the user with this uid do so;
/// `None` for root.
///
/// # Errors
/// `EPERM` if it belongs to another user now; `ESRCH` if it has ended.
pub fn kill_for(user: Option<u32>, pid: u32, pidfd: &OwnedFd, signal: Signal) -> nix::Result<()> {
    if let Some(uid) = user {
        let uids = uids(pid);
        // Alive after /proc was read, so these are not the uids of a later process with its pid.
        if is_dead(pidfd) {
            return Err(Errno::ESRCH);
        }
        if !uids.is_some_and(|[real, _, saved]| uid == real || uid == saved) {
            return Err(Errno::EPERM);
        }
    }
    crate::send_signal(pidfd, signal)
}

/// Returns whether the process of a pidfd has ended.
pub fn is_dead(pidfd: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Returns a pidfd of the process with this pid and start time. Its `/proc/PID/stat` is read once, without a
/// time limit, so this is for a helper process that the daemon ends if it does not answer.
///
/// # Errors
/// * `ESRCH`: it has ended.
/// * Otherwise those of pidfd_open(2) and of the read.
pub fn open(pid: u32, start_time: u64) -> io::Result<OwnedFd> {
    let ended = || io::Error::from(Errno::ESRCH);
    let pidfd = crate::pidfd_open(pid.try_into().map_err(|_| ended())?)?;
    let text = fs::read(format!("/proc/{pid}/stat")).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ended(),
        _ => error,
    })?;
    let stat = parse_stat(&String::from_utf8_lossy(&text));
    let is_it = stat.is_some_and(|stat| stat.start_time == start_time);
    // Alive after the read, so the read was about this process and not about a later one with its pid.
    (is_it && !is_dead(&pidfd)).then_some(pidfd).ok_or_else(ended)
}

/// Returns whether the process with this pid and start time is alive. A process that cannot be examined
/// counts as alive: it is executing another program.
pub fn is_alive(pid: u32, start_time: u64) -> bool {
    match stat(pid) {
        Ok(stat) => stat.start_time == start_time,
        Err(errno) => errno == Errno::ETIMEDOUT,
    }
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// * `ESRCH`: there is no such process.
/// * `ETIMEDOUT`: it blocks the read.
pub fn stat(pid: u32) -> nix::Result<Stat> {
    // The name need not be UTF-8.
    parse_stat(&String::from_utf8_lossy(&procfs::read(pid, "stat")?)).ok_or(Errno::ESRCH)
}

/// Returns how a dead process has ended: `exit:STATUS` or `signal:NUMBER`. `None` if the kernel does not
/// tell: it tells of a process that its parent has not waited for yet, and of any since Linux 6.15.
pub fn how_ended(pid: u32, start_time: u64, pidfd: &OwnedFd) -> Option<String> {
    let of_zombie = || {
        let text = procfs::read(pid, "stat").ok()?;
        let text = String::from_utf8_lossy(&text);
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // The state is field 3.
        let field = |number: usize| fields.get(number - 3);
        (field(22)?.parse() == Ok(start_time)).then_some(())?;
        field(52)?.parse().ok()
    };
    let status: i32 = of_zombie().or_else(|| crate::exit_status(pidfd))?;
    Some(match status & 0x7f {
        0 => format!("exit:{}", status >> 8 & 0xff),
        signal => format!("signal:{signal}"),
    })
}

/// Flag of a process that has begun to end, in the kernel's include/linux/sched.h.
const PF_EXITING: u64 = 4;

/// Parses `PID (COMM) STATE …`. The name may contain blanks and parentheses, so it ends at the last `)`.
fn parse_stat(text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(')')?;
    let (_, comm) = head.split_once('(')?;
    // The state is field 3.
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse().ok());
    // A zombie has ended, unless only its first thread has and others (field 20) go on.
    let threads: u64 = field(20)?;
    if fields.first().is_some_and(|state| matches!(*state, "Z" | "X")) && threads <= 1 {
        return None;
    }
    Some(Stat {
        comm: comm.into(),
        parent: u32::try_from(field(4)?).ok()?,
        start_time: field(22)?,
        image: Some((field(26)?, field(28)?)).filter(|(_, stack)| *stack != 0),
        is_ending: field(9)? & PF_EXITING != 0,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn stat_comm_may_have_parentheses_and_newlines() {
        let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let stat = parse_stat(&format!("7 (a) S (b\nc)) S {}\n", numbers.join(" "))).unwrap();
        assert_eq!(
            stat,
            Stat {
                comm: "a) S (b\nc)".into(),
                parent: 4,
                start_time: 22,
                image: Some((26, 28)),
                is_ending: false,
            }
        );
    }

    #[test]
    fn stat_zombie_counts_only_with_live_threads() {
        let line = |threads: u32| {
            let before: Vec<String> = (4..20).map(|n| n.to_string()).collect();
            let after: Vec<String> = (21..=52).map(|n| n.to_string()).collect();
            format!("7 (a) Z {} {threads} {}", before.join(" "), after.join(" "))
        };
        assert_eq!(parse_stat(&line(1)), None);
        assert!(parse_stat(&line(2)).is_some());
    }

    #[test]
    fn stat_truncated_is_refused() {
        for text in ["", "7", "7 (a", "7 (a)", "7 (a) S 1 2 3", "7 a S"] {
            assert_eq!(parse_stat(text), None, "{text}");
        }
    }

    #[test]
    fn is_alive_until_killed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = crate::pidfd_open(child.id().try_into().unwrap()).unwrap();
        let start_time = stat(child.id()).unwrap().start_time;
        assert!(is_alive(child.id(), start_time));
        assert!(!is_alive(child.id(), start_time + 1));
        assert!(open(child.id(), start_time).is_ok());
        let other = open(child.id(), start_time + 1).map_err(|error| error.raw_os_error());
        assert_eq!(other.unwrap_err(), Some(libc::ESRCH));
        assert!(!is_dead(&pidfd));
        child.kill().unwrap();
        // Readable as soon as it is a zombie; this does not reap it.
        let mut watched = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut watched, PollTimeout::from(10_000_u16)), Ok(1));
        assert!(is_dead(&pidfd));
        assert!(!is_alive(child.id(), start_time));
        assert!(open(child.id(), start_time).is_err());
        child.wait().unwrap();
    }
}
