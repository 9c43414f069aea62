//! Moves blocks, in the helper thread: out when a limit is lowered or somebody asks for it, in when there is room.
//!
//! A device's submissions are held, what was queued has ended, and then one block after the other is moved, a block a
//! step, so that the helper hears what else it is told. If that cannot be had in a while, everything goes on as it was:
//! a kernel may wait for a submission that is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::{Gate, MAX_DEVICES, NO_LIMIT, UsageDevice};

use super::account::limits;
use super::block::{Block, Failed, Where};
use super::host;
use super::policy::{Candidate, choose};
use crate::compute::Step;
use crate::compute::quiet::Quiet;
use crate::memory::levels::{device_limit, process_limit};
use crate::process::Process;
use crate::{driver, helper};

/// Between looks while queued work ends.
const SOON: Duration = Duration::from_micros(50);
/// How long queued work may take to end, and how long it is left in peace if it does not.
const PATIENCE: Duration = Duration::from_secs(2);
/// When memory was short, it is tried again after so long.
const AGAIN: Duration = Duration::from_millis(500);

/// What is to be moved where.
#[derive(Debug)]
struct Task {
    to: Where,
    /// The next one last.
    blocks: Vec<Arc<Block>>,
    /// Whether that was asked for, and not made necessary by a limit.
    is_asked: bool,
    /// Whether the process was frozen when it began.
    is_frozen: bool,
}

#[derive(Debug)]
enum Phase {
    Rest,
    /// Held; waiting for what was queued.
    Quieting(Quiet, Task, Instant),
    /// Held, and quiet.
    Moving(Task),
    /// Held because frozen with everything out: it comes back before anything is let through.
    Out,
}

#[derive(Debug)]
struct Device {
    phase: Phase,
    /// Bytes still to be moved out because somebody asked.
    asked: u64,
    /// Bytes moved out of those that were asked for and not dealt with.
    gone: u64,
    generation: u32,
    /// The limits under which blocks were left out.
    limits: (u64, u64),
    was_frozen: bool,
    not_before: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Mover {
    devices: Vec<Device>,
    order: Option<String>,
}

impl Mover {
    pub(crate) fn new() -> Self {
        let device = || Device {
            phase: Phase::Rest,
            asked: 0,
            gone: 0,
            generation: 0,
            limits: (NO_LIMIT, NO_LIMIT),
            was_frozen: false,
            not_before: None,
        };
        Self {
            devices: std::iter::repeat_with(device).take(MAX_DEVICES).collect(),
            order: std::env::var("GCGROUP_RECLAIM").ok(),
        }
    }

    /// Goes on by one move at most.
    pub(crate) fn step(&mut self, process: &Process) -> Step {
        let mut all = Step::default();
        if !process.swap.is_on() {
            return all;
        }
        let order = self.order.as_deref();
        for ((index, device), usage) in self.devices.iter_mut().enumerate().zip(&process.usage().devices) {
            device.hear(process, index);
            if device.is_at_ease(process, index, usage) {
                continue;
            }
            let step = device.step(process, index, usage, order);
            all.has_news |= step.has_news;
            all.wake = all.wake.into_iter().chain(step.wake).min();
        }
        all
    }
}

impl Device {
    fn step(&mut self, process: &Process, index: usize, usage: &UsageDevice, order: Option<&str>) -> Step {
        match std::mem::replace(&mut self.phase, Phase::Rest) {
            Phase::Rest => self.begin(process, index, usage, order, false),
            Phase::Out if self.was_frozen && self.asked == 0 => {
                self.phase = Phase::Out;
                Step::default()
            }
            // Thawed, or more is to go.
            Phase::Out => self.begin(process, index, usage, order, true),
            Phase::Quieting(quiet, task, since) => self.quieten(process, index, usage, (quiet, task, since)),
            Phase::Moving(task) => self.advance(process, index, usage, task),
        }
    }

    /// Whether there is nothing to move, as can be told without looking at blocks.
    fn is_at_ease(&self, process: &Process, index: usize, usage: &UsageDevice) -> bool {
        let is_all_in = usage.swap_current.load(Relaxed) == 0 && self.asked == 0;
        let is_heard = usage.reclaim_generation.load(Relaxed) == self.generation;
        matches!(self.phase, Phase::Rest) && is_all_in && is_heard && excess(process, index, usage) == 0
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
            self.not_before = None;
            for block in blocks(process, index) {
                block.set_stays(false);
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
            self.not_before = None;
        }
    }

