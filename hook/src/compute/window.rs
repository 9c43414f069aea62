//! How much work a thread keeps queued while others may need the device: a window of GPU time, not a number of calls.
//!
//! The thread marks its streams every quarter of a window, and does not submit while what it has queued would, with the
//! new submission, take longer than the window (or, where a submission takes longer than that by itself, while more than
//! three quarters of a window are left of what is queued). So whoever is more important waits for a window or for one submission,
//! whichever is longer. How long a submission takes is learnt from when marks pass. Until the first of a sort has passed,
//! which may be as long as it likes, nothing is queued behind it. What ran while somebody more important had the device
//! has shared it, and does not count for longer than was thought.

use std::collections::VecDeque;
use std::sync::Arc;

use gcgroup_abi::Submission;

use super::context::{Context, Mark};

/// A first guess at what a submission takes, nanoseconds: one that is marked at once.
const GUESS: u64 = 200_000;
/// Nothing is taken to be shorter: what can be queued is bounded by number too.
const SHORTEST: u64 = 500;
/// Where the end of one is waited for, it is looked for so much later than it is expected, rather than too early.
const LOOK: u64 = 20_000;
/// One that is late is looked for this often at least.
const LATE: u64 = 150_000;
/// How long a submission can be is told by so many of the last ones at least, and by twice as many at most.
const SAMPLES: u32 = 32;
/// A look this late after the last says little about when what it finds ended did end.
const FRESH: u64 = 150_000;

/// Submissions to one stream between two marks.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    counts: [u32; Submission::COUNT],
}

#[derive(Debug)]
struct Batch {
    mark: Mark,
    load: Load,
    /// When it was marked.
    at: u64,
}

/// A thread's on one device.
#[derive(Debug)]
pub(super) struct Window {
    /// The context whose streams these are.
    context: u32,
    /// What a submission takes, nanoseconds, by sort.
    costs: [u64; Submission::COUNT],
    /// Whether that has been seen.
    is_known: [bool; Submission::COUNT],
    longest: Longest,
    in_flight: VecDeque<Batch>,
    /// Streams with submissions since their last mark.
    unmarked: Vec<(usize, Load)>,
    /// When the last batch that is known to have passed did so most likely, and at the latest: when that was seen.
    passed_at: u64,
    passed_by: u64,
    /// When it was last asked.
    looked_at: u64,
    /// Until when somebody else had the device last.
    disturbed_until: u64,
}

/// The longest that one took lately, nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Longest {
    /// Of the last so many, and of as many before them.
    last: u64,
    count: u32,
    before: u64,
}

/// What to do with a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// There is room for it.
    Free,
    /// There will be, if the submissions take what they mostly did, in so many nanoseconds; or it will be known better.
    Taken(u64),
}

impl Load {
    fn add(&mut self, what: Submission) {
        if let Some(count) = self.counts.get_mut(what as usize) {
            *count = count.saturating_add(1);
        }
    }

    fn join(&mut self, other: Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
    }

    fn total(&self) -> u32 {
        self.counts.iter().sum()
    }

