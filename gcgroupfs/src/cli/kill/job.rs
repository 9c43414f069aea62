//! Processes that are to end: governed ones, and others of the sessions and kernel cgroups that are theirs
//! alone. Each is known by a pidfd, so that no signal reaches a later process with its pid.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use gcgroup_abi::environment::GCGROUP_JOB;
use gcgroup_client::node::ancestors;
use gcgroupfs_model::text::word;
use gcgroupfs_sys::{process, procfs, send_signal};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getsid};

use super::Chosen;
use crate::message::complain;

/// Longest chain of ancestors of the caller that is looked at.
const MAX_ANCESTORS: usize = 64;

/// Place of a process among others.
#[derive(Debug, Clone)]
struct Place {
    start_time: u64,
    session: i32,
    cgroup: String,
}

/// Process that is to end.
#[derive(Debug)]
struct Doomed {
    comm: String,
    place: Place,
    pidfd: OwnedFd,
    is_governed: bool,
    /// Signals that were sent.
    sent: Vec<Signal>,
    /// Whether it was alive when SIGKILL was due.
    is_killed: bool,
    /// Whether a signal was refused.
    refused: Option<Errno>,
}

#[derive(Debug, Default)]
pub(super) struct Job {
    all: BTreeMap<u32, Doomed>,
    /// Sessions and kernel cgroups of its own.
    sessions: BTreeSet<i32>,
    cgroups: BTreeSet<String>,
}

/// Returns where all processes are.
fn places() -> BTreeMap<u32, Place> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, place(pid)?))).collect()
}

fn place(pid: u32) -> Option<Place> {
    let stat = process::stat(pid).ok()?;
    let session = getsid(Some(Pid::from_raw(pid.try_into().ok()?))).ok()?;
    let cgroup = procfs::read(pid, "cgroup").unwrap_or_default();
    Some(Place {
        start_time: stat.start_time,
        session: session.as_raw(),
        cgroup: String::from_utf8_lossy(&cgroup).into_owned(),
    })
}

/// Returns the oldest process of a kernel cgroup; `None` of the root and of a login, which a job may outlive.
fn oldest(places: &BTreeMap<u32, Place>, cgroup: &str) -> Option<u32> {
    let is_login = |line: &str| {
        line.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("session-"))
    };
    if cgroup.lines().all(|line| line.ends_with(":/")) || cgroup.lines().any(is_login) {
        return None;
    }
    let inside = places.iter().filter(|(_, place)| place.cgroup == cgroup);
    let oldest = inside.min_by_key(|(pid, place)| (place.start_time, **pid));
    oldest.map(|(pid, _)| *pid)
}

/// Returns the caller and its ancestors.
fn callers() -> BTreeSet<u32> {
    let own = u32::try_from(getpid().as_raw()).unwrap_or(0);
    let parent = |pid: &u32| process::stat(*pid).ok().map(|stat| stat.parent);
    let chain = std::iter::successors(Some(own), parent).take(MAX_ANCESTORS);
    chain.take_while(|pid| *pid != 0).collect()
}

/// Returns whether a process was started by `gcgroupfs run` for a job in these groups, or by a process that
/// was.
fn is_of_job(pid: u32, groups: &BTreeSet<String>) -> bool {
    let job = procfs::variable(pid, GCGROUP_JOB.name);
    job.is_some_and(|job| ancestors(&job).any(|group| groups.contains(group)))
}

impl Job {
    /// Adds the chosen processes and those beside them. `again` returns the chosen ones anew: a pidfd that
    /// was opened before is that of a governed process then.
    pub(super) fn look(
        &mut self,
        chosen: &Chosen,
        again: impl FnOnce() -> anyhow::Result<BTreeSet<u32>>,
    ) -> anyhow::Result<()> {
        let places = places();
        let new = chosen.pids.iter().filter(|pid| !self.is_alive(**pid));
        let mut found: Vec<(u32, Doomed)> = new.filter_map(|pid| open(*pid, &places, true)).collect();
        if !found.is_empty() {
            let still = again()?;
            found.retain(|(pid, one)| still.contains(pid) && !process::is_dead(&one.pidfd));
        }
        for (pid, one) in found {
            self.all.insert(pid, one);
        }
        self.look_beside(chosen, &places);
        Ok(())
    }

    /// Adds all other processes of the sessions and cgroups that are the job's own.
    fn look_beside(&mut self, chosen: &Chosen, places: &BTreeMap<u32, Place>) {
        let caller = u32::try_from(getpid().as_raw()).ok();
        let Some(own) = caller.and_then(|pid| places.get(&pid)) else {
            return;
        };
        let known = self.all.iter().filter(|(pid, _)| self.is_alive(**pid));
        let known: BTreeMap<u32, Place> = known.map(|(pid, one)| (*pid, one.place.clone())).collect();
        let is_member = |pid| known.contains_key(&pid) || is_of_job(pid, &chosen.groups);
        for place in known.values().filter(|place| place.session != own.session) {
            let leader = u32::try_from(place.session).unwrap_or(0);
            if places.contains_key(&leader) && is_member(leader) {
                self.sessions.insert(place.session);
            }
        }
        for place in known.values() {
            if place.cgroup != own.cgroup && oldest(places, &place.cgroup).is_some_and(is_member) {
                self.cgroups.insert(place.cgroup.clone());
            }
        }
        let callers = callers();
        let is_new = |pid: u32| pid != 1 && !callers.contains(&pid) && !known.contains_key(&pid);
        let found = places
            .keys()
            .filter(|pid| is_new(**pid) && self.is_beside(&places[*pid]));
        let found: Vec<(u32, Doomed)> = found.filter_map(|pid| open(*pid, places, false)).collect();
        for (pid, one) in found {
            // The session's number and the cgroup's name are the job's as long as a process known before is
            // there; a later one that was started by the job is as well.
            let is_held = known.iter().any(|(pid, place)| {
                let is_there = place.session == one.place.session && self.sessions.contains(&place.session)
                    || place.cgroup == one.place.cgroup && self.cgroups.contains(&place.cgroup);
                is_there && self.is_alive(*pid)
            });
            if is_held || is_of_job(pid, &chosen.groups) && !process::is_dead(&one.pidfd) {
                self.all.insert(pid, one);
            }
        }
    }

