//! Calls of the driver for one process, derived from its state there and from the goal. The state is asked
//! for before each step, so a helper that was killed, and an earlier daemon, need to leave no word.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use gcgroupfs_model::tree::{Pending, Step, Tree};
use gcgroupfs_sys::checkpoint::{CudaError, Operation, ProcessState};

use super::helper::{Failure, Helper, Helpers};
use super::room::HostRoom;

/// Longest time of an operation, besides that for the bytes that move.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time in the driver after which a lock fails, milliseconds.
const LOCK_MSEC: u32 = 10_000;
/// Least speed of moves, bytes per second.
const SPEED: u64 = 256 << 20;
/// Longest time until the library has asked which GPUs the process has, and the time between two looks.
const IDENTIFY: Duration = Duration::from_secs(5);
const IDENTIFY_PAUSE: Duration = Duration::from_millis(2);
/// Time between two looks whether another program still moves the process's memory.
const MOVE_PAUSE: Duration = Duration::from_millis(20);
/// Most operations for one goal: a rollback included.
const MOST_OPERATIONS: usize = 8;

/// The state that a process is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Known to be one that can be suspended.
    Checked,
    Suspended,
    Running,
}

/// Row of the table of steps.
struct Row {
    goal: Goal,
    from: ProcessState,
    step: Step,
    operation: Operation,
}

/// The steps to each goal. A step that fails on the way to a suspension makes [`Goal::Running`] the goal.
const STEPS: &[Row] = &[
    row(
        Goal::Suspended,
        ProcessState::Running,
        Step::Lock,
        Operation::Lock(LOCK_MSEC),
    ),
    row(
        Goal::Suspended,
        ProcessState::Locked,
        Step::Checkpoint,
        Operation::Checkpoint,
    ),
    row(
        Goal::Running,
        ProcessState::Checkpointed,
        Step::Restore,
        Operation::Restore,
    ),
    row(
        Goal::Running,
        ProcessState::Locked,
        Step::Unlock,
        Operation::Unlock,
    ),
];

const fn row(goal: Goal, from: ProcessState, step: Step, operation: Operation) -> Row {
    Row {
        goal,
        from,
        step,
        operation,
    }
}

/// Why a step has failed.
type Reason = (Step, String);

/// A process and what is wanted of it.
pub(super) struct Task {
    pub(super) tree: Arc<Tree>,
    pub(super) helpers: Arc<Helpers>,
    pub(super) process: Pending,
    pub(super) goal: Goal,
}

impl Task {
    pub(super) fn run(&self) {
        let Pending { pid, start_time, .. } = self.process;
        let mut helper = Helper::new(self.helpers.clone(), pid, start_time);
        match self.goal {
            Goal::Checked => self.check(&mut helper),
            Goal::Suspended => self.suspend(&mut helper),
            Goal::Running => self.settle(&mut helper, Goal::Running),
        }
    }

    /// Examines whether the process can be suspended, before anything changes.
    fn check(&self, helper: &mut Helper) {
        let (tree, id) = (&self.tree, self.process.id);
        let reason = match helper.perform(Operation::GetState, PATIENCE) {
            Ok(ProcessState::Running) => self.admit().err(),
            Ok(state) => Some(
                foreign(state)
                    .unwrap_or("another program has locked it in the driver")
                    .to_owned(),
            ),
            // It has not initialized the driver yet, or is ending.
            Err(Failure::Driver(CudaError::INVALID_VALUE)) => return,
            Err(failure) => Some(failure.to_string()),
        };
        match reason {
            Some(reason) => fail(tree, &self.process, Step::Check, reason),
            None => tree.set_suspend_step(id, Some(Step::Drain)),
        }
    }

    /// Reserves room on the host for the process's memory, or returns why the process cannot be suspended, as
    /// far as the daemon knows.
    fn admit(&self) -> Result<HostRoom, String> {
        match self.tree.suspend_refusal(self.process.id) {
            Some(refusal) => Err(refusal),
            None => HostRoom::reserve(self.process.bytes),
        }
    }

