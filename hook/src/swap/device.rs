//! Moves the blocks of one device step by step, so that the helper can do other work in between.
//!
//! Memory for the moves is prepared first. Then all submissions of the process are held, since one device may
//! use memory of another, and queued work is drained; then the blocks are moved. If the drain takes too long,
//! the hold is released: a kernel may wait for a submission that is held.

mod moving;
mod prepare;

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::{Gate, NO_LIMIT, UsageDevice};

use super::Swap;
use super::account::limits;
use super::block::{Goal, Stays};
use super::notice::{self, Notice};
use super::settings::SwapSettings;
use super::task::{Found, Look, Task, blocks, excess};
use super::turn;
use crate::compute::hold::Scope;
use crate::compute::quiet::Quiet;
use crate::helper::Step;

/// Delay before the first new look for room, which another process may be about to leave; an eighth longer
/// after each, up to [`AGAIN`], so that room is found soon after it is there.
const FIRST_LOOK: Duration = Duration::from_millis(2);
/// Delay before a failed move is retried; doubled after each failure.
const AGAIN: Duration = Duration::from_millis(500);
const SELDOM: Duration = Duration::from_secs(8);
/// Time in which the daemon usually answers a request for a larger grant.
const ANSWERED: Duration = Duration::from_millis(20);

const GO_ON: Step = Step::after(Duration::ZERO);
const GO_ON_WITH_NEWS: Step = Step {
    has_news: true,
    ..GO_ON
};

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Rest,
    /// Nothing is held; memory is prepared.
    Preparing(Task),
    /// Submissions are held; queued work drains.
    Quieting(Quiet, Task, Instant),
    /// Submissions are held and drained.
    Moving(Task),
}

#[derive(Debug, Default)]
pub(super) struct Device {
    phase: Phase,
    /// Whether the device is held because memory was moved out while it was frozen. That memory returns
    /// before any submission passes.
    is_kept: bool,
    /// Whether the device is held again at the next step; it was until the moves were stopped.
    is_kept_later: bool,
    /// Requested bytes that are still to be moved out.
    asked: u64,
    /// Whether the request was made for other processes, to which the room is lent.
    is_lent: bool,
    /// Bytes moved out for the current request.
    gone: u64,
    generation: u32,
    /// The limits at the last step.
    limits: [u64; 3],
    /// The bound of turns at the last step.
    resident_limit: Option<u64>,
    was_frozen: bool,
    not_before: Option<Instant>,
    pause: Duration,
    /// Delay before the next look for room.
    look: Duration,
    /// Whether the last attempt has asked for a larger grant.
    has_asked: bool,
    /// Whether the refusal of a move out has been counted.
    is_refused: bool,
    /// Size of the smallest block that the groups above have just not granted, bytes.
    not_granted: Option<u64>,
    notice: Option<Notice>,
}

/// State of a device that is moved to another slot with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Carried {
    limits: [u64; 3],
    was_frozen: bool,
    /// See [`Device::is_kept`].
    pub(super) is_kept: bool,
}

impl Device {
    pub(super) fn new() -> Self {
        Self {
            limits: [NO_LIMIT; 3],
            pause: AGAIN,
            look: FIRST_LOOK,
            ..Self::default()
        }
    }

    /// Takes over the state of the device that now has this slot.
    pub(super) fn inherit(&mut self, swap: &Swap, index: usize, known: &Carried) {
        self.limits = known.limits;
        self.was_frozen = known.was_frozen;
        if known.is_kept {
            self.keep(swap, index);
        }
    }