    fn is_beside(&self, place: &Place) -> bool {
        self.sessions.contains(&place.session) || self.cgroups.contains(&place.cgroup)
    }

    fn is_alive(&self, pid: u32) -> bool {
        self.all
            .get(&pid)
            .is_some_and(|one| !process::is_dead(&one.pidfd))
    }

    /// Returns the pidfds of the living processes that may get signals.
    pub(super) fn alive(&self) -> impl Iterator<Item = &OwnedFd> {
        let all = self.all.values().filter(|one| one.refused.is_none());
        all.map(|one| &one.pidfd).filter(|pidfd| !process::is_dead(pidfd))
    }

    pub(super) fn is_any_alive(&self) -> bool {
        self.alive().next().is_some()
    }

    /// Has `kill` send a signal to the living governed processes that have not had it.
    pub(super) fn send_by(&mut self, signal: Signal, mut kill: impl FnMut(u32) -> bool) {
        let all = self.all.iter_mut();
        for (pid, one) in all.filter(|(_, one)| one.is_governed && !one.sent.contains(&signal)) {
            if !process::is_dead(&one.pidfd) && kill(*pid) {
                one.sent.push(signal);
            }
        }
    }

    /// Notes that SIGKILL is due to all that live.
    pub(super) fn doom(&mut self) {
        for one in self.all.values_mut() {
            one.is_killed |= !process::is_dead(&one.pidfd);
        }
    }

    /// Sends signals to those that have not had them.
    pub(super) fn send(&mut self, signals: &[Signal]) {
        for one in self.all.values_mut() {
            for signal in signals {
                if one.refused.is_some() || one.sent.contains(signal) {
                    continue;
                }
                match send_signal(&one.pidfd, *signal) {
                    Ok(()) => one.sent.push(*signal),
                    Err(Errno::ESRCH) => {}
                    Err(errno) => one.refused = Some(errno),
                }
            }
        }
    }

    /// Prints what has become of the processes. Returns the exit status.
    pub(super) fn report(&self) -> ExitCode {
        let mut nr_left = 0;
        for (pid, one) in &self.all {
            let why = match one.refused {
                _ if process::is_dead(&one.pidfd) => continue,
                Some(errno) => errno.desc(),
                None => "has not ended yet",
            };
            nr_left += 1;
            complain!("gcgroupfs: {pid} ({}): {why}", word(&one.comm));
        }
        let ended = self.all.len() - nr_left;
        let killed = self.all.values().filter(|one| one.is_killed).count();
        let processes = if ended == 1 {
            "process has"
        } else {
            "processes have"
        };
        println!("{ended} {processes} ended, {killed} by SIGKILL");
        if nr_left == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn open(pid: u32, places: &BTreeMap<u32, Place>, is_governed: bool) -> Option<(u32, Doomed)> {
    let place = places.get(&pid)?.clone();
    let pidfd = process::open(pid, place.start_time).ok()?;
    let comm = process::stat(pid).map_or_else(|_| String::new(), |stat| stat.comm.to_string());
    Some((
        pid,
        Doomed {
            comm,
            place,
            pidfd,
            is_governed,
            sent: Vec::new(),
            is_killed: false,
            refused: None,
        },
    ))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn chosen(pid: u32) -> Chosen {
        Chosen {
            pids: [pid].into(),
            groups: ["a".to_owned()].into(),
        }
    }

    #[test]
    fn process_that_is_no_longer_chosen_is_not_added() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let mut job = Job::default();
        job.look(&chosen(pid), || Ok(BTreeSet::new())).unwrap();
        assert!(!job.is_any_alive(), "its pid may be another process's");
        job.look(&chosen(pid), || Ok([pid].into())).unwrap();
        let mut told = Vec::new();
        for _ in 0..2 {
            job.send_by(Signal::SIGUSR1, |pid| {
                told.push(pid);
                true
            });
        }
        assert_eq!(told, [pid], "once");
        assert_eq!(job.all.len(), 1, "the caller's session is not the job's");
        job.send(&[Signal::SIGTERM]);
        child.wait().unwrap();
        assert!(!job.is_any_alive());
    }

    #[test]
    fn oldest_process_of_a_cgroup_decides_and_the_root_is_nobodys() {
        let place = |start_time, cgroup: &str| Place {
            start_time,
            session: 1,
            cgroup: cgroup.to_owned(),
        };
        let places = BTreeMap::from([
            (7, place(30, "0::/job.scope\n")),
            (9, place(20, "0::/job.scope\n")),
            (8, place(10, "0::/\n")),
        ]);
        assert_eq!(oldest(&places, "0::/job.scope\n"), Some(9));
        assert_eq!(oldest(&places, "0::/\n"), None);
        let login = "0::/user.slice/session-3.scope\n";
        assert_eq!(oldest(&[(5, place(1, login))].into(), login), None);
        assert_eq!(oldest(&places, ""), None);
    }
}
