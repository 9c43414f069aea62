//! A simulated process: its habits, and what it runs.

mod gate;

use std::collections::{BTreeMap, VecDeque};

use gcgroup_abi::Gate;

use super::played::{MSEC, SEC, USEC};
use crate::arbiter::member::Seen;
use crate::arbiter::memory_turns::Holding;
use crate::arbiter::place::{Place, Step};
use crate::arbiter::plan::Quotas;
use crate::arbiter::quota::Meter;
use crate::tree::{GateOrder, Quota};

/// The hook's first guess of a submission's cost, nanoseconds.
const GUESS: u64 = 200 * USEC;
/// Shortest submission, nanoseconds, of which the hook learns from the charged GPU time.
const CHARGED: u64 = 4 * MSEC;
/// Number of submissions beside other processes' work after which the hook learns from them.
const SHARED: u32 = 16;

/// A submission, kernel or graph.
#[derive(Debug, Clone, Copy)]
struct Kernel {
    length: u64,
    left: u64,
    /// When the one before it ended.
    since: u64,
    is_shared: bool,
    /// GPU time charged to the process when it was submitted to an empty queue.
    charged: Option<u64>,
}

/// The hook's knowledge of submissions of one length.
#[derive(Debug, Clone, Copy)]
struct Cost {
    nsec: u64,
    is_known: bool,
    /// Number of times that it ran beside other processes' work, and the quickest of them.
    shared: u32,
    quickest: u64,
}

const UNKNOWN: Cost = Cost {
    nsec: GUESS,
    is_known: false,
    shared: 0,
    quickest: u64::MAX,
};

/// An event in the life of a process.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    /// Moves it, or gives it another priority.
    Move(Place),
    /// Kills it with its queued work.
    End,
    /// Starts another one in its place.
    Start,
    /// Freezes it until that time.
    Freeze(u64),
}

/// One process: it works for `on` nanoseconds of GPU time, then pauses for `off` nanoseconds.
#[derive(Debug, Clone)]
pub(super) struct Player {
    pub(super) place: Place,
    /// Events to come, with their times, the last first.
    script: Vec<(u64, Act)>,
    /// Number of processes that have ended in its place.
    ended: u32,
    pub(super) is_present: bool,
    on: u64,
    off: u64,
    /// GPU time of its submissions, in turn.
    kernels: Vec<u64>,
    next: usize,
    pub(super) quota: Option<Meter>,
    /// Rest of the burst, and when the next one begins.
    left: u64,
    resumes: u64,
    /// How long each burst took, nanoseconds.
    pub(super) bursts: Vec<u64>,
    queue: VecDeque<Kernel>,
    costs: BTreeMap<u64, Cost>,
    /// By length, the least time of a submission that tells its GPU time.
    sampled: BTreeMap<u64, u64>,
    /// The end of the gap that was seen last, and since when it has been known.
    gap: (u64, u64),
    /// The gate at which a thread waits, and since when.
    waiting: Option<(Gate, u64)>,
    submitted: u64,
    queued_until: u64,
    pub(super) busy_nsec: u64,
    pub(super) used: u64,
    /// `used` at the last tick, and what the process that has ended in its place had used since then.
    pub(super) looked: u64,
    pub(super) remainder: Option<(Place, u64)>,
    /// GPU time that the daemon has charged to it.
    pub(super) charged: u64,
    /// The last submission that ran beside others: its length, the time that it took, and the GPU time
    /// charged before it.
    unsettled: Option<(u64, u64, u64)>,
    pub(super) order: GateOrder<(usize, u32)>,
    /// Claims waiting threads, in changing numbers, and never goes on.
    is_liar: bool,
    /// Measures its work also while its gate is open.
    is_measuring: bool,
    /// Frozen until that time.
    frozen_until: u64,
}

impl Player {
    pub(super) fn new(priority: u32, kernel: u64) -> Self {
        Self::mixed(priority, &[kernel])
    }

