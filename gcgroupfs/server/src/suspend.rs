//! Suspends and resumes processes: a thread that decides what is due, and one for each process in which a
//! helper calls the driver.
#![doc = include_str!("suspend.md")]

mod helper;
mod room;
mod steps;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use gcgroupfs_model::tree::{Listener, Notice, Pending, ProcessId, Step, Tree};
use gcgroupfs_sys::launch::Launcher;

use self::helper::Helpers;
use self::room::Room;
use self::steps::{Goal, Task};

/// Time between two looks while a process is being suspended or resumed.
const PAUSE: Duration = Duration::from_millis(20);
/// Time between two looks while processes wait for room, or have not initialized the driver.
const LONG_PAUSE: Duration = Duration::from_millis(500);
/// Longest time until submitted work has completed.
const DRAIN: Duration = Duration::from_secs(60);
/// Longest time until the library's helper thread has stopped calling the driver.
const HOLD: Duration = Duration::from_secs(5);
/// Largest number of processes that are suspended or resumed at once.
const MOST_TASKS: usize = 16;
/// Number of them at which only processes of root are begun.
const MOST_OTHERS: usize = 12;
/// Largest number of them that belong to one user other than root.
const MOST_PER_UID: usize = 4;

/// Starts the thread. It lasts as long as the daemon.
///
/// # Errors
/// The thread cannot be started.
pub fn start(tree: Arc<Tree>, launcher: Arc<Launcher>) -> io::Result<()> {
    let (woken, receiver) = sync_channel(1);
    tree.listen(Arc::new(Ear(woken)));
    let (done, finished) = channel();
    let suspender = Suspender {
        tree,
        helpers: Arc::new(Helpers::new(launcher)),
        room: Room::default(),
        waits: HashMap::new(),
        busy: HashMap::new(),
        done,
        finished,
    };
    thread::Builder::new()
        .name("suspend".to_owned())
        .spawn(move || suspender.run(&receiver))?;
    Ok(())
}

/// Wakes the thread when a process may have to be suspended or resumed.
#[derive(Debug)]
struct Ear(SyncSender<()>);

impl Listener for Ear {
    fn notice(&self, notice: &Notice) {
        if matches!(
            notice,
            Notice::SuspendAsked
                | Notice::Joined { .. }
                | Notice::SettingsChanged(_)
                | Notice::GroupChanged(_)
        ) {
            // Full: the thread is about to look anyway.
            let _ = self.0.try_send(());
        }
    }
}

struct Suspender {
    tree: Arc<Tree>,
    helpers: Arc<Helpers>,
    room: Room,
    /// Step of each process that waits, and since when.
    waits: HashMap<ProcessId, (Step, Instant)>,
    /// Processes for which a task runs.
    busy: HashMap<ProcessId, Busy>,
    done: Sender<ProcessId>,
    finished: Receiver<ProcessId>,
}

/// Slot and devices that a task occupies.
#[derive(Debug)]
struct Busy {
    /// User of the process.
    uid: u32,
    /// Devices on which it takes memory.
    devices: Vec<usize>,
}

impl Suspender {
    fn run(mut self, woken: &Receiver<()>) {
        // The tree, and so the other end, lasts as long as the thread.
        loop {
            while let Ok(id) = self.finished.try_recv() {
                self.busy.remove(&id);
            }
            let pending = self.tree.pending_suspensions();
            let there: HashSet<_> = pending.iter().map(|one| one.id).collect();
            self.waits.retain(|id, _| there.contains(id));
            self.look(&pending);
            let is_patient = pending.iter().all(|one| {
                let wait = self.waits.get(&one.id);
                wait.is_some_and(|(step, _)| matches!(step, Step::Room | Step::Check))
            });
            self.helpers.end_idle();
            let pause = match (pending.is_empty(), is_patient) {
                _ if !self.busy.is_empty() => PAUSE,
                (true, _) => helper::KEEP,
                (false, true) => LONG_PAUSE,
                (false, false) => PAUSE,
            };
            let _ = woken.recv_timeout(pause);
        }
    }

