use gcgroup_abi::Submission;

use super::super::marker::Marker;
use super::costs::{GUESS, SAMPLES, SHORTEST};
use super::*;
use crate::compute::wait::nap;

const WINDOW: u64 = 500_000;

fn load(count: u32) -> Load {
    Load {
        counts: [count, 0, 0],
        ..Load::default()
    }
}

#[test]
fn admission_is_room_until_window_is_full() {
    let mut window = Window::new();
    window.costs.each = [100_000; 3];
    let mut taken = 0;
    while window.admission(None, Submission::Kernel, 1, WINDOW, 0) == Admission::Room {
        window.submit(Submission::Kernel, 1, 0);
        taken += 1;
    }
    assert_eq!(taken, 5);
    assert_eq!(
        window.admission(None, Submission::Kernel, 1, WINDOW, 0),
        Admission::Later(100_000)
    );
    window.forget();
    assert_eq!(
        window.admission(None, Submission::Kernel, 1, WINDOW, 0),
        Admission::Room
    );
}

#[test]
fn submission_longer_than_window_waits_for_the_previous() {
    let mut window = Window::new();
    window.costs.each = [2_000_000; 3];
    assert_eq!(
        window.admission(None, Submission::Kernel, 1, WINDOW, 0),
        Admission::Room
    );
    window.submit(Submission::Kernel, 1, 0);
    assert_eq!(
        window.admission(None, Submission::Kernel, 1, WINDOW, 0),
        Admission::Later(1_625_000)
    );
}

#[test]
fn unknown_kind_queues_nothing_behind_the_first() {
    let context = Context::by_hand();
    let mut window = Window::new();
    let admission = |window: &mut Window| window.admission(Some(&context), Submission::Kernel, 1, WINDOW, 0);
    assert_eq!(admission(&mut window), Admission::Room);
    window.submit(Submission::Kernel, 1, 0);
    assert!(matches!(admission(&mut window), Admission::Later(_)));
    window.costs.learn(load(1), 10_000, 10_000);
    assert_eq!(admission(&mut window), Admission::Room);
}

#[test]
fn left_assumes_running_submission_is_the_longest() {
    const LONG: u64 = 10_000_000;
    let mut window = Window::new();
    window.costs.learn(load(1), LONG / 10, LONG / 10);
    window.longest.learn(LONG);
    for _ in 0..SAMPLES {
        window.longest.learn(LONG / 10);
    }
    window.in_flight.push_back(Batch {
        marker: Context::by_hand().mark_by_hand(Marker::Word { index: 1, value: 1 }),
        load: load(1),
        at: 0,
        marked_at: 0,
    });
    let left = |ran| window.left(ran);
    assert!(left(LONG / 10) > WINDOW, "although most are shorter");
    assert!(left(LONG - WINDOW / 2) <= WINDOW / 2);
    assert!(left(LONG + WINDOW) > WINDOW, "longer than any before");
    for _ in 0..SAMPLES {
        window.longest.learn(LONG / 10);
    }
    assert_eq!(window.longest(), Some(LONG / 10), "the long one is too old");
}

#[test]
fn shared_device_does_not_raise_costs() {
    let (mut window, mut undisturbed) = (Window::new(), Window::new());
    for window in [&mut window, &mut undisturbed] {
        window.costs.learn(load(1), 1_000_000, 1_000_000);
        window.looked_at = 10_000_000;
    }
    window.disturb(WINDOW, 9_000_000 - 4 * WINDOW);
    window.account(load(1), 5_000_000, true, 10_000_000);
    undisturbed.account(load(1), 5_000_000, true, 10_000_000);
    assert_eq!((window.costs.each[0], window.longest()), (1_000_000, Some(0)));
    assert!(undisturbed.costs.each[0] > 2_000_000 && undisturbed.longest() == Some(5_000_000));
    // What begins afterwards has the device alone.
    window.looked_at = 15_000_000;
    window.account(load(1), 10_000_000, true, 15_000_000);
    assert_eq!(window.longest(), Some(5_000_000));
}