    fn suspend(&self, helper: &mut Helper) {
        let (tree, process) = (&self.tree, &self.process);
        let mut room = None;
        if !process.is_locked {
            match self.admit() {
                Ok(reserved) => room = Some(reserved),
                Err(reason) => {
                    tree.hold_helper(process.id, false);
                    return fail(tree, process, Step::Check, reason);
                }
            }
            // On disk before it is locked: the next daemon must know.
            tree.set_suspend_locked(process.id, true);
        }
        self.settle(helper, Goal::Suspended);
        drop(room);
    }

    /// Drives the process to the goal, or back, and stores what has become of it.
    fn settle(&self, helper: &mut Helper, goal: Goal) {
        let (tree, process) = (&self.tree, &self.process);
        let (state, failure) = self.drive(helper, goal);
        match state {
            Some(ProcessState::Running) => {
                if let Some(failure) = self.release() {
                    return fail(tree, process, failure.0, failure.1);
                }
                if failure.is_none() {
                    info!("{} is resumed", process.pid);
                }
            }
            Some(ProcessState::Checkpointed) => {
                if process.moved.is_some() {
                    tree.uncharge_resumed(process.id);
                }
                if process.moved.is_none() {
                    tree.set_suspended(process.id);
                    info!("{} is suspended: {} bytes were moved", process.pid, process.bytes);
                }
            }
            // Restored, and not unlocked.
            Some(ProcessState::Locked) if process.moved.is_some() && process.exchange.is_none() => {
                tree.set_resumed(process.id);
            }
            Some(ProcessState::Locked) if process.moved.is_some() => tree.set_restored(process.id),
            _ if process.is_restored => {}
            // Neither: what it holds is counted as before.
            _ if process.moved.is_some() => tree.uncharge_resumed(process.id),
            _ => {}
        }
        // What was free has been taken by others meanwhile.
        let waits = process.moved.is_some() && self.lacks_room(&failure);
        if let Some((step, reason)) = failure.filter(|_| !waits) {
            fail(tree, process, step, reason);
        }
    }

    /// Lets a process that runs in the driver go on: the library counts it on the GPUs that it has now, and
    /// then the gates open. Returns why they stay closed.
    fn release(&self) -> Option<Reason> {
        let (tree, process) = (&self.tree, &self.process);
        // On other GPUs it is counted only when the library has moved its charges.
        if process.moved.is_some() && process.exchange.is_none() {
            tree.set_resumed(process.id);
        }
        if !self.is_identified() && process.exchange.is_some() {
            tree.set_restored(process.id);
            let reason = "the library in the process does not answer".to_owned();
            return Some((Step::Identify, reason));
        }
        if process.moved.is_some() {
            tree.set_resumed(process.id);
        }
        tree.set_suspend_locked(process.id, false);
        None
    }

    /// Lets the library call the driver, and waits until it has asked which GPUs the process has, at most
    /// [`IDENTIFY`]. Returns whether it has.
    fn is_identified(&self) -> bool {
        let (tree, id) = (&self.tree, self.process.id);
        let deadline = Instant::now() + IDENTIFY;
        let has_not = || !tree.identify(id);
        if has_not() {
            tree.set_suspend_step(id, Some(Step::Identify));
        }
        while has_not() {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(IDENTIFY_PAUSE);
        }
        true
    }

    /// Returns whether a restore has failed for lack of memory; then it is tried again.
    fn lacks_room(&self, failure: &Option<Reason>) -> bool {
        let memory = Failure::Driver(CudaError::OUT_OF_MEMORY).to_string();
        let lacks = |(step, reason): &Reason| *step == Step::Restore && *reason == memory;
        let lacks = failure.as_ref().is_some_and(lacks);
        if lacks {
            self.tree.set_suspend_step(self.process.id, Some(Step::Room));
        }
        lacks
    }

