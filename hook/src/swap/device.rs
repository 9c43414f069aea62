//! Moves a device's blocks, a step at a time, so that the helper hears what else it is told.
//!
//! What the moves need is made first. Then all the process's submissions are held, since a device may use
//! another's memory; what was queued has ended, and the blocks are moved. If that cannot be had in a while,
//! everything goes on as it was: a kernel may wait for a submission that is held.

mod moving;
mod prepare;

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::{Gate, NO_LIMIT, UsageDevice};

use super::account::limits;
use super::block::Stays;
use super::mover::Manner;
use super::task::{Found, Look, Task, blocks, excess};
use crate::compute::Step;
use crate::compute::hold::Scope;
use crate::compute::quiet::Quiet;
use crate::process::Process;

/// When something was short or failed, it is tried again after so long, and after twice as long each time it
/// fails again.
const AGAIN: Duration = Duration::from_millis(500);
const SELDOM: Duration = Duration::from_secs(8);

const GO_ON: Step = Step {
    wake: Some(Duration::ZERO),
    has_news: false,
};

#[derive(Debug)]
enum Phase {
    Rest,
    /// Nothing is held: what the moves need is made.
    Preparing(Task),
    /// Held; waiting for what was queued.
    Quieting(Quiet, Task, Instant),
    /// Held, and quiet.
    Moving(Task),
}

#[derive(Debug)]
pub(super) struct Device {
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
    /// The size of the smallest block for which the groups above have just had no room on the host.
    not_granted: Option<u64>,
}

/// What is to be known of a device that gets another slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    limits: [u64; 3],
    was_frozen: bool,
    /// See [`Device`].
    pub(super) is_kept: bool,
}

impl Device {
    pub(super) fn new() -> Self {
        Self {
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
            not_granted: None,
        }
    }

    /// The device that has this slot now had another.
    pub(super) fn inherit(&mut self, process: &Process, index: usize, known: &Known) {
        self.limits = known.limits;
        self.was_frozen = known.was_frozen;
        if known.is_kept {
            self.keep(process, index);
        }
    }

    /// Ends what is under way: another device has the slot now. What is kept stays held there.
    #[cold]
    pub(super) fn leave(&mut self, process: &Process, index: usize) -> Known {
        let (task, is_held) = match std::mem::replace(&mut self.phase, Phase::Rest) {
            Phase::Rest => (None, false),
            Phase::Preparing(task) => (Some(task), false),
            Phase::Quieting(quiet, task, _) => {
                quiet.abandon();
                (Some(task), true)
            }
            Phase::Moving(task) => {
                if task.is_from_frozen() {
                    self.keep(process, index);
                }
                (Some(task), true)
            }
        };
        if is_held {
            process.release(Scope::All);
        }
        if let (Some(task), Some(usage)) = (task, process.usage().devices.get(index)) {
            self.end(process, index, usage, task);
        }
        (self.asked, self.gone) = (0, 0);
        self.forgive();
        Known {
            limits: self.limits,
            was_frozen: self.was_frozen,
            is_kept: std::mem::take(&mut self.is_kept),
        }
    }

    fn keep(&mut self, process: &Process, index: usize) {
        if !std::mem::replace(&mut self.is_kept, true) {
            process.hold(Scope::Device(index));
        }
    }

    pub(super) fn step(
        &mut self,
        process: &Process,
        index: usize,
        usage: &UsageDevice,
        manner: &Manner,
    ) -> Step {
        match std::mem::replace(&mut self.phase, Phase::Rest) {
            Phase::Rest => self.begin(process, index, usage, manner),
            Phase::Preparing(task) => self.prepare(process, index, usage, task),
            Phase::Quieting(quiet, task, since) => {
                self.quieten(process, index, usage, manner, (quiet, task, since))
            }
            Phase::Moving(task) => self.advance(process, index, usage, task),
        }
    }

    /// Whether nothing is under way.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.phase, Phase::Rest)
    }

    /// Whether the program is held for a move.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.phase, Phase::Moving(_))
    }

    /// Whether there is nothing to move, as can be told without looking at blocks.
    pub(super) fn is_at_ease(&self, process: &Process, index: usize, usage: &UsageDevice) -> bool {
        let is_all_in = usage.swap_current.load(Relaxed) == 0 && !process.swap.is_any_absent();
        let is_heard = self.asked == 0 && usage.reclaim_generation.load(Relaxed) == self.generation;
        let is_at_rest = self.is_at_rest() && !self.is_kept;
        is_at_rest && is_all_in && is_heard && excess(process, index) == 0
    }

    /// Takes up what is asked, and what has changed.
    pub(super) fn hear(&mut self, process: &Process, index: usize) {
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
            if self.asked != 0 && !self.is_lent {
                blocks(process, index).iter().for_each(|block| block.stay());
            }
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
        // What is counted is not what is there.
        if !process.swap.unsettled.lock().is_empty() {
            return GO_ON;
        }
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
            asked: self.asked,
            is_frozen: self.was_frozen,
            order: manner.order.as_deref(),
            not_granted: self.not_granted,
        };
        let again = match look.task() {
            Found::Task(task) => {
                self.phase = Phase::Preparing(task);
                return GO_ON;
            }
            Found::Nothing => None,
            Found::NotYet => Some(AGAIN),
            Found::Refused => {
                if !std::mem::replace(&mut self.is_refused, true) {
                    process.count_swap_fail(index);
                }
                // What was asked for is dealt with; what a limit wants, too, may find room later.
                let is_hopeful = !process.swap.is_host_refused.load(Relaxed);
                (is_hopeful && excess(process, index) != 0).then_some(AGAIN)
            }
        };
        // There may be room when it is next looked.
        self.not_granted = None;
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
}
