//! What is to be moved next: found from limits, from what was asked for, and from where the blocks are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::block::{Block, Failed, Goal, Where};
use super::made::Move;
use super::policy::{Candidate, choose};
use crate::compute::elsewhere;
use crate::memory::levels::{device_limit, group_room, process_limit};
use crate::process::Process;
use crate::{driver, helper};

/// What is to be moved where.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) to: Goal,
    /// What is to be made ready, the next one last.
    pub(super) blocks: Vec<Arc<Block>>,
    /// What is ready to be moved, in order.
    pub(super) ready: Vec<Move>,
    /// What is moved by itself, and needs nothing to be made first, in order.
    pub(super) alone: VecDeque<Arc<Block>>,
    /// Bytes of host memory that are charged for those.
    pub(super) reserved: u64,
    /// What was made ready and is not to be moved after all.
    pub(super) needless: Vec<Move>,
    /// What has gone wrong.
    pub(super) failed: Option<Failed>,
    /// Whether the rest is left where it is.
    pub(super) is_over: bool,
    /// Whether that was asked for, and not made necessary by a limit.
    pub(super) is_asked: bool,
    /// Whether the process was frozen when it began.
    pub(super) is_frozen: bool,
    pub(super) waits: Waits,
}

/// How long a move has waited for other processes and for the daemon.
#[derive(Debug, Default)]
pub(super) struct Waits {
    before: Duration,
    since: Option<Instant>,
}

impl Waits {
    /// How long a move waits, all its blocks together.
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

/// What a look came to.
#[derive(Debug)]
pub(super) enum Found {
    Task(Task),
    /// Everything is where it should be, or as near to it as it can be.
    Nothing,
    /// Something should move for which there is no room now, and nobody tells when there is.
    NotYet,
    /// Something should go that may not.
    Refused,
}

/// In whose name a look is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) process: &'a Process,
    pub(super) index: usize,
    /// Bytes that somebody asked for to go.
    pub(super) asked: u64,
    pub(super) is_frozen: bool,
    /// Of the reclaim policies.
    pub(super) order: Option<&'a str>,
    /// What the groups above did not let go out when they were last asked: blocks of that size and larger
    /// ones.
    pub(super) not_granted: Option<u64>,
}

impl Look<'_> {
    pub(super) fn task(&self) -> Found {
        let all = blocks(self.process, self.index);
        if all.is_empty() {
            return Found::Nothing;
        }
        let due = self.due(&all);
        if !due.is_empty() {
            return Found::Task(self.of(Goal::Device, due, false));
        }
        if self.process.swap.is_stuck.load(Relaxed) {
            return Found::Nothing;
        }
        let excess = excess(self.process, self.index);
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

    /// What comes back whatever the limits say: what the program is about to give away, and what must be at
    /// its addresses.
    fn due(&self, all: &[Arc<Block>]) -> Vec<Arc<Block>> {
        let may_be_absent = self.is_frozen && elsewhere::is_all_frozen(self.process);
        let is_due = |block: &&Arc<Block>| {
            let is_given = block.is_pinned() && block.place() == Where::Host;
            is_given || block.is_absent() && (!may_be_absent || block.place() == Where::Device)
        };
        all.iter().filter(is_due).cloned().collect()
    }

    /// What is over the limits, or was asked for.
    fn out(&self, all: Vec<Arc<Block>>, excess: u64) -> Found {
        let (process, wanted) = (self.process, excess.max(self.asked));
        let is_asked = self.asked >= excess;
        let on_device = |block: &Arc<Block>| block.place() == Where::Device && !block.is_pinned();
        let movable: Vec<_> = all.into_iter().filter(on_device).collect();
        if movable.is_empty() {
            return Found::Nothing;
        }
        let to = match process.swap.is_host_refused.load(Relaxed) {
            false => Goal::Host,
            true if self.is_frozen && elsewhere::is_all_frozen(process) => Goal::Aside,
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
            })
            .collect();
        let (by_limits, on_host) = (process.swap_room(self.index), process.room_on_host());
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

    /// What there is room for on the device. What went first comes first.
    fn back(&self, mut all: Vec<Arc<Block>>) -> Found {
        let by_limits = room(self.process, self.index);
        let mut room = by_limits;
        let on_host = |block: &Arc<Block>| block.place() == Where::Host;
        let is_due = |block: &Arc<Block>| on_host(block) && !block.stays().0;
        // What others need has just been left to them. Nobody tells when there is room again.
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
                room = room.min(free_memory(self.process, first));
                is_full = first.size > room;
            } else {
                // Others of the group may give theirs back.
                let of_groups = group_room(self.process.usage(), self.process.control(), self.index);
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

pub(super) fn blocks(process: &Process, index: usize) -> Vec<Arc<Block>> {
    let mut blocks = process.swap.all();
    blocks.retain(|block| process.devices.index(block.local) == index);
    blocks
}

impl Task {
    /// Leaves out what has become needless while it was made ready.
    pub(super) fn review(&mut self, excess: u64, asked: u64) {
        let (mut bytes, wanted) = (0_u64, excess.max(asked));
        let is_needless = |one: &mut Move| match self.to {
            // Nothing comes in while something is to go, but for what cannot be elsewhere.
            Goal::Device => wanted != 0 && !one.block.is_pinned(),
            Goal::Host | Goal::Aside => {
                let is_enough = bytes >= wanted;
                bytes = bytes.saturating_add(one.block.size);
                is_enough
            }
        };
        self.needless.extend(self.ready.extract_if(.., is_needless));
    }

    /// Whether it takes out, as asked, what is frozen: that comes back before anything is let through.
    pub(super) fn is_from_frozen(&self) -> bool {
        self.to != Goal::Device && self.is_asked && self.is_frozen
    }

    /// Nothing more is made ready.
    pub(super) fn give_up(&mut self, failed: Failed) {
        self.failed = Some(failed);
        self.blocks.clear();
    }

    /// A move has failed, and the others are left.
    pub(super) fn fail(&mut self, failed: Failed) {
        (self.failed, self.is_over) = (Some(failed), true);
    }
}

/// Bytes over the limits.
pub(super) fn excess(process: &Process, index: usize) -> u64 {
    let control = process.control();
    let on_device = process.usage().memory_current(index);
    let on_process = process.memory.levels.sum(process.usage());
    let over = |current: u64, limit: u64| current.saturating_sub(limit);
    over(on_device, device_limit(control, index)).max(over(on_process, process_limit(control)))
}

/// Bytes up to the limits.
fn room(process: &Process, index: usize) -> u64 {
    let control = process.control();
    let on_device = process.usage().memory_current(index);
    let on_process = process.memory.levels.sum(process.usage());
    let under = |current: u64, limit: u64| limit.saturating_sub(current);
    under(on_device, device_limit(control, index))
        .min(under(on_process, process_limit(control)))
        .min(group_room(process.usage(), control, index))
}

/// Bytes that the driver has to give where the block would be; without an answer, it will say when it is
/// asked for them.
fn free_memory(process: &Process, block: &Block) -> u64 {
    let (mut free, mut total) = (0, 0);
    let context = process.contexts.numbered(block.context);
    let asked = context.and_then(|context| {
        helper::in_driver(|| context.with_current(|| driver::cuMemGetInfo_v2(&mut free, &mut total)))
    });
    match asked.flatten() {
        Some(Ok(())) => free as u64,
        _ => u64::MAX,
    }
}
