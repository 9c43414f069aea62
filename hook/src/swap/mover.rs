//! Moves blocks, in the helper thread: out when a limit is lowered or somebody asks for it, in when there is room.
//!
//! All the process's submissions are held, since a device may use another's memory; what was queued has ended, and then one
//! block after the other is moved, a block a step, so that the helper hears what else it is told. If that cannot be had
//! in a while, everything goes on as it was: a kernel may wait for a submission that is held.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::{Gate, MAX_DEVICES, NO_LIMIT, UsageDevice};

use super::account::limits;
use super::block::{Failed, Goal, Stays};
use super::relocate::relocate;
use super::task::{Found, Look, Task, blocks, excess};
use crate::compute::Step;
use crate::compute::elsewhere;
use crate::compute::hold::Scope;
use crate::compute::quiet::Quiet;
use crate::process::Process;

/// Between looks while queued work ends.
const SOON: Duration = Duration::from_micros(50);
/// How long queued work may take to end, and how long it is left in peace if it does not.
const PATIENCE: Duration = Duration::from_secs(2);
/// When something was short or failed, it is tried again after so long, and after twice as long each time it fails again.
const AGAIN: Duration = Duration::from_millis(500);
const SELDOM: Duration = Duration::from_secs(8);

const GO_ON: Step = Step {
    wake: Some(Duration::ZERO),
    has_news: false,
};

#[derive(Debug)]
enum Phase {
    Rest,
    /// Held; waiting for what was queued.
    Quieting(Quiet, Task, Instant),
    /// Held, and quiet.
    Moving(Task),
}

#[derive(Debug)]
struct Device {
    phase: Phase,
    /// Whether it is held because it left while frozen: it comes back before anything is let through.
    is_kept: bool,
    /// Bytes still to be moved out because somebody asked.
    asked: u64,
    /// Whether they did it for others, to whom the room is lent.
    is_lent: bool,
    /// Bytes moved out of those that were asked for and not dealt with.
    gone: u64,
    generation: u32,
    /// The limits under which blocks were left out.
    limits: [u64; 3],
    was_frozen: bool,
    not_before: Option<Instant>,
    pause: Duration,
    /// Whether it was counted that what should go may not.
    is_refused: bool,
}

/// How it is done where that is a matter of taste: by the environment of the program.
#[derive(Debug)]
struct Manner {
    /// Of the reclaim policies, by name (`GCGROUP_RECLAIM`).
    order: Option<String>,
    /// Whether a thaw waits for room on the device (`GCGROUP_THAW=wait`), instead of running from host memory what does
    /// not fit.
    waits: bool,
}

#[derive(Debug)]
pub(crate) struct Mover {
    devices: Vec<Device>,
    manner: Manner,
    /// Whether everything is held because some block has nothing at its addresses.
    is_all_kept: bool,
}

impl Mover {
    /// What another held, if there was one that is lost, is let go, but for what must not be.
    pub(crate) fn new(process: &Process) -> Self {
        let device = || Device {
            phase: Phase::Rest,
            is_kept: false,
            asked: 0,
            is_lent: false,
            gone: 0,
            generation: 0,
            limits: [NO_LIMIT; 3],
            was_frozen: false,
            not_before: None,
            pause: AGAIN,
            is_refused: false,
        };
        let is_all_kept = process.swap.is_any_absent();
        process.reset_holds(is_all_kept);
        Self {
            devices: std::iter::repeat_with(device).take(MAX_DEVICES).collect(),
            manner: Manner {
                order: std::env::var("GCGROUP_RECLAIM").ok(),
                waits: std::env::var("GCGROUP_THAW").is_ok_and(|how| how == "wait"),
            },
            is_all_kept,
        }
    }

    /// Goes on by one move at most.
    pub(crate) fn step(&mut self, process: &Process) -> Step {
        let mut all = Step::default();
        if !process.swap.is_on() {
            return all;
        }
        // Before a move lets go what it held.
        self.keep(process);
        for ((index, device), usage) in self.devices.iter_mut().enumerate().zip(&process.usage().devices) {
            device.hear(process, index);
            if device.is_at_ease(process, index, usage) {
                continue;
            }
            let step = device.step(process, index, usage, &self.manner);
            all.has_news |= step.has_news;
            all.wake = all.wake.into_iter().chain(step.wake).min();
        }
        all
    }