    fn cost(&self, costs: &[u64; Submission::COUNT]) -> u64 {
        let each = self.counts.iter().zip(costs);
        each.map(|(count, cost)| u64::from(*count).saturating_mul(*cost))
            .sum()
    }
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            context: 0,
            costs: [GUESS; Submission::COUNT],
            is_known: [false; Submission::COUNT],
            longest: Longest::default(),
            in_flight: VecDeque::new(),
            unmarked: Vec::new(),
            passed_at: 0,
            passed_by: 0,
            looked_at: 0,
            disturbed_until: 0,
        }
    }

    /// Whether there is a place for a submission in a window of that many nanoseconds. To be asked when nothing of the
    /// thread's is being captured.
    pub(super) fn place(
        &mut self,
        context: Option<&Arc<Context>>,
        what: Submission,
        stream: usize,
        window: u64,
        now: u64,
    ) -> Place {
        let id = context.map_or(0, |context| context.id());
        if self.context != id {
            self.forget();
            self.context = id;
        }
        self.look(now);
        let new = self.costs.get(what as usize).copied().unwrap_or(GUESS);
        let is_known = self.is_known.get(what as usize).copied().unwrap_or(false);
        let limit = match is_known || context.is_none() {
            true => window.saturating_sub(new).max(window * 3 / 4),
            false => 0,
        };
        if self.left(now) <= limit {
            self.mark(context, stream, window / 4, now);
            return Place::Free;
        }
        // To know when the rest has ended, all of it must be marked.
        self.mark(context, stream, 0, now);
        if self.left(now) <= limit {
            return Place::Free;
        }
        Place::Taken(self.worth_a_look(limit, now))
    }

    /// In how many nanoseconds there is room, or, where that is earlier and there are marks to see it by, the submission
    /// that runs has ended: who looks then knows since when the next one runs.
    fn worth_a_look(&self, limit: u64, now: u64) -> u64 {
        let room = self.expected(now).saturating_sub(limit);
        let end = self.in_flight.front().map(|batch| self.expected_of(batch, now));
        end.map_or(room, |end| room.min(end + LOOK))
    }

    /// The submission goes to the driver.
    pub(super) fn submit(&mut self, what: Submission, stream: usize) {
        let found = self.unmarked.iter_mut().find(|entry| entry.0 == stream);
        if let Some((_, load)) = found {
            return load.add(what);
        }
        let mut load = Load::default();
        load.add(what);
        self.unmarked.push((stream, load));
    }

    /// How many submissions of that sort fill half a window, at least one.
    pub(super) fn batch(&self, what: Submission, window: u64) -> u32 {
        let cost = self.costs.get(what as usize).copied().unwrap_or(GUESS);
        u32::try_from(window / 2 / cost.max(1))
            .unwrap_or(u32::MAX)
            .clamp(1, 1024)
    }

    /// The longest that a submission took lately, nanoseconds.
    pub(super) fn longest(&self) -> u64 {
        self.longest.get()
    }

    /// Somebody else has, or has just had, the device, with windows of so many nanoseconds: what that one has queued
    /// may yet run, and may be a wide window, of four.
    pub(super) fn disturb(&mut self, window: u64, now: u64) {
        self.disturbed_until = now + 4 * window;
    }

    /// Forgets what is in flight: it is another context's.
    fn forget(&mut self) {
        self.in_flight.drain(..).for_each(|batch| batch.mark.abandon());
        self.unmarked.clear();
    }

    /// What is queued, in nanoseconds of GPU time from `now` on, if the one that runs is a long one and began as late as
    /// it can have.
    fn left(&self, now: u64) -> u64 {
        self.queued(|batch| {
            let cost = batch.load.cost(&self.costs);
            let is_one = batch.load.total() == 1;
            let most = cost.max(if is_one { self.longest.get() } else { 0 });
            let ran = now.saturating_sub(batch.at.max(self.passed_by));
            // Late already: a moment more, and one that is longer than any was may be much longer.
            let late = if is_one && ran > most { ran / 4 } else { 0 };
            most.saturating_sub(ran).max(cost / 16).max(late)
        })
    }

    /// The same if it is like most, and began when it most likely did.
    fn expected(&self, now: u64) -> u64 {
        self.queued(|batch| self.expected_of(batch, now))
    }

    /// What is left of a batch, if it is the one that runs. What is late is late by a little, as far as anybody knows, and
    /// is looked for that often.
    fn expected_of(&self, batch: &Batch, now: u64) -> u64 {
        let cost = batch.load.cost(&self.costs);
        let ran = now.saturating_sub(batch.at.max(self.passed_at));
        let late = (cost / 16).max(ran.saturating_sub(cost) / 8);
        cost.saturating_sub(ran).max(late.min(LATE))
    }

    fn queued(&self, left_of: impl FnOnce(&Batch) -> u64) -> u64 {
        let unmarked: u64 = self.unmarked.iter().map(|(_, load)| load.cost(&self.costs)).sum();
        let mut batches = self.in_flight.iter();
        let running = batches.next().map_or(0, left_of);
        let queued: u64 = batches.map(|batch| batch.load.cost(&self.costs)).sum();
        running.saturating_add(queued).saturating_add(unmarked)
    }

    /// Sees which batches have passed, and learns from it: of all of them together, since it is not known when each did.
    fn look(&mut self, now: u64) {
        let (mut passed, mut began) = (Load::default(), now);
        let mut at = 0;
        while let Some(batch) = self.in_flight.get(at) {
            if !batch.mark.has_passed() {
                at += 1;
                continue;
            }
            if let Some(batch) = self.in_flight.remove(at) {
                passed.join(batch.load);
                began = began.min(batch.at);
                batch.mark.abandon();
            }
        }
        if passed.total() != 0 {
            self.account(passed, began, now);
        }
        self.looked_at = now;
    }

    /// A load of which nothing had passed at the last look has passed now; its first batch was marked at `began`.
    fn account(&mut self, passed: Load, began: u64, now: u64) {
        let began_by = began.max(self.passed_by);
        let began = began.max(self.passed_at);
        let most = now.saturating_sub(began);
        let is_exact = now.saturating_sub(self.looked_at) < FRESH;
        let least = if began < self.disturbed_until {
            0
        } else if is_exact {
            most
        } else {
            self.looked_at.saturating_sub(began).min(most)
        };
        self.learn(passed, least, most);
        if passed.total() == 1 && least != 0 {
            // Late looks must not make it longer than it was: it took until it was seen not to have passed, and a moment.
            let seen = self.looked_at.saturating_sub(began_by);
            self.longest.learn((seen + LATE).min(most));
        }
        // When it passed is not known either: what comes next began there.
        self.passed_by = now;
        self.passed_at = began + passed.cost(&self.costs).clamp(least, most);
    }

    /// A load took from `least` to `most` nanoseconds, the former not above the latter.
    fn learn(&mut self, load: Load, least: u64, most: u64) {
        let expected = load.cost(&self.costs).max(1);
        let took = expected.clamp(least, most);
        if least == 0 && took == expected {
            return;
        }
        let each = self.costs.iter_mut().zip(&mut self.is_known).zip(load.counts);
        for ((cost, is_known), _) in each.filter(|(_, count)| *count != 0) {
            let found = u128::from(*cost) * u128::from(took) / u128::from(expected);
            let found = u64::try_from(found).unwrap_or(u64::MAX);
            if std::mem::replace(is_known, true) {
                *cost = cost.midpoint(found.min(*cost * 4)).max(SHORTEST);
            } else {
                *cost = found.max(SHORTEST);
            }
        }
    }

    /// Sets marks on streams with more than `least` nanoseconds of work since their last; the one in use first.
    fn mark(&mut self, context: Option<&Arc<Context>>, in_use: usize, least: u64, now: u64) {
        let Some(context) = context else { return };
        let Self {
            costs,
            in_flight,
            unmarked,
            ..
        } = self;
        unmarked.retain(|(stream, load)| {
            if load.cost(costs) <= least {
                return true;
            }
            let mark = context.mark_own(*stream, *stream == in_use);
            let is_marked = mark.is_some();
            in_flight.extend(mark.map(|mark| Batch {
                mark,
                load: *load,
                at: now,
            }));
            !is_marked
        });
    }
}