    /// Performs steps until there is none from the state reached. Returns that state, if it is known, and the
    /// first failure.
    fn drive(&self, helper: &mut Helper, mut goal: Goal) -> (Option<ProcessState>, Option<Reason>) {
        let moving = Duration::from_secs(self.process.bytes.max(self.moved_bytes()) / SPEED);
        let patience = |operation: &Operation| match operation {
            Operation::Checkpoint | Operation::Restore | Operation::RestoreOn(..) => {
                PATIENCE.saturating_add(moving)
            }
            _ => PATIENCE,
        };
        let mut failed: Option<Reason> = None;
        let mut last = Step::Check;
        for _ in 0..MOST_OPERATIONS {
            let state = match self.settled_state(helper, PATIENCE.saturating_add(moving)) {
                Ok(state) => state,
                // It is ending, or executes another program than the one that may have been locked.
                Err(Failure::Driver(CudaError::INVALID_VALUE))
                    if failed.is_none() && self.process.moved.is_none() =>
                {
                    return (Some(ProcessState::Running), None);
                }
                Err(failure) => return (None, failed.or(Some((last, failure.to_string())))),
            };
            if let Some(reason) = foreign(state) {
                return (Some(state), failed.or(Some((last, reason.to_owned()))));
            }
            // Not wanted any more.
            if goal == Goal::Suspended && !self.tree.is_suspend_wanted(self.process.id) {
                goal = Goal::Running;
            }
            // Moved under an earlier daemon, or for a request that has ended: the process is counted as
            // suspended, and then waits for room. Failures before do not matter, since the memory was moved.
            if goal == Goal::Running && state == ProcessState::Checkpointed && self.process.moved.is_none() {
                return (Some(state), None);
            }
            let Some(row) = STEPS.iter().find(|row| row.goal == goal && row.from == state) else {
                return (Some(state), failed);
            };
            last = row.step;
            self.tree.set_suspend_step(self.process.id, Some(row.step));
            let operation = match (row.operation, self.process.exchange) {
                (Operation::Restore, Some((_, [old, new]))) => Operation::RestoreOn(old, new),
                (operation, _) => operation,
            };
            if let Err(failure) = helper.perform(operation, patience(&operation)) {
                failed.get_or_insert((row.step, describe(operation, failure)));
                if goal == Goal::Running {
                    let state = helper.perform(Operation::GetState, PATIENCE).ok();
                    return (state, failed);
                }
                goal = Goal::Running;
            }
        }
        (None, failed)
    }

    /// Returns the state of the process, once no program moves its memory: the helper of an earlier daemon
    /// may still do so.
    fn settled_state(&self, helper: &mut Helper, patience: Duration) -> Result<ProcessState, Failure> {
        let deadline = Instant::now() + patience;
        loop {
            match helper.perform(Operation::GetState, PATIENCE)? {
                ProcessState::Moving if Instant::now() < deadline => {
                    self.tree.set_suspend_step(self.process.id, Some(Step::Check));
                    thread::sleep(MOVE_PAUSE);
                }
                state => return Ok(state),
            }
        }
    }

    fn moved_bytes(&self) -> u64 {
        let moved = self.process.moved.iter().flatten();
        moved.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// Returns why no step leads on from a state.
fn foreign(state: ProcessState) -> Option<&'static str> {
    match state {
        ProcessState::Failed => Some("the driver cannot continue the process"),
        ProcessState::Moving => Some("another program moves its memory"),
        ProcessState::Unknown(_) => Some("the driver reports a state that this version does not know"),
        ProcessState::Running | ProcessState::Locked | ProcessState::Checkpointed => None,
    }
}

/// Returns why an operation has failed, for people.
fn describe(operation: Operation, failure: Failure) -> String {
    match (operation, failure) {
        (
            Operation::RestoreOn(..),
            Failure::Driver(error @ (CudaError::INVALID_VALUE | CudaError::NOT_SUPPORTED)),
        ) => format!("the driver does not restore it on that GPU (error {})", error.0),
        (_, failure) => failure.to_string(),
    }
}

/// Notes and logs that a step has failed.
pub(super) fn fail(tree: &Tree, process: &Pending, step: Step, reason: String) {
    let what = if process.is_wanted { "suspended" } else { "resumed" };
    warn!("{} cannot be {what}: step {}: {reason}", process.pid, step.name());
    tree.fail_suspension(process, step, reason);
}
