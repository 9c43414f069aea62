//! Who is at the other end of a socket, according to the kernel: pid, start time, owner, name, and a pidfd for
//! the day it dies.
//!
//! Nothing here believes anything a process says of itself, save its name (`comm`), which is only ever shown. No look at a
//! process takes longer than [`procfs`] allows.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};

use crate::procfs;
use crate::sys;
use crate::text::Comm;

/// A process that connected.
#[derive(Debug)]
pub struct Peer {
    /// In the daemon's pid namespace.
    pub pid: u32,
    /// Effective ids when it connected.
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, likewise.
    pub groups: Vec<u32>,
    /// It is in another pid namespace than the daemon's: in a container.
    pub is_contained: bool,
    pub stat: Stat,
    /// Readable once the process is dead.
    pub pidfd: OwnedFd,
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    pub comm: Comm,
    /// The pid of its parent (field 4); zero if that is in no pid namespace of ours.
    pub parent: u32,
    /// In clock ticks since boot (field 22). With the pid, it names a process for as long as the machine is up.
    pub start_time: u64,
    /// Where its program begins and where its stack does (fields 26 and 28): another pair after an exec, none
    /// while it executes or exits, or where we may not look.
    pub image: Option<(u64, u64)>,
}

/// Returns the pid (0 if it has none here), uid and gid of the process at the socket's other end, as they were when it
/// connected.
///
/// # Errors
/// The socket is none of ours.
pub fn owner(socket: &impl AsFd) -> nix::Result<(u32, u32, u32)> {
    let peer = getsockopt(socket, sockopt::PeerCredentials)?;
    Ok((u32::try_from(peer.pid()).unwrap_or(0), peer.uid(), peer.gid()))
}

/// Identifies the process that connected the socket's other end.
///
/// # Errors
/// `ESRCH` if it is dead, or lives in a pid namespace that is not below the daemon's; `ETIMEDOUT` if it holds up looking at
/// it.
pub fn peer(socket: &impl AsFd) -> nix::Result<Peer> {
    let (credentials, pid, pidfd) = other_end(socket)?;
    let stat = stat(pid)?;
    let is_contained = !shares_our_pids(pid);
    // Still alive after /proc was read: so that was of itself, and not of a successor to the pid.
    if is_dead(&pidfd) {
        return Err(Errno::ESRCH);
    }
    Ok(Peer {
        pid,
        uid: credentials.uid(),
        gid: credentials.gid(),
        // Without them (before Linux 4.13) somebody is in fewer.
        groups: sys::peer_groups(socket).unwrap_or_default(),
        is_contained,
        stat,
        pidfd,
    })
}

/// Whether the socket's other end is in a container, as far as that has pids of its own; also if it cannot be told.
///
/// Root there is uid 0 for the kernel too, unless it has a user namespace (`user_namespaces(7)`), and yet not the
/// machine's root.
pub fn is_contained(socket: &impl AsFd) -> bool {
    other_end(socket).map_or(true, |(_, pid, pidfd)| !shares_our_pids(pid) || is_dead(&pidfd))
}

/// The process that connected: what the kernel says of it, its pid, a pidfd.
fn other_end(socket: &impl AsFd) -> nix::Result<(UnixCredentials, u32, OwnedFd)> {
    let credentials = getsockopt(socket, sockopt::PeerCredentials)?;
    let pid = u32::try_from(credentials.pid())
        .ok()
        .filter(|pid| *pid > 0)
        .ok_or(Errno::ESRCH)?;
    // SO_PEERPIDFD (Linux 6.5) is the process that connected even if its pid has been given to another since.
    let pidfd = match getsockopt(socket, sockopt::PeerPidfd) {
        Ok(pidfd) => pidfd,
        Err(_) => sys::pidfd_open(credentials.pid()).map_err(|_| Errno::ESRCH)?,
    };
    Ok((credentials, pid, pidfd))
}

/// Whether a process is in our pid namespace, and not in one below: then it has as many pids as we have (`NSpid`, Linux
/// 4.1).
fn shares_our_pids(pid: u32) -> bool {
    let depth = |pid| procfs::status(pid, "NSpid").map(|pids| pids.len());
    let own = depth(std::process::id());
    own.is_some() && depth(pid) == own
}

/// Whether the process behind a pidfd has ended.
pub fn is_dead(pidfd: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Whether this very process, not a successor to its pid, is alive. A process that cannot be looked at lives: it is
/// executing another program.
pub fn is_alive(pid: u32, start_time: u64) -> bool {
    match stat(pid) {
        Ok(stat) => stat.start_time == start_time,
        Err(errno) => errno == Errno::ETIMEDOUT,
    }
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// `ESRCH` if there is no such process; `ETIMEDOUT` if it holds up the read.
pub fn stat(pid: u32) -> nix::Result<Stat> {
    // The name need not be UTF-8.
    parse_stat(&String::from_utf8_lossy(&procfs::read(pid, "stat")?)).ok_or(Errno::ESRCH)
}

/// `PID (COMM) STATE …`: the name may itself contain blanks and parentheses, so its end is the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(')')?;
    let (_, comm) = head.split_once('(')?;
    // The state is field 3.
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse().ok());
    // A zombie is over, unless only its first thread has ended and others (field 20) go on.
    let threads: u64 = field(20)?;
    if fields.first().is_some_and(|state| matches!(*state, "Z" | "X")) && threads <= 1 {
        return None;
    }
    Some(Stat {
        comm: comm.into(),
        parent: u32::try_from(field(4)?).ok()?,
        start_time: field(22)?,
        image: Some((field(26)?, field(28)?)).filter(|(_, stack)| *stack != 0),
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_with_parentheses_blanks_and_newlines_is_taken_whole() {
        let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let stat = parse_stat(&format!("7 (a) S (b\nc)) S {}\n", numbers.join(" "))).unwrap();
        assert_eq!(
            stat,
            Stat {
                comm: "a) S (b\nc)".into(),
                parent: 4,
                start_time: 22,
                image: Some((26, 28))
            }
        );
    }

    #[test]
    fn a_zombie_is_no_process_unless_other_threads_go_on() {
        let line = |threads: u32| {
            let before: Vec<String> = (4..20).map(|n| n.to_string()).collect();
            let after: Vec<String> = (21..=52).map(|n| n.to_string()).collect();
            format!("7 (a) Z {} {threads} {}", before.join(" "), after.join(" "))
        };
        assert_eq!(parse_stat(&line(1)), None);
        assert!(parse_stat(&line(2)).is_some());
    }

    #[test]
    fn torn_text_is_no_process() {
        for text in ["", "7", "7 (a", "7 (a)", "7 (a) S 1 2 3", "7 a S"] {
            assert_eq!(parse_stat(text), None, "{text}");
        }
    }

    #[test]
    fn a_child_is_alive_until_it_is_dead() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = sys::pidfd_open(child.id().try_into().unwrap()).unwrap();
        let start_time = stat(child.id()).unwrap().start_time;
        assert!(is_alive(child.id(), start_time));
        assert!(!is_alive(child.id(), start_time + 1));
        assert!(!is_dead(&pidfd));
        child.kill().unwrap();
        // Readable as soon as it is a zombie; waited for without reaping it.
        let mut watched = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut watched, PollTimeout::from(10_000_u16)), Ok(1));
        assert!(is_dead(&pidfd));
        assert!(!is_alive(child.id(), start_time));
        child.wait().unwrap();
    }
}
