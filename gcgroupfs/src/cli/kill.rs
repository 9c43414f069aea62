//! `gcgroupfs kill`: ends processes and jobs as a whole: SIGTERM, a time of grace, SIGKILL.

mod job;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::Args;
use gcgroup_client::Client;
use gcgroup_client::node::{Reader, Snapshot, ancestors};
use gcgroupfs_model::text::word;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use self::job::Job;
use super::Socket;
use super::freeze::{Paths, resolve};
use super::report::age;
use crate::message::complain;

/// Longest time between two looks for processes that the job has started since.
const LOOK: Duration = Duration::from_millis(100);

/// Longest wait for an answer of the daemon.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time after SIGKILL within which a process is expected to end: the driver may have to free its memory.
const LAST: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = "\
All governed processes that are named, or in the groups that are named and below, get SIGTERM and SIGCONT, and SIGKILL if \
they have not ended after the time of grace. So do all other processes of a job's session, if its leader was \
started by gcgroupfs run for that job or is itself to end (as with setsid gcgroupfs run), and of its kernel cgroup, if \
the oldest process there is such a one (systemd-run --scope gcgroupfs run). The session and the cgroup of the \
caller are never ended as such.

Exit status: 0 all have ended; 1 some have not, or no such process or group; 2 usage error.")]
pub(super) struct Arguments {
    /// Time between SIGTERM and SIGKILL, as 10s or 2m; 0: SIGKILL at once
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = age)]
    grace: u64,
    #[command(flatten)]
    of: Paths,
}

/// Process or group that is to end.
#[derive(Debug)]
enum Named {
    Process(u32),
    Group(String),
}

/// Ends the processes and groups. Errors of single processes, and names of nothing, are printed on standard
/// error.
///
/// # Errors
/// The daemon does not answer.
pub(super) fn run(socket: &Socket, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (socket, paths) = resolve(socket, &arguments.of.paths);
    let mut reader = Reader::new(&socket);
    reader.only(vec!["gcgroup.events"]);
    let mut read = || {
        reader.connect(Client::connect_with(&socket, PATIENCE)?);
        reader.read()
    };
    let snapshot = read()?;
    ensure!(
        Client::connect_with(&socket, PATIENCE)?.daemon().is_some(),
        "the daemon is in another pid namespace: use gcgroup.kill"
    );
    let mut named = Vec::new();
    for path in &paths {
        match name(&snapshot, path) {
            Ok(one) => named.push(one),
            // As kill(1), it ends the others.
            Err(error) => complain!("gcgroupfs: {error}"),
        }
    }
    if named.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let mut job = Job::default();
    let mut look = |job: &mut Job| -> anyhow::Result<()> {
        let before = read()?;
        job.look(&chosen(&before, &named), || Ok(chosen(&read()?, &named).pids))
    };
    look(&mut job)?;
    if arguments.grace > 0 {
        let end = Instant::now().checked_add(Duration::from_secs(arguments.grace));
        loop {
            send_by_daemon(&socket, &mut job, Signal::SIGTERM);
            job.send(&[Signal::SIGTERM, Signal::SIGCONT]);
            if wait(&job, end) {
                break;
            }
            // What is known ends also if the daemon does not answer any more.
            let _ = look(&mut job);
        }
    }
    let end = Instant::now().checked_add(LAST);
    let _ = look(&mut job);
    if job.is_any_alive() {
        job.doom();
        send_by_daemon(&socket, &mut job, Signal::SIGKILL);
        wait(&job, end);
    }
    // Those that the daemon has not killed.
    while job.is_any_alive() {
        job.doom();
        job.send(&[Signal::SIGKILL]);
        if wait(&job, end) {
            break;
        }
        let _ = look(&mut job);
    }
    let status = job.report();
    Ok(if named.len() < paths.len() {
        ExitCode::FAILURE
    } else {
        status
    })
}