    /// Holds everything while some block has nothing at its addresses.
    fn keep(&mut self, process: &Process) {
        let is_any_absent = process.swap.is_any_absent();
        match (self.is_all_kept, is_any_absent) {
            (false, true) => process.hold(Scope::All),
            (true, false) => process.release(Scope::All),
            _ => return,
        }
        self.is_all_kept = is_any_absent;
    }
}

impl Device {
    fn step(&mut self, process: &Process, index: usize, usage: &UsageDevice, manner: &Manner) -> Step {
        match std::mem::replace(&mut self.phase, Phase::Rest) {
            Phase::Rest => self.begin(process, index, usage, manner),
            Phase::Quieting(quiet, task, since) => {
                self.quieten(process, index, usage, manner, (quiet, task, since))
            }
            Phase::Moving(task) => self.advance(process, index, usage, task),
        }
    }

    /// Whether there is nothing to move, as can be told without looking at blocks.
    fn is_at_ease(&self, process: &Process, index: usize, usage: &UsageDevice) -> bool {
        let is_all_in = usage.swap_current.load(Relaxed) == 0 && !process.swap.is_any_absent();
        let is_heard = self.asked == 0 && usage.reclaim_generation.load(Relaxed) == self.generation;
        let is_at_rest = matches!(self.phase, Phase::Rest) && !self.is_kept;
        is_at_rest && is_all_in && is_heard && excess(process, index, usage) == 0
    }

    /// Takes up what is asked, and what has changed.
    fn hear(&mut self, process: &Process, index: usize) {
        let Some(control) = process.control().devices.get(index) else {
            return;
        };
        let is_frozen = Gate::from_word(control.gate.load(Acquire)) == Gate::Frozen;
        let now = limits(process.control(), index);
        if now != self.limits || self.was_frozen && !is_frozen {
            self.limits = now;
            self.forgive();
            for block in blocks(process, index) {
                block.set_stays(Stays::No);
            }
        }
        if self.was_frozen && !is_frozen {
            // A thaw takes back what was asked for before it.
            self.asked = 0;
        }
        self.was_frozen = is_frozen;
        let generation = control.reclaim_generation.load(Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.asked = control.reclaim_bytes.load(Relaxed).saturating_sub(self.gone);
            self.is_lent = control.reclaim_is_lent.load(Relaxed) != 0;
            self.forgive();
        }
    }

    /// What failed may be tried at once: something else is wanted now.
    fn forgive(&mut self) {
        self.not_before = None;
        self.pause = AGAIN;
        self.is_refused = false;
    }