impl Longest {
    fn get(self) -> u64 {
        self.last.max(self.before)
    }

    /// Another took so many nanoseconds at least.
    fn learn(&mut self, least: u64) {
        if self.count == SAMPLES {
            (self.before, self.last, self.count) = (self.last, 0, 0);
        }
        self.last = self.last.max(least);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::gate::nap;
    use super::super::mark::Sign;
    use super::*;

    const WINDOW: u64 = 500_000;

    fn load(count: u32) -> Load {
        Load {
            counts: [count, 0, 0],
        }
    }

    #[test]
    fn there_is_room_until_the_window_is_full() {
        let mut window = Window::new();
        window.costs = [100_000; 3];
        let mut taken = 0;
        while window.place(None, Submission::Kernel, 1, WINDOW, 0) == Place::Free {
            window.submit(Submission::Kernel, 1);
            taken += 1;
        }
        assert_eq!(taken, 5);
        assert_eq!(
            window.place(None, Submission::Kernel, 1, WINDOW, 0),
            Place::Taken(100_000)
        );
        window.forget();
        assert_eq!(window.place(None, Submission::Kernel, 1, WINDOW, 0), Place::Free);
    }

    #[test]
    fn one_that_is_longer_than_the_window_goes_when_the_one_before_is_nearly_done() {
        let mut window = Window::new();
        window.costs = [2_000_000; 3];
        assert_eq!(window.place(None, Submission::Kernel, 1, WINDOW, 0), Place::Free);
        window.submit(Submission::Kernel, 1);
        assert_eq!(
            window.place(None, Submission::Kernel, 1, WINDOW, 0),
            Place::Taken(1_625_000)
        );
    }

    #[test]
    fn until_one_of_a_sort_has_passed_nothing_is_queued_behind_it() {
        let context = Context::by_hand();
        let mut window = Window::new();
        let place = |window: &mut Window| window.place(Some(&context), Submission::Kernel, 1, WINDOW, 0);
        assert_eq!(place(&mut window), Place::Free);
        window.submit(Submission::Kernel, 1);
        assert!(matches!(place(&mut window), Place::Taken(_)));
        window.learn(load(1), 10_000, 10_000);
        assert_eq!(place(&mut window), Place::Free);
    }

    #[test]
    fn one_that_may_be_as_long_as_the_longest_is_not_nearly_done() {
        const LONG: u64 = 10_000_000;
        let mut window = Window::new();
        window.learn(load(1), LONG / 10, LONG / 10);
        window.longest.learn(LONG);
        for _ in 0..SAMPLES {
            window.longest.learn(LONG / 10);
        }
        window.in_flight.push_back(Batch {
            mark: Context::by_hand().mark_by_hand(Sign::Word { index: 1, value: 1 }),
            load: load(1),
            at: 0,
        });
        let left = |ran| window.left(ran);
        assert!(left(LONG / 10) > WINDOW, "though most are shorter");
        assert!(left(LONG - WINDOW / 2) <= WINDOW / 2);
        assert!(left(LONG + WINDOW) > WINDOW, "longer than any was");
        for _ in 0..SAMPLES {
            window.longest.learn(LONG / 10);
        }
        assert_eq!(window.longest(), LONG / 10, "that was long ago");
    }

    #[test]
    fn who_has_shared_the_device_is_not_taken_to_be_long() {
        let (mut window, mut undisturbed) = (Window::new(), Window::new());
        for window in [&mut window, &mut undisturbed] {
            window.learn(load(1), 1_000_000, 1_000_000);
            window.looked_at = 10_000_000;
        }
        window.disturb(WINDOW, 9_000_000 - 4 * WINDOW);
        window.account(load(1), 5_000_000, 10_000_000);
        undisturbed.account(load(1), 5_000_000, 10_000_000);
        assert_eq!((window.costs[0], window.longest()), (1_000_000, 0));
        assert!(undisturbed.costs[0] > 2_000_000 && undisturbed.longest() == 5_000_000);
        // What begins afterwards has it alone.
        window.looked_at = 15_000_000;
        window.account(load(1), 10_000_000, 15_000_000);
        assert_eq!(window.longest(), 5_000_000);
    }

    #[test]
    fn costs_follow_what_is_seen() {
        let mut window = Window::new();
        window.learn(load(10), 1_000_000, 1_000_000);
        assert_eq!(window.costs, [100_000, GUESS, GUESS], "that is all that is known");
        window.learn(load(10), 2_200_000, 2_200_000);
        assert_eq!(window.costs[0], 160_000);
        window.learn(load(10), 0, 9_000_000);
        assert_eq!(window.costs[0], 160_000, "nobody looked in between");
        for _ in 0..20 {
            window.learn(load(10), 0, 1_000);
        }
        assert_eq!(window.costs[0], SHORTEST);
    }

    #[test]
    fn who_was_short_is_found_to_be_long_though_few_look() {
        let mut window = Window::new();
        window.costs = [SHORTEST; 3];
        // Eight of a millisecond each are queued, and looked at when the next comes; marked a quarter of a window apart.
        for _ in 0..30 {
            let count = u32::try_from(WINDOW / 4 / window.costs[0]).unwrap() + 1;
            let left = u64::from(count.min(8));
            window.learn(load(count), (left - 1) * 1_000_000, left * 1_000_000 + 500_000);
        }
        assert!(
            window.costs[0] > WINDOW / 4,
            "each is marked from now on: {:?}",
            window.costs
        );
    }

    #[test]
    fn who_sleeps_in_between_takes_no_sleep_for_work() {
        const LONG: u64 = 1_000_000;
        let mut window = Window::new();
        // The device is never idle: one runs, and the next is queued shortly before it ends, after a nap of nearly as
        // long. So each ends while the thread sleeps.
        for kernel in 2..100_u64 {
            let end = kernel * LONG;
            window.looked_at = end - 250_000;
            window.account(load(1), end - LONG - 250_000, end + 690_000);
            assert!(window.passed_at <= end + 690_000);
        }
        let cost = window.costs[0];
        assert!((LONG * 7 / 10..LONG * 11 / 10).contains(&cost), "{cost}");
    }

    /// A thread that submits one kernel after another as soon as there is a place, and a device that does nothing else.
    #[derive(Debug)]
    struct Bench {
        context: Arc<Context>,
        submitted: u32,
        now: u64,
        /// When each that was submitted ends, with its mark.
        ends: VecDeque<(u64, Sign)>,
        /// When the last of them does.
        free_at: u64,
        idle: u64,
        /// The most that was queued when another was let in.
        most: u64,
        asked: u32,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                context: Context::by_hand(),
                submitted: 0,
                now: 0,
                ends: VecDeque::new(),
                free_at: 0,
                idle: 0,
                most: 0,
                asked: 0,
            }
        }