    /// Does what is due.
    fn look(&mut self, pending: &[Pending]) {
        let mut resuming = Vec::new();
        for one in pending
            .iter()
            .filter(|one| !self.busy.contains_key(&one.id))
            .cloned()
            .collect::<Vec<_>>()
        {
            match (one.is_wanted, one.is_locked, &one.moved) {
                // Completed first, also if it is to be suspended again.
                _ if one.is_restored => {
                    self.begin(&one, Goal::Running);
                }
                (true, false, _) => self.prepare(&one),
                (true, true, _) => {
                    self.begin(&one, Goal::Suspended);
                }
                (false, false, _) => {
                    self.tree.hold_helper(one.id, false);
                    self.tree.set_suspend_step(one.id, None);
                }
                (false, true, None) => {
                    self.begin(&one, Goal::Running);
                }
                (false, true, Some(_)) => resuming.push(one),
            }
        }
        self.resume(resuming);
    }

    /// Takes a process that is not locked one step further.
    fn prepare(&mut self, one: &Pending) {
        let waited = |suspender: &mut Self, step: Step| {
            let wait = suspender.waits.entry(one.id).or_insert((step, Instant::now()));
            if wait.0 != step {
                *wait = (step, Instant::now());
            }
            wait.1.elapsed()
        };
        match one.step {
            None => {
                waited(self, Step::Check);
                self.tree.set_suspend_step(one.id, Some(Step::Check));
                self.begin(one, Goal::Checked);
            }
            Some(Step::Check) => {
                // It had not initialized the driver.
                if waited(self, Step::Check) >= LONG_PAUSE {
                    self.waits.remove(&one.id);
                    self.begin(one, Goal::Checked);
                }
            }
            Some(Step::Hold) => {
                if one.is_held {
                    self.begin(one, Goal::Suspended);
                } else if waited(self, Step::Hold) >= HOLD {
                    self.tree.hold_helper(one.id, false);
                    let reason = "the library in the process does not answer, or is older than the daemon";
                    steps::fail(&self.tree, one, Step::Hold, reason.to_owned());
                }
            }
            Some(_) => {
                if one.is_drained {
                    waited(self, Step::Hold);
                    self.tree.hold_helper(one.id, true);
                    self.tree.set_suspend_step(one.id, Some(Step::Hold));
                } else if waited(self, Step::Drain) >= DRAIN {
                    let reason = format!("submitted work has not completed within {} s", DRAIN.as_secs());
                    steps::fail(&self.tree, one, Step::Drain, reason);
                }
            }
        }
    }

    /// Resumes the processes for which there is room: those of higher priority first, and none before one of
    /// higher priority for which the same device lacks memory. One that waits for the limit of a group holds
    /// no other back. Memory of a device is given to one process at a time, because it is not taken at once.
    fn resume(&mut self, mut waiting: Vec<Pending>) {
        for one in &waiting {
            if self
                .waits
                .get(&one.id)
                .is_none_or(|(step, _)| *step != Step::Room)
            {
                self.waits.insert(one.id, (Step::Room, Instant::now()));
                self.tree.set_suspend_step(one.id, Some(Step::Room));
            }
        }
        waiting.sort_by_key(|one| (one.priority, self.waits.get(&one.id).map(|(_, since)| *since)));
        let taken = self.busy.values().flat_map(|busy| &busy.devices);
        let mut queue = Queue {
            taken: taken.copied().collect(),
            wanted: HashMap::new(),
        };
        for one in waiting {
            let moved = one.moved.as_deref().unwrap_or_default();
            let (room, tree) = (&mut self.room, &self.tree);
            let has_turn = queue.admit(one.priority, moved, |device, bytes| room.has(tree, device, bytes));
            if has_turn && self.has_slot(one.uid) && self.tree.charge_resumed(&one) {
                if self.begin(&one, Goal::Running) {
                    queue.taken.extend(moved.iter().map(|(device, _)| *device));
                } else {
                    self.tree.uncharge_resumed(one.id);
                }
            }
        }
    }

    /// Returns whether a task may be started for a process of a user.
    fn has_slot(&self, uid: u32) -> bool {
        has_slot(uid, self.busy.values().map(|busy| busy.uid))
    }

