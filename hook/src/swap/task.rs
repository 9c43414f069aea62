//! Selection of the next move, from limits, requests and the places of blocks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Swap;
use super::block::{Block, Failed, Goal, Where};
use super::move_memory::Move;
use super::policy::{Candidate, choose};
use super::turn;
use crate::compute::elsewhere;
use crate::driver::{self, exit::in_driver};
use crate::memory::page_counter::{device_limit, group_room, process_limit};

/// Blocks to be moved and their destination.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) to: Goal,
    /// Blocks still to be prepared; the last is next.
    pub(super) blocks: Vec<Arc<Block>>,
    /// Prepared blocks, in order of their moves.
    pub(super) ready: Vec<Move>,
    /// Blocks that are moved singly and need no preparation, in order.
    pub(super) alone: VecDeque<Arc<Block>>,
    /// Bytes of host memory charged for `alone`.
    pub(super) reserved: u64,
    /// Prepared blocks that need not move any more.
    pub(super) needless: Vec<Move>,
    /// The last failure.
    pub(super) failed: Option<Failed>,
    /// Whether the remaining blocks stay where they are.
    pub(super) is_over: bool,
    /// Whether the move was requested rather than caused by a limit.
    pub(super) is_asked: bool,
    /// Whether the device's gate was frozen when the move began.
    pub(super) is_frozen: bool,
    pub(super) waits: Waits,
}

/// Time that a move has waited for other processes and for the daemon.
#[derive(Debug, Default)]
pub(super) struct Waits {
    before: Duration,
    since: Option<Instant>,
}

impl Waits {
    /// Longest wait of a move, for all its blocks together.
    const MOST: Duration = Duration::from_secs(1);

    pub(super) fn is_late(&self) -> bool {
        let now = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.before + now >= Self::MOST
    }

    pub(super) fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    pub(super) fn end(&mut self) {
        if let Some(since) = self.since.take() {
            self.before += since.elapsed();
        }
    }
}

/// Result of a selection.
#[derive(Debug)]
pub(super) enum Found {
    Task(Task),
    /// Nothing to move, or nothing that can be moved.
    Nothing,
    /// A block should move but has no room now; nothing reports when there is, so check again later.
    NotYet,
    /// A block should move out but must not.
    Refused,
}

/// Input of a selection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) swap: &'a Swap,
    pub(super) index: usize,
    /// Bytes requested to be moved out.
    pub(super) asked: u64,
    pub(super) is_frozen: bool,
    /// Name of the reclaim policy.
    pub(super) order: Option<&'a str>,
    /// Size of the smallest block that the groups above did not grant at the last request: blocks of that
    /// size and larger are skipped.
    pub(super) not_granted: Option<u64>,
}

impl Look<'_> {
    pub(super) fn task(&self) -> Found {
        let all = blocks(self.swap, self.index);
        if all.is_empty() {
            return Found::Nothing;
        }
        let due = self.due(&all);
        if !due.is_empty() {
            return Found::Task(self.of(Goal::Device, due, false));
        }
        if self.swap.is_stuck.load(Relaxed) {
            return Found::Nothing;
        }
        let excess = excess(self.swap, self.index);
        if excess.max(self.asked) != 0 {
            self.out(all, excess)
        } else {
            self.back(all)
        }
    }

    fn of(&self, to: Goal, blocks: Vec<Arc<Block>>, is_asked: bool) -> Task {
        Task {
            to,
            blocks,
            ready: Vec::new(),
            alone: VecDeque::new(),
            reserved: 0,
            needless: Vec::new(),
            failed: None,
            is_over: false,
            is_asked,
            is_frozen: self.is_frozen,
            waits: Waits::default(),
        }
    }

    /// Returns the blocks that must return regardless of limits: pinned blocks, and blocks whose addresses
    /// must be mapped.
    fn due(&self, all: &[Arc<Block>]) -> Vec<Arc<Block>> {
        let may_be_absent = self.is_frozen && elsewhere::is_all_frozen(self.swap.compute);
        let is_due = |block: &&Arc<Block>| {
            let is_given = block.is_pinned() && block.place() == Where::Host;
            is_given || block.is_absent() && (!may_be_absent || block.place() == Where::Device)
        };
        all.iter().filter(is_due).cloned().collect()
    }

    /// Selects blocks to move out, because limits are exceeded or on request.
    fn out(&self, all: Vec<Arc<Block>>, excess: u64) -> Found {
        let (swap, wanted) = (self.swap, excess.max(self.asked));
        let is_asked = self.asked >= excess;
        let on_device = |block: &Arc<Block>| block.place() == Where::Device && !block.is_pinned();
        let movable: Vec<_> = all.into_iter().filter(on_device).collect();
        if movable.is_empty() {
            return Found::Nothing;
        }
        let to = match swap.is_host_refused() {
            false => Goal::Host,
            true if self.is_frozen && elsewhere::is_all_frozen(swap.compute) => Goal::Aside,
            true => return Found::Refused,
        };
        let candidates: Vec<_> = movable
            .iter()
            .enumerate()
            .filter(|(_, block)| self.not_granted.is_none_or(|least| block.size < least))
            .map(|(at, block)| Candidate {
                at,
                number: block.number,
                size: block.size,
                whole: block.whole,
            })
            .collect();
        let (by_limits, on_host) = (swap.swap_room(self.index), swap.room_on_host());
        let chosen = choose(self.order, &candidates, wanted, by_limits.min(on_host));
        let blocks: Vec<_> = chosen
            .iter()
            .rev()
            .filter_map(|at| movable.get(*at).cloned())
            .collect();
        let is_short = on_host < by_limits || self.not_granted.is_some();
        match (blocks.is_empty(), is_asked, is_short) {
            (false, ..) => Found::Task(self.of(to, blocks, is_asked)),
            (true, true, _) => Found::Refused,
            (true, false, true) => Found::NotYet,
            (true, false, false) => Found::Nothing,
        }
    }

    /// Selects blocks to move in, as far as the device has room, in the order of their moves out.
    fn back(&self, mut all: Vec<Arc<Block>>) -> Found {
        let by_limits = room(self.swap, self.index);
        let mut room = by_limits;
        let on_host = |block: &Arc<Block>| block.place() == Where::Host;
        let is_due = |block: &Arc<Block>| on_host(block) && !block.stays().0;
        // Lent memory is left to other processes for now. Nothing reports when there is room again.
        if all
            .iter()
            .any(|block| on_host(block) && block.stays() == (true, true))
        {
            return Found::NotYet;
        }
        all.sort_by_cached_key(|block| block.departure());
        let mut is_full = false;
        if let Some(first) = all.iter().find(|block| is_due(block)) {
            if first.size <= by_limits {
                room = room.min(turn::less_reserve(
                    self.swap,
                    self.index,
                    free_memory(self.swap, first),
                ));
                is_full = first.size > room;
            } else {
                // Other processes of the group may free memory.
                let of_groups = group_room(self.swap.usage(), self.swap.control(), self.index);
                is_full = of_groups == by_limits;
            }
        }
        let mut back: Vec<_> = all
            .into_iter()
            .filter(is_due)
            .take_while(|block| {
                let fits = block.size <= room;
                room = room.saturating_sub(block.size);
                fits
            })
            .collect();
        back.reverse();
        match (back.is_empty(), is_full) {
            (false, _) => Found::Task(self.of(Goal::Device, back, false)),
            (true, true) => Found::NotYet,
            (true, false) => Found::Nothing,
        }
    }
}