    /// Sees what there is to do, and begins it.
    fn begin(&mut self, process: &Process, index: usize, usage: &UsageDevice, manner: &Manner) -> Step {
        let left = self
            .not_before
            .map(|when| when.saturating_duration_since(Instant::now()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return self.rest(process, index, manner, Some(left));
        }
        self.not_before = None;
        let look = Look {
            process,
            index,
            usage,
            asked: self.asked,
            is_frozen: self.was_frozen,
            order: manner.order.as_deref(),
        };
        let again = match look.task() {
            Found::Task(task) => {
                process.hold(Scope::All);
                self.phase = Phase::Quieting(Quiet::default(), task, Instant::now());
                return GO_ON;
            }
            Found::Nothing => None,
            Found::NotYet => Some(AGAIN),
            Found::Refused => {
                if !std::mem::replace(&mut self.is_refused, true) {
                    usage.nr_swap_fail.fetch_add(1, Relaxed);
                }
                None
            }
        };
        self.not_before = again.map(|again| Instant::now() + again);
        let mut step = self.rest(process, index, manner, again);
        step.has_news = self.deal(usage);
        step
    }

    /// Does nothing until something is heard, or for so long.
    fn rest(&mut self, process: &Process, index: usize, manner: &Manner, wake: Option<Duration>) -> Step {
        let is_waited_for = manner.waits && wake.is_some();
        if self.is_kept && !self.was_frozen && !is_waited_for {
            self.is_kept = false;
            process.release(Scope::Device(index));
        }
        Step {
            wake,
            has_news: false,
        }
    }

    /// Tells that what was asked for so far has been seen to; whether that is news.
    fn deal(&mut self, usage: &UsageDevice) -> bool {
        (self.asked, self.gone) = (0, 0);
        usage.reclaim_generation.swap(self.generation, Release) != self.generation
    }

    /// Tries again later, less and less often.
    fn put_off(&mut self) {
        self.not_before = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(SELDOM);
    }

    fn quieten(
        &mut self,
        process: &Process,
        index: usize,
        usage: &UsageDevice,
        manner: &Manner,
        (mut quiet, task, since): (Quiet, Task, Instant),
    ) -> Step {
        if quiet.step(process, Scope::All) && process.is_untouched() {
            self.phase = Phase::Moving(task);
            return GO_ON;
        }
        if since.elapsed() < PATIENCE {
            self.phase = Phase::Quieting(quiet, task, since);
            return Step {
                wake: Some(SOON),
                has_news: false,
            };
        }
        quiet.abandon();
        usage.nr_swap_fail.fetch_add(1, Relaxed);
        self.deal(usage);
        self.not_before = Some(Instant::now() + PATIENCE);
        process.release(Scope::All);
        Step {
            has_news: true,
            ..self.rest(process, index, manner, Some(PATIENCE))
        }
    }

    fn advance(&mut self, process: &Process, index: usize, usage: &UsageDevice, mut task: Task) -> Step {
        let go_on = Step {
            has_news: true,
            ..GO_ON
        };
        // Nothing comes in while something is to go, but for what cannot be elsewhere.
        if task.to == Goal::Device && self.asked != 0 {
            task.blocks.retain(|block| block.is_pinned() || block.is_absent());
        }
        // Thawed meanwhile: what is out comes back before anything is let through.
        let is_out = task.to != Goal::Device;
        let is_from_frozen = is_out && task.is_asked && task.is_frozen;
        let is_over = is_from_frozen || task.to == Goal::Aside;
        if is_over && !self.was_frozen {
            task.blocks.clear();
        }
        if let Some(block) = task.blocks.pop() {
            match relocate(process, &block, index, usage, task.to) {
                Ok(true) if is_out => {
                    block.set_stays(match (task.is_asked, self.is_lent) {
                        (false, _) => Stays::No,
                        (true, false) => Stays::Asked,
                        (true, true) => Stays::Lent(Instant::now()),
                    });
                    let of_asked = self.asked.min(block.size);
                    self.asked -= of_asked;
                    self.gone = self.gone.saturating_add(of_asked);
                    self.pause = AGAIN;
                }
                Ok(_) => self.pause = AGAIN,
                Err(Failed::Refused) if task.is_frozen && elsewhere::is_all_frozen(process) => {
                    process.swap.is_host_refused.store(true, Relaxed);
                    task.to = Goal::Aside;
                    task.blocks.push(block);
                }
                Err(failed) => {
                    self.fail(process, usage, task.to, failed);
                    task.blocks.clear();
                }
            }
            self.phase = Phase::Moving(task);
            return go_on;
        }
        if is_from_frozen {
            // It stays held, so that a thaw finds all of it back.
            if !std::mem::replace(&mut self.is_kept, true) {
                process.hold(Scope::Device(index));
            }
        }
        process.release(Scope::All);
        go_on
    }

    fn fail(&mut self, process: &Process, usage: &UsageDevice, to: Goal, failed: Failed) {
        match failed {
            // Nothing of ours failed: others have the card.
            Failed::NoRoom if to == Goal::Device => return self.put_off(),
            Failed::Refused => process.swap.is_host_refused.store(true, Relaxed),
            Failed::Stuck => process.swap.is_stuck.store(true, Relaxed),
            Failed::NoRoom | Failed::Driver => {}
        }
        usage.nr_swap_fail.fetch_add(1, Relaxed);
        self.put_off();
        if to != Goal::Device {
            self.deal(usage);
        }
    }
}
