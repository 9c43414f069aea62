//! Frees that take effect when a stream reaches them, of memory that is in no pool. The memory stays charged
//! until then, so that the ledger never has less than the device. Completion is noticed by a wait for the
//! stream, by a thread that needs the room, and by the helper.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::Memory;
use super::account::Account;
use super::ledger::Entry;
use super::stream::{Order, Stream};
use crate::helper::Step;

#[derive(Debug, Default)]
pub(crate) struct Freeing {
    list: Mutex<Vec<Waiting>>,
    /// Length of `list`, readable without the lock.
    count: AtomicUsize,
}

/// A free that a stream has not been seen to reach.
#[derive(Debug)]
struct Waiting {
    order: Order,
    /// The memory with its key.
    freed: (u64, Entry),
}

/// Number of waiting frees at whose multiples an added one settles completed ones first.
const MANY: usize = 256;

impl Freeing {
    /// Records that the stream has been told to free the entry.
    pub(super) fn add(&self, memory: &Memory, stream: usize, freed: (u64, Entry)) {
        let order = memory.ordered(Stream::of(memory.program, stream));
        let count = {
            let mut list = self.list.lock();
            list.push(Waiting { order, freed });
            self.count.store(list.len(), Relaxed);
            list.len()
        };
        if count.is_multiple_of(MANY) {
            memory.settle_passed();
        }
        memory.session.line.wake();
    }

    /// Has frees of a stream wait for another one; returns whether there are any.
    pub(super) fn replace(&self, stream: Stream, by: Stream) -> bool {
        let mut list = self.list.lock();
        let waiting = list.iter_mut().filter(|free| free.order.stream == stream);
        waiting.map(|free| free.order.stream = by).count() != 0
    }

    /// Returns whether any free waits for a stream.
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Returns the streams that frees wait for, one for each free.
    pub(super) fn waits_for(&self) -> Vec<Stream> {
        self.list.lock().iter().map(|free| free.order.stream).collect()
    }

    /// Uncharges the frees that streams have reached.
    pub(super) fn passed(&self, memory: &Memory, is_reached: impl Fn(&Order) -> bool) {
        self.take(memory, |free| is_reached(&free.order));
    }

    /// Settles the frees up to number `last` on default streams of the calling thread's context and of its
    /// green contexts, after a wait for the context.
    pub(super) fn context_passed(&self, memory: &Memory, last: u64) {
        if !self.is_any() {
            return;
        }
        let Some(bound) = memory.program.bind() else {
            return;
        };
        let passed: Vec<u32> = match memory.program.contexts.numbered(bound.context()) {
            Some(current) => memory
                .program
                .contexts
                .family(&current)
                .iter()
                .map(|context| context.id())
                .collect(),
            None => vec![bound.context()],
        };
        self.passed(memory, |order| {
            order.number <= last && order.stream.is_default_of(&passed)
        });
    }

    /// Uncharges the pending frees of a destroyed context.
    pub(super) fn context_gone(&self, memory: &Memory, context: u32) {
        self.take(memory, |free| free.freed.1.owner == context);
    }

    /// Uncharges frees. With the lock: another thread must not find memory neither waiting nor uncharged.
    fn take(&self, memory: &Memory, is_over: impl Fn(&Waiting) -> bool) {
        let mut list = self.list.lock();
        let over = list.extract_if(.., |free| is_over(free));
        over.for_each(|free| memory.discharge(free.freed.0, &free.freed.1));
        self.count.store(list.len(), Relaxed);
    }

    pub(super) fn renumber(&self, memory: &Memory) {
        for free in self.list.lock().iter_mut() {
            memory.follow(&mut free.freed.1);
        }
    }
}

/// The helper's part, for streams that the program never waits for.
#[derive(Debug)]
pub(crate) struct Settling {
    pause: Duration,
}

/// Shortest pause between two checks, and the longest while nothing completes.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

impl Settling {
    pub(crate) fn new() -> Self {
        Self { pause: LEAST_PAUSE }
    }

    pub(crate) fn step(&mut self, memory: &Memory) -> Step {
        let (freeing, reserves) = (&memory.freeing, &memory.reserves);
        let is_any = || {
            let exceeds = || {
                reserves.is_any()
                    && reserves.exceed(memory)
                    && reserves.is_waiting(memory, Account::waits_for)
            };
            freeing.is_any() || reserves.is_any_over() || exceeds()
        };
        memory.settle_contexts();
        // A thread may settle a free after pools were trimmed in vain: what waited then is looked at again.
        let was_any = is_any();
        let has_released = memory.release_excess();
        if !was_any && !is_any() {
            self.pause = LEAST_PAUSE;
            return Step::default();
        }
        let is_freed = freeing.is_any() && memory.settle_passed();
        self.pause = if reserves.settle_over(memory) || is_freed || has_released {
            LEAST_PAUSE
        } else {
            (2 * self.pause).min(LONGEST_PAUSE)
        };
        Step::after(self.pause)
    }
}