    /// Starts a task, unless too many run. Returns whether it was started.
    fn begin(&mut self, one: &Pending, goal: Goal) -> bool {
        if !self.has_slot(one.uid) {
            return false;
        }
        let devices = one.moved.iter().flatten().map(|(device, _)| *device);
        let busy = Busy {
            uid: one.uid,
            devices: devices.collect(),
        };
        self.busy.insert(one.id, busy);
        let task = Task {
            tree: self.tree.clone(),
            helpers: self.helpers.clone(),
            process: one.clone(),
            goal,
        };
        let (done, id) = (self.done.clone(), one.id);
        let started = thread::Builder::new()
            .name(format!("suspend-{}", one.pid))
            .spawn(move || {
                // Sent also if the task panics, so that the process is not forgotten.
                let _done = Done(done, id);
                task.run();
            });
        if started.is_err() {
            self.busy.remove(&one.id);
        }
        started.is_ok()
    }
}

/// Returns whether a task may be started for a process of `uid`, beside those for processes of the users
/// `busy`.
fn has_slot(uid: u32, busy: impl Iterator<Item = u32>) -> bool {
    let (mut nr_all, mut nr_own) = (0, 0);
    for user in busy {
        nr_all += 1;
        nr_own += usize::from(user == uid);
    }
    match uid {
        0 => nr_all < MOST_TASKS,
        _ => nr_all < MOST_OTHERS && nr_own < MOST_PER_UID,
    }
}

/// Devices on which processes that wait for room cannot be resumed now.
#[derive(Debug)]
struct Queue {
    /// Devices on which memory is being taken.
    taken: HashSet<usize>,
    /// Devices that lack memory for a waiting process, with its `compute.priority`.
    wanted: HashMap<usize, u32>,
}

impl Queue {
    /// Returns whether a waiting process can be resumed: `moved` are its bytes by device. Call it for
    /// processes of higher priority first.
    fn admit(
        &mut self,
        priority: u32,
        moved: &[(usize, u64)],
        mut has_room: impl FnMut(usize, u64) -> bool,
    ) -> bool {
        let must_wait = |device: &usize| {
            let first = self.wanted.get(device);
            self.taken.contains(device) || first.is_some_and(|first| *first < priority)
        };
        if moved.iter().any(|(device, _)| must_wait(device)) {
            return false;
        }
        let lacking = moved.iter().filter(|(device, bytes)| !has_room(*device, *bytes));
        let lacking: Vec<usize> = lacking.map(|(device, _)| *device).collect();
        for device in &lacking {
            self.wanted.entry(*device).or_insert(priority);
        }
        lacking.is_empty()
    }
}

/// Reports the end of a task.
struct Done(Sender<ProcessId>, ProcessId);

impl Drop for Done {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_memory_holds_lower_priorities_back() {
        let mut queue = Queue {
            taken: HashSet::from([3]),
            wanted: HashMap::new(),
        };
        assert!(!queue.admit(2, &[(0, 9), (1, 1)], |_, bytes| bytes < 5));
        assert!(!queue.admit(4, &[(0, 1)], |_, _| true), "one of priority 2 waits");
        assert!(queue.admit(2, &[(0, 1)], |_, _| true), "it has the same priority");
        assert!(queue.admit(4, &[(1, 1)], |_, _| true), "device 1 had room");
        assert!(
            !queue.admit(0, &[(3, 1)], |_, _| true),
            "another takes memory there"
        );
        assert!(queue.admit(15, &[], |_, _| false));
    }

    #[test]
    fn no_user_but_root_takes_all_tasks() {
        let of = |users: &[(u32, usize)]| {
            let users = users.iter();
            users
                .flat_map(|(uid, tasks)| std::iter::repeat_n(*uid, *tasks))
                .collect::<Vec<_>>()
        };
        let has = |uid, busy: &[u32]| has_slot(uid, busy.iter().copied());
        assert!(has(1000, &of(&[(1000, 3), (0, 8)])));
        assert!(!has(1000, &of(&[(1000, 4)])));
        let others = of(&[(1000, 4), (1001, 4), (1002, 4)]);
        assert!(!has(1003, &others) && has(0, &others));
        assert!(has(0, &of(&[(0, 15)])) && !has(0, &of(&[(0, 16)])));
    }
}