    /// Ends the current move, because another device gets the slot. A hold with `is_kept` stays.
    #[cold]
    pub(super) fn leave(&mut self, swap: &Swap, index: usize) -> Carried {
        if std::mem::take(&mut self.is_kept_later) {
            self.keep(swap, index);
        }
        let (task, is_held) = match std::mem::replace(&mut self.phase, Phase::Rest) {
            Phase::Rest => (None, false),
            Phase::Preparing(task) => (Some(task), false),
            Phase::Quieting(quiet, task, _) => {
                quiet.abandon();
                (Some(task), true)
            }
            Phase::Moving(task) => {
                if task.is_from_frozen() {
                    self.keep(swap, index);
                }
                (Some(task), true)
            }
        };
        if is_held {
            swap.compute.holds.release(Scope::All);
        }
        if let (Some(task), Some(usage)) = (task, swap.usage().devices.get(index)) {
            self.end(swap, index, usage, task);
        }
        (self.asked, self.gone) = (0, 0);
        if let Some(usage) = swap.usage().devices.get(index) {
            notice::end(&mut self.notice, usage);
        }
        self.forgive();
        Carried {
            limits: self.limits,
            was_frozen: self.was_frozen,
            is_kept: std::mem::take(&mut self.is_kept),
        }
    }

    /// Ends the current move and releases every hold, until the next step.
    pub(super) fn stop(&mut self, swap: &Swap, index: usize) {
        if self.leave(swap, index).is_kept {
            swap.compute.holds.release(Scope::Device(index));
            self.is_kept_later = true;
        }
    }

    fn keep(&mut self, swap: &Swap, index: usize) {
        if !std::mem::replace(&mut self.is_kept, true) {
            swap.compute.hold(Scope::Device(index));
        }
    }

    pub(super) fn step(
        &mut self,
        swap: &Swap,
        index: usize,
        usage: &UsageDevice,
        settings: &SwapSettings,
    ) -> Step {
        match std::mem::replace(&mut self.phase, Phase::Rest) {
            Phase::Rest => self.begin(swap, index, usage, settings),
            Phase::Preparing(task) => self.prepare(swap, index, usage, task),
            Phase::Quieting(quiet, task, since) => {
                self.quieten(swap, index, usage, settings, (quiet, task, since))
            }
            Phase::Moving(task) => self.advance(swap, index, usage, task),
        }
    }

