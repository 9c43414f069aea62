//! Follows `scontrol suspend` and `resume`. Slurm tells no plugin of them: it stops the processes of a step
//! and continues them. slurmstepd is the parent of the tasks, so a thread of it learns both from waitid(2).
//! While all its tasks are stopped, the group of the step is frozen.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::arguments::{Arguments, OnSuspend};
use crate::controller;
use crate::daemon::Client;
use crate::spank;
use crate::step::Step;

/// Longest time for moving memory to the host. The processes run meanwhile, but not on the GPU.
const MOST_MOVING: Duration = Duration::from_secs(60);

/// slurmstepd sends SIGTSTP, and SIGSTOP two seconds later; a process that is continued in between is stopped
/// once more.
const UNTIL_STOPPED: Duration = Duration::from_secs(3);

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Watcher {
    socket: PathBuf,
    scontrol: PathBuf,
    group: String,
    job: u32,
    reclaims: bool,
    /// Whether the freeze is this thread's, not an administrator's.
    has_frozen: bool,
}

/// Starts the thread. Called after all tasks have been forked.
pub(crate) fn watch(arguments: &Arguments, step: &Step) {
    let watcher = Watcher {
        socket: arguments.socket.clone(),
        scontrol: arguments.scontrol.clone(),
        group: step.group.clone(),
        job: step.job,
        reclaims: arguments.suspend == OnSuspend::Reclaim,
        has_frozen: false,
    };
    let thread = thread::Builder::new().name("gcgroup-suspend".to_owned());
    if let Err(error) = thread.spawn(|| watcher.run()) {
        spank::log_error(&format!("a suspended step is not frozen: {error}"));
    }
}

impl Watcher {
    /// Waits for changes until there are no tasks left.
    fn run(mut self) {
        let mut stopped = BTreeSet::new();
        loop {
            match waitid(Id::All, WaitPidFlag::WSTOPPED | WaitPidFlag::WCONTINUED) {
                Ok(WaitStatus::Stopped(pid, _)) => stopped.insert(pid),
                Ok(WaitStatus::Continued(pid)) => stopped.remove(&pid),
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(_) => return,
            };
            stopped.retain(|pid| state(*pid) == Some('T'));
            let changed = match (stopped.is_empty(), self.has_frozen) {
                (false, false) if are_all_stopped() => self.freeze(),
                (true, true) => self.thaw(),
                _ => Ok(()),
            };
            if let Err(error) = changed {
                spank::log_error(&format!("{}: {error:#}", self.group));
            }
        }
    }

    fn freeze(&mut self) -> anyhow::Result<()> {
        let mut client = Client::connect_patiently(&self.socket)?;
        let file = format!("{}/compute.freeze", self.group);
        // An administrator's freeze is not undone by `scontrol resume`.
        if client.get(&file)?.trim() == "0" {
            client.set(&file, "1")?;
            self.has_frozen = true;
        }
        if self.reclaims {
            self.reclaim(&mut client)
        } else {
            Ok(())
        }
    }

    fn thaw(&mut self) -> anyhow::Result<()> {
        self.has_frozen = false;
        Client::connect_patiently(&self.socket)?.set(&format!("{}/compute.freeze", self.group), "0")
    }

    /// Moves the memory of the step to the host. The threads of its processes do that, so the processes are
    /// continued while it takes; the freeze keeps their work from the GPU.
    fn reclaim(&self, client: &mut Client) -> anyhow::Result<()> {
        if !self.is_suspended() {
            // The user has stopped it, who expects that it does not run.
            return Ok(());
        }
        thread::sleep(UNTIL_STOPPED);
        let members = self.members(client)?;
        for pid in &members {
            let _ = kill(*pid, Signal::SIGCONT);
        }
        let moved = self.move_out(client);
        self.signal(client, &members, Signal::SIGSTOP)?;
        // The controller notes the end of the suspension before it continues the processes.
        if !self.is_suspended() {
            self.signal(client, &members, Signal::SIGCONT)?;
        }
        moved
    }

    /// Returns the processes of the step now.
    fn members(&self, client: &mut Client) -> anyhow::Result<BTreeSet<Pid>> {
        let members = client.get(&format!("{}/gcgroup.procs", self.group))?;
        let pids = members.lines().filter_map(|pid| pid.parse().ok());
        Ok(pids.map(Pid::from_raw).collect())
    }

    /// Signals those of the processes that are still of the step: the number of another one may have been
    /// given to a process of another user.
    fn signal(&self, client: &mut Client, earlier: &BTreeSet<Pid>, signal: Signal) -> anyhow::Result<()> {
        // The daemon may have been started again since.
        let now = match self.members(client) {
            Ok(now) => now,
            Err(_) => {
                *client = Client::connect_patiently(&self.socket)?;
                self.members(client)?
            }
        };
        for pid in now.intersection(earlier) {
            let _ = kill(*pid, signal);
        }
        Ok(())
    }

    /// Requests the move and waits for its end.
    fn move_out(&self, client: &mut Client) -> anyhow::Result<()> {
        let deadline = Instant::now() + MOST_MOVING;
        let (stat, events) = (
            format!("{}/memory.stat", self.group),
            format!("{}/memory.events", self.group),
        );
        let failures = number(&client.get(&events)?, "swap_fail");
        client.set(&format!("{}/memory.reclaim", self.group), "max")?;
        while Instant::now() < deadline && self.is_suspended() {
            let text = client.get(&stat)?;
            let current: u64 = client
                .get(&format!("{}/memory.current", self.group))?
                .trim()
                .parse()?;
            let stays = number(&text, "pinned_unswappable") + number(&text, "context");
            if current <= stays || number(&client.get(&events)?, "swap_fail") > failures {
                break;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Returns whether the controller has suspended the job; false if it does not answer.
    fn is_suspended(&self) -> bool {
        let state = controller::field(&self.scontrol, self.job, &["State"]);
        state.is_ok_and(|state| state == "SUSPENDED")
    }
}

/// Returns the value of a key in a file of flat keys, or 0.
fn number(text: &str, key: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(name, _)| *name == key);
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// Returns the state of a process as in /proc/PID/stat: `T` if it is stopped.
fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns whether all children of this process that live are stopped.
fn are_all_stopped() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return false;
    };
    let lists =
        threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let children: Vec<String> = lists.collect();
    let mut pids = children.iter().flat_map(|list| list.split_whitespace());
    pids.all(
        |pid| match pid.parse().ok().and_then(|pid| state(Pid::from_raw(pid))) {
            Some(state) => matches!(state, 'T' | 'Z' | 'X'),
            None => true,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_key() {
        let text = "linear 7\nswap_fail 12\n";
        assert_eq!((number(text, "swap_fail"), number(text, "swap")), (12, 0));
    }

    #[test]
    fn state_of_a_process_is_read() {
        assert!(matches!(state(Pid::this()), Some('R' | 'S')));
        assert_eq!(state(Pid::from_raw(i32::MAX)), None);
    }
}