    /// Returns a process that submits kernels of these lengths in turn.
    pub(super) fn mixed(priority: u32, kernels: &[u64]) -> Self {
        Self {
            place: Place::new(&[], priority),
            script: Vec::new(),
            ended: 0,
            is_present: true,
            on: u64::MAX,
            off: 0,
            kernels: kernels.to_vec(),
            next: 0,
            quota: None,
            left: u64::MAX,
            resumes: 0,
            bursts: Vec::new(),
            queue: VecDeque::new(),
            costs: BTreeMap::new(),
            sampled: BTreeMap::new(),
            gap: (0, 0),
            waiting: None,
            submitted: 0,
            queued_until: 0,
            busy_nsec: 0,
            used: 0,
            charged: 0,
            unsettled: None,
            order: GateOrder::OPEN,
            is_liar: false,
            is_measuring: false,
            looked: 0,
            remainder: None,
            frozen_until: 0,
        }
    }

    /// Returns it in these groups, the outermost first, each with its priority.
    pub(super) fn within(self, groups: &[(u64, u32)], priority: u32) -> Self {
        let step = |(group, priority): &(u64, u32)| Step {
            group: *group,
            priority: *priority,
        };
        let steps: Vec<Step> = groups.iter().map(step).collect();
        Self {
            place: Place::new(&steps, priority),
            ..self
        }
    }

    /// Returns it so that its work is also measured while its gate is open.
    pub(super) fn measuring(self) -> Self {
        let is_measuring = true;
        Self { is_measuring, ..self }
    }

    /// Returns it with a script, in the order of time.
    pub(super) fn script(self, acts: impl IntoIterator<Item = (u64, Act)>) -> Self {
        let mut script: Vec<(u64, Act)> = acts.into_iter().collect();
        script.reverse();
        Self { script, ..self }
    }

    /// Returns it so that it moves between its place and that of another one all the time.
    pub(super) fn commutes(self, each: u64, to: &Self) -> Self {
        let places = [to.place, self.place];
        let moves = (0..10 * SEC / each).zip(places.into_iter().cycle());
        self.script(moves.map(|(at, place)| ((at + 1) * each, Act::Move(place))))
    }

    /// Does what its script says for `now`, or thaws. Returns whether it has done anything.
    pub(super) fn act(&mut self, now: u64) -> bool {
        let before = self.script.len();
        let thaws = self.frozen_until > 0 && !self.is_frozen(now);
        if thaws {
            self.frozen_until = 0;
        }
        while let Some((_, act)) = self.script.pop_if(|(at, _)| *at <= now) {
            match act {
                Act::Move(place) => self.place = place,
                Act::Freeze(until) => self.frozen_until = until,
                Act::Start => (self.is_present, self.resumes) = (true, now),
                Act::End => {
                    *self = Self {
                        ended: self.ended + 1,
                        is_present: false,
                        on: self.on,
                        off: self.off,
                        left: self.on,
                        place: self.place,
                        is_measuring: self.is_measuring,
                        used: self.used,
                        looked: self.used,
                        remainder: Some((self.place, self.used - self.looked)),
                        bursts: std::mem::take(&mut self.bursts),
                        script: std::mem::take(&mut self.script),
                        ..Self::mixed(0, &self.kernels)
                    }
                }
            }
        }
        thaws || self.script.len() < before
    }

    pub(super) fn liar(priority: u32) -> Self {
        Self {
            left: 0,
            is_liar: true,
            ..Self::new(priority, MSEC)
        }
    }

    pub(super) fn bursts(self, on: u64, off: u64) -> Self {
        Self {
            on,
            off,
            left: on,
            ..self
        }
    }

    pub(super) fn frozen(self, until: u64) -> Self {
        Self {
            frozen_until: until,
            ..self
        }
    }

