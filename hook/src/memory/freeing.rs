//! Frees that take effect when a stream reaches them, of memory that is in no pool. The memory stays charged
//! until then, so that the ledger never has less than the device. Completion is noticed by a wait for the
//! stream, by a thread that needs the room, and by the helper.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::Memory;
use super::account::Account;
use super::ledger::Entry;
use super::stream::Stream;
use crate::helper::Step;

#[derive(Debug, Default)]
pub(crate) struct Freeing {
    /// The streams, and the memory with its keys.
    list: Mutex<Vec<(Stream, (u64, Entry))>>,
    /// Length of `list`, readable without the lock.
    count: AtomicUsize,
}

/// Length of the list at whose multiples an added free settles completed ones first.
const MANY: usize = 256;

impl Freeing {
    /// Records that the stream has been told to free the entry.
    pub(super) fn add(&self, memory: &Memory, stream: usize, entry: (u64, Entry)) {
        let stream = Stream::of(memory.program, stream);
        let count = {
            let mut list = self.list.lock();
            list.push((stream, entry));
            self.count.store(list.len(), Relaxed);
            list.len()
        };
        if count.is_multiple_of(MANY) {
            self.settle(memory, None);
        }
        memory.session.line.wake();
    }

    /// Has frees of a stream wait for another one; returns whether there are any.
    pub(super) fn replace(&self, stream: Stream, by: Stream) -> bool {
        let mut list = self.list.lock();
        let waiting = list.iter_mut().filter(|(waits_for, _)| *waits_for == stream);
        waiting.map(|(waits_for, _)| *waits_for = by).count() != 0
    }

    /// Uncharges completed frees: those of the stream `passed`, which the program has waited for, and those
    /// that other streams have reached. Returns whether there were any.
    pub(super) fn settle(&self, memory: &Memory, passed: Option<usize>) -> bool {
        if self.count.load(Relaxed) == 0 {
            return false;
        }
        let mut streams: Vec<Stream> = self.list.lock().iter().map(|(stream, _)| *stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let passed = passed.map(|stream| Stream::of(memory.program, stream));
        // Streams are queried without the lock.
        streams.retain(|stream| passed == Some(*stream) || stream.has_passed(memory.program));
        self.take(memory, |stream, _| streams.contains(stream))
    }

    /// Settles the frees on default streams of the calling thread's context and of its green contexts, after
    /// a wait for the context.
    pub(super) fn context_passed(&self, memory: &Memory) {
        if self.count.load(Relaxed) == 0 {
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
        self.take(memory, |stream, _| stream.is_default_of(&passed));
    }

    /// Uncharges the pending frees of a destroyed context.
    pub(super) fn context_gone(&self, memory: &Memory, context: u32) {
        self.take(memory, |_, (_, entry)| entry.owner == context);
    }

    fn take(&self, memory: &Memory, is_over: impl Fn(&Stream, &(u64, Entry)) -> bool) -> bool {
        let over: Vec<_> = {
            let mut list = self.list.lock();
            let over = list
                .extract_if(.., |(stream, entry)| is_over(stream, entry))
                .collect();
            self.count.store(list.len(), Relaxed);
            over
        };
        over.iter()
            .for_each(|(_, (key, entry))| memory.discharge(*key, entry));
        !over.is_empty()
    }

    pub(super) fn renumber(&self, memory: &Memory) {
        for (_, (_, entry)) in self.list.lock().iter_mut() {
            memory.follow(entry);
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
            freeing.count.load(Relaxed) != 0 || reserves.is_any_over() || exceeds()
        };
        memory.settle_contexts();
        // A thread may settle a free after pools were trimmed in vain: what waited then is looked at again.
        let was_any = is_any();
        let has_released = memory.release_excess();
        if !was_any && !is_any() {
            self.pause = LEAST_PAUSE;
            return Step::default();
        }
        let is_freed = freeing.settle(memory, None);
        self.pause = if reserves.settle_over(memory) || is_freed || has_released {
            LEAST_PAUSE
        } else {
            (2 * self.pause).min(LONGEST_PAUSE)
        };
        Step {
            wake: Some(self.pause),
            has_news: false,
        }
    }
}