    /// Returns whether submissions are held for a move and drained.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.phase, Phase::Moving(_))
    }

    /// Returns whether there is nothing to move, as far as counters show without a look at the blocks.
    pub(super) fn is_at_ease(&self, swap: &Swap, index: usize, usage: &UsageDevice) -> bool {
        let is_all_in = usage.swap_current.load(Relaxed) == 0 && !swap.is_any_absent();
        let is_heard = self.asked == 0 && usage.reclaim_generation.load(Relaxed) == self.generation;
        let is_at_rest = matches!(self.phase, Phase::Rest) && !self.is_kept && self.notice.is_none();
        is_at_rest && is_all_in && is_heard && excess(swap, index) == 0
    }

    /// Reads requests and changed limits from the control block.
    pub(super) fn hear(&mut self, swap: &Swap, index: usize) {
        if std::mem::take(&mut self.is_kept_later) {
            self.keep(swap, index);
        }
        let Some(control) = swap.control().devices.get(index) else {
            return;
        };
        let is_frozen = Gate::from_word(control.gate.load(Acquire)) == Gate::Frozen;
        let now = limits(swap.control(), index);
        if now != self.limits || self.was_frozen && !is_frozen {
            self.limits = now;
            self.forgive();
            for block in blocks(swap, index) {
                block.set_stays(Stays::No);
            }
        }
        let resident_limit = turn::resident_limit(swap, index);
        if resident_limit != std::mem::replace(&mut self.resident_limit, resident_limit) {
            self.forgive();
        }
        if self.was_frozen && !is_frozen {
            // A thaw cancels earlier requests.
            self.asked = 0;
        }
        self.was_frozen = is_frozen;
        let generation = control.reclaim_generation.load(Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.asked = control.reclaim_bytes.load(Relaxed).saturating_sub(self.gone);
            self.is_lent = control.reclaim_is_lent.load(Relaxed) != 0;
            self.forgive();
            if self.asked != 0 {
                let stays = match self.is_lent {
                    true => Stays::Lent(Instant::now()),
                    false => Stays::Asked,
                };
                blocks(swap, index).iter().for_each(|block| block.stay(stays));
            }
        }
    }

    /// Allows an immediate retry, because the request or a limit has changed.
    fn forgive(&mut self) {
        self.not_before = None;
        (self.pause, self.look) = (AGAIN, FIRST_LOOK);
        self.is_refused = false;
    }

    /// Selects the next move and starts it.
    fn begin(&mut self, swap: &Swap, index: usize, usage: &UsageDevice, settings: &SwapSettings) -> Step {
        // Until all blocks are settled the counters include old memory.
        if !swap.unsettled.lock().is_empty() {
            return GO_ON;
        }
        let left = self
            .not_before
            .map(|when| when.saturating_duration_since(Instant::now()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return self.rest(swap, index, settings, Some(left));
        }
        self.not_before = None;
        if let Some(notice) = &mut self.notice {
            let freed = notice.freed(usage).min(self.asked);
            self.asked -= freed;
            self.gone = self.gone.saturating_add(freed);
        }
        let look = Look {
            swap,
            index,
            asked: self.asked,
            is_frozen: self.was_frozen,
            order: settings.order,
            not_granted: self.not_granted,
        };
        let found = look.task();
        // A move that the user has requested begins at once.
        if let Found::Task(Task { to, .. }) = &found
            && *to != Goal::Device
            && (self.asked == 0 || self.is_lent)
        {
            let wanted = excess(swap, index).max(self.asked);
            if let Some((wake, has_news)) = notice::wait(&mut self.notice, swap, usage, wanted) {
                return Step {
                    has_news,
                    ..Step::after(wake)
                };
            }
        } else if notice::end(&mut self.notice, usage) {
            return GO_ON_WITH_NEWS;
        }
        if self.was_frozen && self.asked != 0 && usage.swap_current.load(Relaxed) != 0 {
            // What is out already returns before any submission passes, too.
            self.keep(swap, index);
        }
        let again = match found {
            Found::Task(task) => {
                self.phase = Phase::Preparing(task);
                return GO_ON;
            }
            Found::Nothing => None,
            Found::NotYet => Some(self.look_again()),
            Found::Refused => {
                if !std::mem::replace(&mut self.is_refused, true) {
                    swap.count_swap_fail(index);
                }
                // The request is answered; a move caused by a limit may find room later.
                let is_hopeful = !swap.is_host_refused();
                (is_hopeful && excess(swap, index) != 0).then_some(AGAIN)
            }
        };
        // There may be room at the next attempt.
        self.not_granted = None;
        self.not_before = again.map(|again| Instant::now() + again);
        let mut step = self.rest(swap, index, settings, again);
        step.has_news = self.deal(usage);
        if step.has_news {
            // The request may have hidden that memory may return, since a limit has changed after it.
            step.wake = Some(Duration::ZERO);
        }
        step
    }

    /// Sleeps until the next request, or for at most `wake`.
    fn rest(&mut self, swap: &Swap, index: usize, settings: &SwapSettings, wake: Option<Duration>) -> Step {
        let is_waited_for = settings.waits && wake.is_some();
        if self.is_kept && !self.was_frozen && !is_waited_for {
            self.is_kept = false;
            swap.compute.holds.release(Scope::Device(index));
        }
        Step {
            wake,
            ..Step::default()
        }
    }

    /// Publishes that all requests so far have been handled. Returns whether that is new.
    fn deal(&mut self, usage: &UsageDevice) -> bool {
        (self.asked, self.gone) = (0, 0);
        usage.reclaim_generation.swap(self.generation, Release) != self.generation
    }

    /// Returns the delay before the next look for room, and lengthens it.
    fn look_again(&mut self) -> Duration {
        let again = self.look;
        self.look = (again + again / 8).min(AGAIN);
        again
    }

    /// Schedules a retry and doubles the delay, up to [`SELDOM`].
    fn put_off(&mut self) {
        self.not_before = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(SELDOM);
    }
}