    pub(super) fn quota(self, usec: u64, period_usec: u64) -> Self {
        let meter = Meter::new(Quota { usec, period_usec }, 0);
        Self {
            quota: Some(meter),
            ..self
        }
    }

    pub(super) fn wants(&self, now: u64) -> bool {
        self.is_present && self.left > 0 && now >= self.resumes
    }

    pub(super) fn is_frozen(&self, now: u64) -> bool {
        now < self.frozen_until
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    /// Charges GPU time to it and to its quota; returns the quota's state.
    pub(super) fn charge(&mut self, now: u64, nsec: u64) -> Quotas {
        self.charged += nsec;
        let Some(meter) = &mut self.quota else {
            return Quotas::default();
        };
        meter.charge(now, nsec);
        Quotas {
            has_any: true,
            over_until: meter.is_over().then(|| meter.repaid()),
            least: Some(meter.quota().usec * USEC),
        }
    }

    pub(super) fn seen(&self, at: usize, now: u64) -> Seen<(usize, u32)> {
        Seen {
            id: (at, self.ended),
            place: self.place,
            busy_nsec: self.busy_nsec,
            is_busy: self.is_busy(),
            submitted_nsec: self.submitted,
            queued_until: self.queued_until,
            nr_waiting: match self.is_liar {
                true => 1 + u32::from((now / (20 * USEC)).is_multiple_of(3)),
                false => u32::from(self.waits()),
            },
            is_frozen: self.is_frozen(now),
            is_watched: false,
            is_measuring: self.is_measuring,
            memory: Holding::default(),
        }
    }

    /// Returns the rest of the running submission, nanoseconds of GPU time.
    pub(super) fn running(&self) -> Option<u64> {
        Some(self.queue.front()?.left)
    }

    /// Runs the queue for at most `nsec` nanoseconds of GPU time, up to `now`.
    pub(super) fn run(&mut self, now: u64, mut nsec: u64, is_shared: bool) {
        while let Some(kernel) = self.queue.front_mut() {
            kernel.is_shared |= is_shared;
            let done = nsec.min(kernel.left);
            kernel.left -= done;
            nsec -= done;
            self.used += done;
            if kernel.left > 0 {
                return;
            }
            let kernel = *kernel;
            self.queue.pop_front();
            self.learn(&kernel, now);
            if let Some(next) = self.queue.front_mut() {
                next.since = now;
            }
        }
        if self.left == 0 && !self.is_liar {
            self.left = self.on;
            self.bursts.push(now - self.resumes);
            self.resumes = now + self.off;
        }
    }

    fn learn(&mut self, kernel: &Kernel, now: u64) {
        let took = now - kernel.since;
        if !kernel.is_shared || took < CHARGED {
            let sampled = self.sampled.entry(kernel.length).or_insert(took);
            *sampled = took.min(*sampled);
        }
        let settles = kernel.charged.filter(|_| kernel.is_shared && took >= CHARGED);
        self.unsettled = settles.map(|before| (kernel.length, took, before));
        let cost = self.costs.entry(kernel.length).or_insert(UNKNOWN);
        if self.unsettled.is_some() {
            return;
        }
        if kernel.is_shared {
            cost.shared += 1;
            cost.quickest = cost.quickest.min(took);
            if cost.shared < SHARED {
                return;
            }
            (cost.nsec, cost.shared, cost.quickest) = (cost.quickest, 0, u64::MAX);
        } else {
            (cost.nsec, cost.shared) = (took, 0);
        }
        cost.is_known = true;
    }

    /// Returns when its habits change by themselves.
    pub(super) fn changes(&self, now: u64) -> Option<u64> {
        let resumes = (self.left > 0).then_some(self.resumes);
        let acts = self.script.last().map(|(at, _)| *at);
        [resumes, acts, Some(self.frozen_until)]
            .into_iter()
            .flatten()
            .filter(|when| *when > now)
            .min()
    }
}