/// Returns the process or group of a path. A job of this user may be named without the groups above.
fn name(snapshot: &Snapshot, path: &str) -> anyhow::Result<Named> {
    if let Ok(pid) = path.parse() {
        let is_there = snapshot.processes.iter().any(|process| process.pid == pid);
        ensure!(is_there, "{pid} is no governed process");
        return Ok(Named::Process(pid));
    }
    if snapshot.group(path).is_some() {
        return Ok(Named::Group(path.to_owned()));
    }
    let uid = nix::unistd::geteuid().as_raw();
    let ends = |group: &&str| group.strip_suffix(path).is_some_and(|above| above.ends_with('/'));
    let own = snapshot.groups.iter().filter(|group| group.uid == uid);
    let found: Vec<&str> = own.map(|group| group.path.as_str()).filter(ends).collect();
    match found.as_slice() {
        [one] => Ok(Named::Group((*one).to_owned())),
        [] => bail!("{}: no such process or group", word(path)),
        _ => bail!("{}: there are several: {}", word(path), found.join(", ")),
    }
}

/// Governed processes that are to end, and the groups of their jobs.
#[derive(Debug, Default)]
struct Chosen {
    pids: BTreeSet<u32>,
    groups: BTreeSet<String>,
}

fn chosen(snapshot: &Snapshot, named: &[Named]) -> Chosen {
    let mut chosen = Chosen::default();
    for one in named {
        if let Named::Group(path) = one {
            chosen.groups.insert(path.clone());
        }
    }
    for process in &snapshot.processes {
        let group = process.group.as_deref().unwrap_or_default();
        let is_it = |one: &Named| match one {
            Named::Process(pid) => process.pid == *pid,
            Named::Group(path) => ancestors(group).any(|one| one == path),
        };
        if named.iter().any(is_it) {
            chosen.pids.insert(process.pid);
            chosen.groups.insert(group.to_owned());
        }
    }
    chosen
}

/// Waits until all have ended, for [`LOOK`] at most. Returns whether the wait is over: all have ended, or it
/// is later than `end`.
fn wait(job: &Job, end: Option<Instant>) -> bool {
    let look = Instant::now() + LOOK;
    loop {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let alive: Vec<_> = job.alive().map(|one| one.as_fd()).collect();
        let Some(one) = alive.first() else { return true };
        if end.is_some_and(|end| left(end).is_zero()) {
            return true;
        }
        let pause = end.map_or(left(look), |end| left(end).min(left(look)));
        if pause.is_zero() {
            return false;
        }
        let timeout = PollTimeout::try_from(pause + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(*one, PollFlags::POLLIN)], timeout);
    }
}

/// Has the daemon send a signal to the governed processes, so that their records name the caller. Those for
/// which it refuses, or does not answer, are left to the caller.
fn send_by_daemon(socket: &Path, job: &mut Job, signal: Signal) {
    let Ok(mut client) = Client::connect_with(socket, PATIENCE) else {
        return;
    };
    let value = match signal {
        Signal::SIGKILL => "1",
        signal => signal.as_str(),
    };
    job.send_by(signal, |pid| {
        let written = client.set(&format!("{pid}/gcgroup.kill"), value);
        // SIGKILL is sent to it again, should it not have ended by that.
        signal != Signal::SIGKILL && matches!(written, Ok(Ok(())))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_client::node::fixture;

    #[test]
    fn names_lead_to_processes_of_groups_below_only() {
        let snapshot = fixture::snapshot();
        let pids = |path: &str| chosen(&snapshot, &[name(&snapshot, path).unwrap()]).pids;
        assert_eq!(pids("a"), BTreeSet::from([7, 100]));
        assert_eq!(pids("a/b"), BTreeSet::from([7, 100]));
        assert_eq!(pids("7"), BTreeSet::from([7]));
        assert_eq!(pids("c"), BTreeSet::new());
        for path in ["8", "ab", "b"] {
            assert!(name(&snapshot, path).is_err(), "{path}");
        }
    }
}