pub(super) fn blocks(swap: &Swap, index: usize) -> Vec<Arc<Block>> {
    let mut blocks = swap.all();
    blocks.retain(|block| swap.session.devices.index(block.local) == index);
    blocks
}

impl Task {
    /// Drops moves that have become unnecessary during preparation.
    pub(super) fn review(&mut self, excess: u64, asked: u64) {
        let (mut bytes, wanted) = (0_u64, excess.max(asked));
        let is_needless = |one: &mut Move| match self.to {
            // Only pinned blocks are moved in while memory must be moved out.
            Goal::Device => wanted != 0 && !one.block.is_pinned(),
            Goal::Host | Goal::Aside => {
                let is_enough = bytes >= wanted;
                bytes = bytes.saturating_add(one.block.size);
                is_enough
            }
        };
        self.needless.extend(self.ready.extract_if(.., is_needless));
    }

    /// Returns whether the task moves memory of a frozen process out on request. That memory returns before
    /// any submission passes.
    pub(super) fn is_from_frozen(&self) -> bool {
        self.to != Goal::Device && self.is_asked && self.is_frozen
    }

    /// Records a failure and stops preparing blocks.
    pub(super) fn give_up(&mut self, failed: Failed) {
        self.failed = Some(failed);
        self.blocks.clear();
    }

    /// Records a failed move; the remaining blocks stay.
    pub(super) fn fail(&mut self, failed: Failed) {
        (self.failed, self.is_over) = (Some(failed), true);
    }
}

/// Returns by how many bytes the limits, or the bound of turns, are exceeded.
pub(super) fn excess(swap: &Swap, index: usize) -> u64 {
    let control = swap.control();
    let on_device = swap.usage().memory_current(index);
    let on_process = swap.memory.page_counter.sum();
    let over = |current: u64, limit: u64| current.saturating_sub(limit);
    over(on_device, device_limit(control, index))
        .max(over(on_process, process_limit(control)))
        .max(turn::excess(swap, index))
}

/// Returns how many bytes the limits leave.
fn room(swap: &Swap, index: usize) -> u64 {
    let control = swap.control();
    let on_device = swap.usage().memory_current(index);
    let on_process = swap.memory.page_counter.sum();
    let under = |current: u64, limit: u64| limit.saturating_sub(current);
    under(on_device, device_limit(control, index))
        .min(under(on_process, process_limit(control)))
        .min(group_room(swap.usage(), control, index))
        .min(turn::room(swap, index))
}

/// Returns the free memory of the block's device, bytes; `u64::MAX` without an answer, since the driver will
/// refuse by itself.
fn free_memory(swap: &Swap, block: &Block) -> u64 {
    let (mut free, mut total) = (0, 0);
    let context = swap.program.contexts.numbered(block.context);
    let asked = context.and_then(|context| {
        in_driver(|| context.with_current(|| driver::cuMemGetInfo_v2(&mut free, &mut total)))
    });
    match asked.flatten() {
        Some(Ok(())) => free as u64,
        _ => u64::MAX,
    }
}
