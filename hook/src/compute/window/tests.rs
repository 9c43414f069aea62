use super::super::mark::Sign;
use super::super::wait::nap;
use super::costs::{GUESS, SAMPLES, SHORTEST};
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
    window.costs.each = [100_000; 3];
    let mut taken = 0;
    while window.place(None, Submission::Kernel, 1, WINDOW, 0) == Place::Free {
        window.submit(Submission::Kernel, 1, 0);
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
    window.costs.each = [2_000_000; 3];
    assert_eq!(window.place(None, Submission::Kernel, 1, WINDOW, 0), Place::Free);
    window.submit(Submission::Kernel, 1, 0);
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
    window.submit(Submission::Kernel, 1, 0);
    assert!(matches!(place(&mut window), Place::Taken(_)));
    window.costs.learn(load(1), 10_000, 10_000);
    assert_eq!(place(&mut window), Place::Free);
}

#[test]
fn one_that_may_be_as_long_as_the_longest_is_not_nearly_done() {
    const LONG: u64 = 10_000_000;
    let mut window = Window::new();
    window.costs.learn(load(1), LONG / 10, LONG / 10);
    window.longest.learn(LONG);
    for _ in 0..SAMPLES {
        window.longest.learn(LONG / 10);
    }
    window.in_flight.push_back(Batch {
        mark: Context::by_hand().mark_by_hand(Sign::Word { index: 1, value: 1 }),
        load: load(1),
        at: 0,
        marked_at: 0,
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
        window.costs.learn(load(1), 1_000_000, 1_000_000);
        window.looked_at = 10_000_000;
    }
    window.disturb(WINDOW, 9_000_000 - 4 * WINDOW);
    window.account(load(1), 5_000_000, true, 10_000_000);
    undisturbed.account(load(1), 5_000_000, true, 10_000_000);
    assert_eq!((window.costs.each[0], window.longest()), (1_000_000, 0));
    assert!(undisturbed.costs.each[0] > 2_000_000 && undisturbed.longest() == 5_000_000);
    // What begins afterwards has it alone.
    window.looked_at = 15_000_000;
    window.account(load(1), 10_000_000, true, 15_000_000);
    assert_eq!(window.longest(), 5_000_000);
}

#[test]
fn who_always_shares_the_device_is_found_to_be_long_by_the_quickest() {
    const LONG: u64 = 1_000_000;
    let mut window = Window::new();
    window.disturb(WINDOW, u64::MAX / 2);
    for kernel in 1..=u64::from(SAMPLES) {
        let end = kernel * 4 * LONG;
        window.looked_at = end - 30_000;
        window.account(load(1), end - LONG * (1 + kernel % 3), true, end);
    }
    assert_eq!(window.costs.each[0], LONG);
    let cost = window.submit(Submission::Kernel, 0, 0);
    assert_eq!(cost, LONG);
}

#[test]
fn who_shares_the_device_with_work_of_all_lengths_learns_nothing_from_it() {
    const LONG: u64 = 1_000_000;
    let mut window = Window::new();
    window.costs.learn(load(1), 5 * LONG, 5 * LONG);
    window.disturb(WINDOW, u64::MAX / 2);
    for kernel in 1..=u64::from(4 * SAMPLES) {
        let end = kernel * 20 * LONG;
        window.looked_at = end - 30_000;
        window.account(load(1), end - LONG * (1 + kernel * 7 % 10), true, end);
    }
    assert_eq!(window.costs.each[0], 5 * LONG);
}

#[test]
fn what_runs_for_longer_than_most_may_be_as_long_as_any() {
    const LONG: u64 = 10_000_000;
    let mut window = Window::new();
    window.costs.learn(load(1), LONG / 4, LONG / 4);
    window.longest.learn(LONG);
    window.in_flight.push_back(Batch {
        mark: Context::by_hand().mark_by_hand(Sign::Word { index: 1, value: 1 }),
        load: load(1),
        at: 0,
        marked_at: 0,
    });
    assert_eq!(window.likely(LONG / 2), LONG / 4, "half of what it may take yet");
    assert_eq!(window.likely(2 * LONG), 0);
}

#[test]
fn who_waits_for_what_does_not_end_looks_less_and_less_often() {
    const LONG: u64 = 1_000_000;
    let (mut window, context) = (Window::new(), Context::by_hand());
    window.context = context.id();
    window.costs.each[0] = LONG;
    window.in_flight.push_back(Batch {
        mark: context.mark_by_hand(Sign::Word { index: 1, value: 1 }),
        load: load(1),
        at: 0,
        marked_at: 0,
    });
    let mut next = |now| window.next_end(Some(&context), 0, now);
    assert_eq!(next(LONG / 4), Some(LONG * 3 / 4 + LOOK));
    assert_eq!(next(81 * LONG), Some(10 * LONG + LOOK));
    assert_eq!(window.next_end(None, 0, LONG), None);
}

#[test]
fn who_has_the_device_alone_between_turns_learns_from_that() {
    const LONG: u64 = 1_000_000;
    let mut window = Window::new();
    for kernel in 1..=u64::from(4 * SAMPLES) {
        // The first of each turn runs beside what another has queued.
        let is_beside = kernel % 2 == 0;
        let end = kernel * 4 * LONG;
        window.looked_at = end - 30_000;
        window.disturbed_until = if is_beside { end } else { 0 };
        window.account(load(1), end - if is_beside { 2 * LONG } else { LONG }, true, end);
    }
    assert_eq!(window.costs.each[0], LONG);
}

#[test]
fn a_mark_that_is_set_late_makes_nothing_short_and_what_ended_before_nothing_long() {
    const LONG: u64 = 1_000_000;
    for (marked_at, passed_by) in [(900_000, 1_000_000), (50_000_000, 50_100_000)] {
        let (mut window, context) = (Window::new(), Context::by_hand());
        window.costs.each[0] = LONG;
        let sign = Sign::Word { index: 1, value: 1 };
        window.in_flight.push_back(Batch {
            mark: context.mark_by_hand(sign),
            load: load(1),
            at: 0,
            marked_at,
        });
        window.look(marked_at);
        context.pass(sign);
        window.look(passed_by);
        assert!(window.in_flight.is_empty());
        assert_eq!(
            (window.costs.each[0], window.costs.is_known[0]),
            (LONG, true),
            "{marked_at}"
        );
    }
}

#[test]
fn costs_follow_what_is_seen() {
    let mut window = Window::new();
    window.costs.learn(load(10), 1_000_000, 1_000_000);
    assert_eq!(
        window.costs.each,
        [100_000, GUESS, GUESS],
        "that is all that is known"
    );
    window.costs.learn(load(10), 2_200_000, 2_200_000);
    assert_eq!(window.costs.each[0], 160_000);
    window.costs.learn(load(10), 0, 9_000_000);
    assert_eq!(window.costs.each[0], 160_000, "nobody looked in between");
    for _ in 0..20 {
        window.costs.learn(load(10), 0, 1_000);
    }
    assert_eq!(window.costs.each[0], SHORTEST);
}

#[test]
fn who_was_short_is_found_to_be_long_though_few_look() {
    let mut window = Window::new();
    window.costs.each = [SHORTEST; 3];
    // Eight of a millisecond each are queued, and looked at when the next comes; marked a quarter of a window apart.
    for _ in 0..30 {
        let count = u32::try_from(WINDOW / 4 / window.costs.each[0]).unwrap() + 1;
        let left = u64::from(count.min(8));
        window
            .costs
            .learn(load(count), (left - 1) * 1_000_000, left * 1_000_000 + 500_000);
    }
    assert!(
        window.costs.each[0] > WINDOW / 4,
        "each is marked from now on: {:?}",
        window.costs.each
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
        window.account(load(1), end - LONG - 250_000, true, end + 690_000);
        assert!(window.passed_at <= end + 690_000);
    }
    let cost = window.costs.each[0];
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
    fn run(&mut self, window: &mut Window, kernels: impl Iterator<Item = u64>, late: impl Fn(u32) -> u64) {
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
                marked_at: self.now,
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
            window.costs.each[0] = cost;
            window.longest.learn(LONG);
            let mut bench = Bench::new();
            // Learns first.
            bench.run(&mut window, kernels.into_iter().cycle().take(20), late);
            bench.most = 0;
            bench.run(&mut window, kernels.into_iter().cycle().take(400), late);
            let (most, idle) = (bench.most, bench.idle * 100 / bench.now);
            let bound = WINDOW * 3 / 4 + LONG / 20;
            let costs = &window.costs;
            assert!(most <= bound, "{cost}: {most} were left; {costs:?}");
            assert!(idle <= 3, "{cost}: {idle} % idle; {costs:?}");
        }
    }
}

#[test]
fn a_sort_is_learnt_of_by_itself() {
    let mut window = Window::new();
    window
        .costs
        .learn(Load { counts: [0, 1, 0] }, 50_000_000, 50_000_000);
    assert_eq!((window.costs.each[0], window.costs.each[2]), (GUESS, GUESS));
    assert_eq!(window.costs.each[1], 50_000_000);
}

#[test]
fn a_batch_is_half_a_window() {
    let mut window = Window::new();
    window.costs.each = [10_000, 10_000_000, 1];
    assert_eq!(window.batch(Submission::Kernel, WINDOW), 25);
    assert_eq!(window.batch(Submission::Graph, WINDOW), 1);
    assert_eq!(window.batch(Submission::Copy, WINDOW), 1024);
}
