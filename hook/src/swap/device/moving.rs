//! The moves themselves: submissions are held, queued work is drained, blocks are moved and submissions go
//! on.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gcgroup_abi::UsageDevice;

use super::super::block::{Block, Failed, Goal, Stays};
use super::super::relocate::relocate;
use super::super::run::{length, run};
use super::super::settings::SwapSettings;
use super::super::task::{Task, excess};
use super::{AGAIN, ANSWERED, Device, FIRST_LOOK, GO_ON, GO_ON_WITH_NEWS, Phase};
use crate::compute::hold::Scope;
use crate::compute::quiet::Quiet;
use crate::helper::Step;
use crate::swap::Swap;

/// Interval between checks of the drain.
const SOON: Duration = Duration::from_micros(50);
/// How long the drain may take, and the delay before the next attempt if it takes longer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Device {
    /// Holds all submissions if any block is still to be moved.
    pub(super) fn close(&mut self, swap: &Swap, index: usize, usage: &UsageDevice, mut task: Task) -> Step {
        task.review(excess(swap, index), self.asked);
        if task.ready.is_empty() && task.alone.is_empty() {
            return self.end(swap, index, usage, task);
        }
        swap.compute.hold(Scope::All);
        self.phase = Phase::Quieting(Quiet::default(), task, Instant::now());
        GO_ON
    }

    /// Ends a task and releases prepared memory that was not used.
    pub(super) fn end(&mut self, swap: &Swap, index: usize, usage: &UsageDevice, task: Task) -> Step {
        let mut failed = task.failed;
        swap.uncharge_host(index, task.reserved);
        for one in task.ready.into_iter().chain(task.needless) {
            if let Err(stuck) = one.piece.cancel(swap, index, task.to) {
                failed = Some(stuck);
            }
        }
        if let Some(failed) = failed {
            self.fail(swap, index, usage, task.to, failed);
        }
        GO_ON_WITH_NEWS
    }

    #[expect(clippy::too_many_arguments, reason = "one step of a move")]
    pub(super) fn quieten(
        &mut self,
        swap: &Swap,
        index: usize,
        usage: &UsageDevice,
        settings: &SwapSettings,
        (mut quiet, task, since): (Quiet, Task, Instant),
    ) -> Step {
        if quiet.step(swap.compute, Scope::All) && swap.compute.holds.is_untouched() {
            self.phase = Phase::Moving(task);
            return GO_ON;
        }
        if since.elapsed() < PATIENCE {
            self.phase = Phase::Quieting(quiet, task, since);
            return Step::after(SOON);
        }
        quiet.abandon();
        swap.count_swap_fail(index);
        swap.compute.holds.release(Scope::All);
        self.end(swap, index, usage, task);
        self.deal(usage);
        self.not_before = Some(Instant::now() + PATIENCE);
        Step {
            has_news: true,
            ..self.rest(swap, index, settings, Some(PATIENCE))
        }
    }

    pub(super) fn advance(&mut self, swap: &Swap, index: usize, usage: &UsageDevice, mut task: Task) -> Step {
        let is_out = task.to != Goal::Device;
        let is_from_frozen = task.is_from_frozen();
        // Thawed meanwhile: memory that was moved out returns before any submission passes.
        let is_thawed = (is_from_frozen || task.to == Goal::Aside) && !self.was_frozen;
        if !is_out && self.asked != 0 {
            task.review(0, self.asked);
        }
        if is_thawed || task.is_over {
            task.alone.clear();
        } else if let Some(block) = task.alone.pop_front() {
            let relocated = relocate(swap, &block, index, task.to);
            if task.to == Goal::Aside && matches!(relocated, Ok(true) | Err(Failed::Stuck)) {
                task.reserved -= block.size;
            }
            match relocated {
                Ok(true) => self.moved(&block, &task),
                Ok(false) => self.pause = AGAIN,
                Err(failed) => task.fail(failed),
            }
            self.phase = Phase::Moving(task);
            return GO_ON;
        } else if !task.ready.is_empty() {
            let moves = task.ready.drain(..length(&task.ready)).collect();
            let ran = run(swap, index, moves, task.to);
            ran.moved.iter().for_each(|block| self.moved(block, &task));
            swap.unsettled.lock().extend(ran.moved);
            if let Some(failed) = ran.failed {
                task.fail(failed);
            }
            self.phase = Phase::Moving(task);
            return GO_ON;
        }
        if is_from_frozen {
            // The device stays held until a thaw has brought all of it back.
            self.keep(swap, index);
        }
        swap.compute.holds.release(Scope::All);
        self.end(swap, index, usage, task)
    }

    /// Updates the request and the block after a move.
    fn moved(&mut self, block: &Block, task: &Task) {
        (self.pause, self.look, self.has_asked) = (AGAIN, FIRST_LOOK, false);
        if task.to == Goal::Device {
            return;
        }
        let of_asked = self.asked.min(block.size);
        // A request may have come after the move for a limit had begun.
        block.set_stays(match (task.is_asked || of_asked != 0, self.is_lent) {
            (false, _) => Stays::No,
            (true, false) => Stays::Asked,
            (true, true) => Stays::Lent(Instant::now()),
        });
        self.asked -= of_asked;
        self.gone = self.gone.saturating_add(of_asked);
    }

    #[expect(clippy::too_many_arguments, reason = "one step of a move")]
    fn fail(&mut self, swap: &Swap, index: usize, usage: &UsageDevice, to: Goal, failed: Failed) {
        match failed {
            // Not a failure: other processes use the device's memory. The helper does not wait for a larger
            // grant, and the daemon takes it back if it is not used soon: the second attempt finds it.
            Failed::NoRoom if to == Goal::Device => {
                self.has_asked = !self.has_asked;
                let again = if self.has_asked {
                    ANSWERED
                } else {
                    self.look_again()
                };
                return match again < AGAIN {
                    true => self.not_before = Some(Instant::now() + again),
                    false => self.put_off(),
                };
            }
            Failed::Refused => swap.is_host_refused.store(true, Relaxed),
            Failed::Stuck => swap.is_stuck.store(true, Relaxed),
            Failed::NoRoom | Failed::Driver => {}
        }
        swap.count_swap_fail(index);
        self.put_off();
        if to != Goal::Device {
            self.deal(usage);
        }
    }
}