        /// Submits kernels of such lengths; each of its sleeps lasts as much longer as `late` says.
        fn run(
            &mut self,
            window: &mut Window,
            kernels: impl Iterator<Item = u64>,
            late: impl Fn(u32) -> u64,
        ) {
            for kernel in kernels {
                loop {
                    while let Some((_, sign)) = self.ends.pop_front_if(|(end, _)| *end <= self.now) {
                        self.context.pass(sign);
                    }
                    self.asked += 1;
                    match window.place(None, Submission::Kernel, 1, WINDOW, self.now) {
                        Place::Free => break,
                        Place::Taken(left) => self.now += nap(left) + late(self.asked),
                    }
                }
                self.most = self.most.max(self.free_at.saturating_sub(self.now));
                self.idle += self.now.saturating_sub(self.free_at);
                self.free_at = self.free_at.max(self.now) + kernel;
                self.submitted += 1;
                let sign = Sign::Word {
                    index: self.submitted as usize % 64,
                    value: self.submitted,
                };
                self.ends.push_back((self.free_at, sign));
                window.in_flight.push_back(Batch {
                    mark: self.context.mark_by_hand(sign),
                    load: load(1),
                    at: self.now,
                });
                self.now += 3_000;
            }
        }
    }

    #[test]
    fn one_is_let_in_when_the_one_before_is_truly_nearly_done() {
        const LONG: u64 = 1_000_000;
        for kernels in [[LONG; 4], [LONG, LONG * 21 / 20, LONG * 19 / 20, LONG]] {
            let late: fn(u32) -> u64 = |asked| 50_000 + u64::from(asked * 7 % 13) * 10_000;
            for cost in [LONG * 8 / 10, LONG * 9 / 10, LONG, LONG * 12 / 10] {
                let mut window = Window::new();
                window.costs[0] = cost;
                window.longest.learn(LONG);
                let mut bench = Bench::new();
                // Learns first.
                bench.run(&mut window, kernels.into_iter().cycle().take(20), late);
                bench.most = 0;
                bench.run(&mut window, kernels.into_iter().cycle().take(400), late);
                let (most, idle) = (bench.most, bench.idle * 100 / bench.now);
                let bound = WINDOW * 3 / 4 + LONG / 20;
                let costs = window.costs;
                assert!(most <= bound, "{cost}: {most} were left; {costs:?}");
                assert!(idle <= 3, "{cost}: {idle} % idle; {costs:?}");
            }
        }
    }

    #[test]
    fn a_sort_is_learnt_of_by_itself() {
        let mut window = Window::new();
        window.learn(Load { counts: [0, 1, 0] }, 50_000_000, 50_000_000);
        assert_eq!((window.costs[0], window.costs[2]), (GUESS, GUESS));
        assert_eq!(window.costs[1], 50_000_000);
    }

    #[test]
    fn a_batch_is_half_a_window() {
        let mut window = Window::new();
        window.costs = [10_000, 10_000_000, 1];
        assert_eq!(window.batch(Submission::Kernel, WINDOW), 25);
        assert_eq!(window.batch(Submission::Graph, WINDOW), 1);
        assert_eq!(window.batch(Submission::Copy, WINDOW), 1024);
    }
}