    /// Sees what there is to do, and begins it.
    fn begin(
        &mut self,
        process: &Process,
        index: usize,
        usage: &UsageDevice,
        order: Option<&str>,
        is_held: bool,
    ) -> Step {
        if let Some(left) = self
            .not_before
            .map(|when| when.saturating_duration_since(Instant::now()))
            && !left.is_zero()
        {
            return self.rest(process, index, is_held, Some(left));
        }
        self.not_before = None;
        let Some(task) = self.task(process, index, usage, order) else {
            let again = self.not_before.map(|_| AGAIN);
            let mut step = self.rest(process, index, is_held, again);
            step.has_news = self.deal(usage);
            return step;
        };
        if !is_held {
            process.hold(index);
        }
        self.phase = Phase::Quieting(Quiet::default(), task, Instant::now());
        Step {
            wake: Some(Duration::ZERO),
            has_news: false,
        }
    }

    fn rest(&mut self, process: &Process, index: usize, is_held: bool, wake: Option<Duration>) -> Step {
        if is_held && self.was_frozen {
            self.phase = Phase::Out;
        } else if is_held {
            process.release(index);
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

    fn quieten(
        &mut self,
        process: &Process,
        index: usize,
        usage: &UsageDevice,
        (mut quiet, task, since): (Quiet, Task, Instant),
    ) -> Step {
        if quiet.step(process, index) && process.is_untouched(index) {
            self.phase = Phase::Moving(task);
            return Step {
                wake: Some(Duration::ZERO),
                has_news: false,
            };
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
        self.asked = 0;
        self.not_before = Some(Instant::now() + PATIENCE);
        process.release(index);
        Step {
            wake: Some(PATIENCE),
            has_news: true,
        }
    }

    fn advance(&mut self, process: &Process, index: usize, usage: &UsageDevice, mut task: Task) -> Step {
        let go_on = Step {
            wake: Some(Duration::ZERO),
            has_news: true,
        };
        // Nothing comes in while something is to go, but for what cannot be elsewhere.
        if task.to == Where::Device && self.asked != 0 {
            task.blocks.retain(|block| block.is_pinned());
        }
        // Thawed meanwhile: what is out comes back before anything is let through.
        let is_from_frozen = task.to == Where::Host && task.is_asked && task.is_frozen;
        if is_from_frozen && !self.was_frozen {
            task.blocks.clear();
        }
        if let Some(block) = task.blocks.pop() {
            match relocate(process, &block, index, usage, task.to) {
                Ok(()) if task.to == Where::Host => {
                    block.set_stays(task.is_asked);
                    let of_asked = self.asked.min(block.size);
                    self.asked -= of_asked;
                    self.gone = self.gone.saturating_add(of_asked);
                }
                Ok(()) => {}
                Err(failed) => {
                    let is_expected = task.to == Where::Device && failed == Failed::NoRoom;
                    if !is_expected {
                        usage.nr_swap_fail.fetch_add(1, Relaxed);
                    }
                    self.asked = 0;
                    self.not_before = Some(Instant::now() + AGAIN);
                    task.blocks.clear();
                }
            }
            self.phase = Phase::Moving(task);
            return go_on;
        }
        if is_from_frozen {
            // It stays held, so that a thaw finds all of it back.
            self.deal(usage);
            self.phase = Phase::Out;
            return go_on;
        }
        process.release(index);
        go_on
    }

    /// What is to be moved, if anything.
    fn task(
        &mut self,
        process: &Process,
        index: usize,
        usage: &UsageDevice,
        order: Option<&str>,
    ) -> Option<Task> {
        let all = blocks(process, index);
        if all.is_empty() {
            self.asked = 0;
            return None;
        }
        // What the program is about to give away comes back whatever the limits say.
        let is_due = |block: &Arc<Block>| block.is_pinned() && block.place() == Where::Host;
        let due: Vec<_> = all.iter().filter(|block| is_due(block)).cloned().collect();
        if !due.is_empty() {
            return Some(Task {
                to: Where::Device,
                blocks: due,
                is_asked: false,
                is_frozen: self.was_frozen,
            });
        }
        let excess = excess(process, index, usage);
        let wanted = excess.max(self.asked);
        if wanted != 0 {
            let is_asked = self.asked >= excess;
            let on_device = |block: &Arc<Block>| block.place() == Where::Device && !block.is_pinned();
            let movable: Vec<_> = all.into_iter().filter(on_device).collect();
            let candidates: Vec<_> = movable
                .iter()
                .enumerate()
                .map(|(at, block)| Candidate {
                    at,
                    number: block.number,
                    size: block.size,
                })
                .collect();
            let chosen = choose(order, &candidates, wanted, process.swap_room(index));
            let blocks: Vec<_> = chosen
                .iter()
                .rev()
                .filter_map(|at| movable.get(*at).cloned())
                .collect();
            if blocks.is_empty() {
                // There is nothing more, or there may not be more of it on the host.
                if self.asked != 0 && !movable.is_empty() {
                    usage.nr_swap_fail.fetch_add(1, Relaxed);
                }
                self.asked = 0;
                return None;
            }
            return Some(Task {
                to: Where::Host,
                blocks,
                is_asked,
                is_frozen: self.was_frozen,
            });
        }
        // What went first comes first.
        let by_limits = room(process, index, usage);
        let mut room = by_limits;
        let is_due_in = |block: &Arc<Block>| block.place() == Where::Host && !block.stays();
        if let Some(first) = all.iter().find(|block| is_due_in(block))
            && first.size <= by_limits
        {
            room = room.min(free_memory(process, first));
            if first.size > room {
                // Others have the card: nobody tells when they go.
                self.not_before = Some(Instant::now() + AGAIN);
            }
        }
        let mut back: Vec<_> = all
            .into_iter()
            .filter(is_due_in)
            .take_while(|block| {
                let fits = block.size <= room;
                room = room.saturating_sub(block.size);
                fits
            })
            .collect();
        back.reverse();
        (!back.is_empty()).then_some(Task {
            to: Where::Device,
            blocks: back,
            is_asked: false,
            is_frozen: self.was_frozen,
        })
    }
}

fn blocks(process: &Process, index: usize) -> Vec<Arc<Block>> {
    let mut blocks = process.swap.all();
    blocks.retain(|block| process.devices.index(block.local) == index);
    blocks
}

/// Bytes over the limits.
fn excess(process: &Process, index: usize, usage: &UsageDevice) -> u64 {
    let over = |current: &AtomicU64, limit: u64| current.load(Relaxed).saturating_sub(limit);
    let control = process.control();
    over(&usage.memory_current, device_limit(control, index))
        .max(over(&process.usage().memory_current, process_limit(control)))
}

/// Bytes up to the limits.
fn room(process: &Process, index: usize, usage: &UsageDevice) -> u64 {
    let under = |current: &AtomicU64, limit: u64| limit.saturating_sub(current.load(Relaxed));
    let control = process.control();
    under(&usage.memory_current, device_limit(control, index))
        .min(under(&process.usage().memory_current, process_limit(control)))
}

/// Bytes that the driver has to give where the block would be; without an answer, it will say when it is asked for them.
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

/// Moves one block and its charge. The device is held and quiet.
fn relocate(
    process: &Process,
    block: &Arc<Block>,
    index: usize,
    usage: &UsageDevice,
    to: Where,
) -> Result<(), Failed> {
    let Some(context) = process.contexts.numbered(block.context) else {
        return Err(Failed::Driver);
    };
    // Charged where it goes before it goes; what it leaves is uncharged after.
    let is_charged = match to {
        Where::Host => host::has_room(block.size) && process.charge_swap(index, block.size),
        Where::Device if block.is_pinned() => {
            let levels = &process.memory.levels;
            levels.charge(process.usage(), process.control(), index, block.size);
            true
        }
        Where::Device => process.charge_bytes(index, block.size).is_ok(),
    };
    if !is_charged {
        return Err(Failed::NoRoom);
    }
    let count = || process.moved_block(block, to);
    let moved = helper::in_driver(|| block.move_to(&context, to, count)).unwrap_or(Err(Failed::Driver));
    if moved == Ok(true) {
        let (count, bytes) = match to {
            Where::Host => (&usage.nr_swap_out, &usage.swap_out_bytes),
            Where::Device => (&usage.nr_swap_in, &usage.swap_in_bytes),
        };
        count.fetch_add(1, Relaxed);
        bytes.fetch_add(block.size, Relaxed);
        return Ok(());
    }
    match to {
        Where::Host => process.uncharge_swap(index, block.size),
        Where::Device => process.uncharge_block(index, block.size),
    }
    moved.map(drop)
}