#[test]
fn always_shared_device_learns_from_the_quickest() {
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
fn shared_device_with_mixed_lengths_teaches_nothing() {
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
fn likely_assumes_late_submission_may_be_the_longest() {
    const LONG: u64 = 10_000_000;
    let mut window = Window::new();
    window.costs.learn(load(1), LONG / 4, LONG / 4);
    window.longest.learn(LONG);
    window.in_flight.push_back(Batch {
        marker: Context::by_hand().mark_by_hand(Marker::Word { index: 1, value: 1 }),
        load: load(1),
        at: 0,
        marked_at: 0,
    });
    assert_eq!(window.likely(LONG / 2), LONG / 4, "half of what may be left");
    assert_eq!(window.likely(2 * LONG), 0);
}

#[test]
fn next_end_of_late_submission_backs_off() {
    const LONG: u64 = 1_000_000;
    let (mut window, context) = (Window::new(), Context::by_hand());
    window.context = context.id();
    window.costs.each[0] = LONG;
    window.in_flight.push_back(Batch {
        marker: context.mark_by_hand(Marker::Word { index: 1, value: 1 }),
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
fn costs_follow_submissions_that_ran_alone() {
    const LONG: u64 = 1_000_000;
    let mut window = Window::new();
    for kernel in 1..=u64::from(4 * SAMPLES) {
        // The first of each turn shares the device with another process's queue.
        let is_beside = kernel % 2 == 0;
        let end = kernel * 4 * LONG;
        window.looked_at = end - 30_000;
        window.disturbed_until = if is_beside { end } else { 0 };
        window.account(load(1), end - if is_beside { 2 * LONG } else { LONG }, true, end);
    }
    assert_eq!(window.costs.each[0], LONG);
}

#[test]
fn late_marker_changes_no_cost() {
    const LONG: u64 = 1_000_000;
    for (marked_at, passed_by) in [(900_000, 1_000_000), (50_000_000, 50_100_000)] {
        let (mut window, context) = (Window::new(), Context::by_hand());
        window.costs.each[0] = LONG;
        let marker = Marker::Word { index: 1, value: 1 };
        window.in_flight.push_back(Batch {
            marker: context.mark_by_hand(marker),
            load: load(1),
            at: 0,
            marked_at,
        });
        window.look(marked_at);
        context.pass(marker);
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
fn costs_follow_measurements() {
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
    assert_eq!(window.costs.each[0], 160_000, "no poll in between");
    for _ in 0..20 {
        window.costs.learn(load(10), 0, 1_000);
    }
    assert_eq!(window.costs.each[0], SHORTEST);
}

#[test]
fn costs_rise_from_shortest_with_few_polls() {
    let mut window = Window::new();
    window.costs.each = [SHORTEST; 3];
    // Eight of a millisecond each are queued and polled when the next comes; markers are a quarter of a
    // window apart.
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
fn sleep_between_submissions_is_not_counted_as_work() {
    const LONG: u64 = 1_000_000;
    let mut window = Window::new();
    // The device is never idle: one runs, and the next is queued shortly before it ends, after a nap of
    // nearly as long. So each ends while the thread sleeps.
    for kernel in 2..100_u64 {
        let end = kernel * LONG;
        window.looked_at = end - 250_000;
        window.account(load(1), end - LONG - 250_000, true, end + 690_000);
        assert!(window.passed_at <= end + 690_000);
    }
    let cost = window.costs.each[0];
    assert!((LONG * 7 / 10..LONG * 11 / 10).contains(&cost), "{cost}");
}

/// A thread that submits one kernel after another as soon as there is room, and a device that runs nothing
/// else.
#[derive(Debug)]
struct Bench {
    context: Arc<Context>,
    submitted: u32,
    now: u64,
    /// End time and marker of each submission.
    ends: VecDeque<(u64, Marker)>,
    /// End time of the last submission.
    free_at: u64,
    idle: u64,
    /// Longest queue at an admission, nanoseconds.
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

    /// Submits kernels of the given lengths; each sleep is too long by `late`.
    fn run(&mut self, window: &mut Window, kernels: impl Iterator<Item = u64>, late: impl Fn(u32) -> u64) {
        for kernel in kernels {
            loop {
                while let Some((_, marker)) = self.ends.pop_front_if(|(end, _)| *end <= self.now) {
                    self.context.pass(marker);
                }
                self.asked += 1;
                match window.admission(None, Submission::Kernel, 1, WINDOW, self.now) {
                    Admission::Room => break,
                    Admission::Later(left) => self.now += nap(left) + late(self.asked),
                }
            }
            self.most = self.most.max(self.free_at.saturating_sub(self.now));
            self.idle += self.now.saturating_sub(self.free_at);
            self.free_at = self.free_at.max(self.now) + kernel;
            self.submitted += 1;
            let marker = Marker::Word {
                index: self.submitted as usize % 64,
                value: self.submitted,
            };
            self.ends.push_back((self.free_at, marker));
            window.in_flight.push_back(Batch {
                marker: self.context.mark_by_hand(marker),
                load: load(1),
                at: self.now,
                marked_at: self.now,
            });
            self.now += 3_000;
        }
    }
}

#[test]
fn long_submission_is_admitted_just_before_previous_ends() {
    const LONG: u64 = 1_000_000;
    for kernels in [[LONG; 4], [LONG, LONG * 21 / 20, LONG * 19 / 20, LONG]] {
        let late: fn(u32) -> u64 = |asked| 50_000 + u64::from(asked * 7 % 13) * 10_000;
        for cost in [LONG * 8 / 10, LONG * 9 / 10, LONG, LONG * 12 / 10] {
            let mut window = Window::new();
            window.costs.each[0] = cost;
            window.longest.learn(LONG);
            let mut bench = Bench::new();
            // Learns the costs first.
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
fn costs_of_kinds_are_independent() {
    let mut window = Window::new();
    window.costs.learn(
        Load {
            counts: [0, 1, 0],
            ..Load::default()
        },
        50_000_000,
        50_000_000,
    );
    assert_eq!((window.costs.each[0], window.costs.each[2]), (GUESS, GUESS));
    assert_eq!(window.costs.each[1], 50_000_000);
}

#[test]
fn batch_fills_half_a_window() {
    let mut window = Window::new();
    window.costs.each = [10_000, 10_000_000, 1];
    assert_eq!(window.batch(Submission::Kernel, WINDOW), 25);
    assert_eq!(window.batch(Submission::Graph, WINDOW), 1);
    assert_eq!(window.batch(Submission::Copy, WINDOW), 1024);
}

/// Submits one kernel of a shape alone, which ends after `took` nanoseconds, and polls exactly then.
fn run_alone(window: &mut Window, shape: Shape, began: u64, took: u64) {
    window.submit(shape, 1, began);
    let (_, load, _) = window.unmarked.pop().unwrap();
    window.looked_at = began + took - 10_000;
    window.account(load, began, true, began + took);
}

#[test]
fn cost_of_each_shape_is_known_from_its_second_launch() {
    let mut window = Window::new();
    let shape = |grid| Shape::new(Submission::Kernel, &[0x1000, grid]);
    let graph = Shape::new(Submission::Graph, &[0x1000, 1]);
    for (at, (shape, took)) in [(shape(1), 50_000), (shape(2), 100_000_000), (graph, 150_000_000)]
        .into_iter()
        .enumerate()
    {
        assert!(window.costs.shapes.is_new(shape.key));
        run_alone(&mut window, shape, 1_000_000_000 * (at as u64 + 1), took);
        assert!(!window.costs.shapes.is_new(shape.key));
        assert_eq!(window.costs.of(shape), took);
    }
    // A short kernel behind a long one that has run is not taken for a long one.
    window.submit(shape(1), 1, 0);
    assert_eq!(window.left(0), 50_000);
    assert_eq!(window.batch(shape(1), WINDOW), 5);
    assert_eq!(window.batch(shape(2), WINDOW), 1);
}

#[test]
fn shared_cost_is_the_gpu_time_charged_until_the_next_launch() {
    let mut window = Window::new();
    let shape = Shape::new(Submission::Kernel, &[1]);
    window.set_charged(7_000_000);
    window.disturb(WINDOW, 1_000_000_000);
    window.submit(shape, 1, 0);
    let (_, load, _) = window.unmarked.pop().unwrap();
    window.looked_at = 199_990_000;
    window.account(load, 0, true, 200_000_000);
    assert!(
        window.costs.shapes.is_new(shape.key),
        "not all of it is charged yet"
    );
    window.set_charged(107_000_000);
    assert_eq!(window.submit(shape, 1, 300_000_000), 100_000_000);
}

#[test]
fn new_shape_is_marked_alone_a_few_times_only() {
    let mut window = Window::new();
    let shape = Shape::new(Submission::Kernel, &[1]);
    let mut alone = 0;
    for _ in 0..100 {
        window.submit(shape, 1, 0);
        alone += u32::from(window.isolates);
        window.unmarked.clear();
    }
    assert_eq!(alone, 4);
}
