mod bench;

use gcgroup_abi::Submission;

use super::super::marker::Marker;
use super::costs::{GUESS, SAMPLES, SHORTEST};
use super::gap::STALE;
use super::*;

const WINDOW: u64 = 500_000;

fn load(count: u32) -> Load {
    Load {
        counts: [count, 0, 0],
        ..Load::default()
    }
}

#[test]
fn admission_is_room_until_window_is_full() {
    let mut window = Window::default();
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
    let mut window = Window::default();
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
    let mut window = Window::default();
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
    let mut window = Window::default();
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
    let (mut window, mut undisturbed) = (Window::default(), Window::default());
    for window in [&mut window, &mut undisturbed] {
        window.costs.learn(load(1), 1_000_000, 1_000_000);
        window.looked_at = 10_000_000;
    }
    window.disturb(WINDOW, 9_000_000 - 4 * WINDOW);
    window.account(load(1), [5_000_000; 2], true, 10_000_000);
    undisturbed.account(load(1), [5_000_000; 2], true, 10_000_000);
    assert_eq!((window.costs.each[0], window.longest()), (1_000_000, Some(0)));
    assert!(undisturbed.costs.each[0] > 2_000_000 && undisturbed.longest() == Some(5_000_000));
    // What begins afterwards has the device alone.
    window.looked_at = 15_000_000;
    window.account(load(1), [10_000_000; 2], true, 15_000_000);
    assert_eq!(window.longest(), Some(5_000_000));
}

#[test]
fn always_shared_device_learns_from_the_quickest() {
    const LONG: u64 = 1_000_000;
    let mut window = Window::default();
    window.disturb(WINDOW, u64::MAX / 2);
    for kernel in 1..=u64::from(SAMPLES) {
        let end = kernel * 4 * LONG;
        window.looked_at = end - 30_000;
        window.account(load(1), [end - LONG * (1 + kernel % 3); 2], true, end);
    }
    assert_eq!(window.costs.each[0], LONG);
    let cost = window.submit(Submission::Kernel, 0, 0);
    assert_eq!(cost, LONG);
}

/// Ends are seen up to [`FRESH`] late, which makes the next batch look shorter than it was.
#[test]
fn late_polls_do_not_lower_costs_on_a_shared_device() {
    const LONG: u64 = 100_000;
    let mut window = Window::default();
    let shape = Shape::new(Submission::Kernel, &[1]);
    window.costs.shapes.try_out(shape.key);
    window.costs.shapes.learn(shape.key, LONG);
    window.disturb(WINDOW, u64::MAX / 2);
    let late = [10_000, 90_000, 30_000, 70_000, 50_000];
    for (batch, late) in (0..100).zip(late.into_iter().cycle()) {
        let mut passed = Load::default();
        passed.add(shape, Some(LONG));
        passed.add(shape, Some(LONG));
        let end = 2 * LONG * (batch + 1);
        window.looked_at = end - (FRESH - late) / 2;
        window.account(passed, [0; 2], true, end + late);
    }
    assert_eq!(window.costs.of(shape), LONG);
}

#[test]
fn shared_device_with_mixed_lengths_teaches_nothing() {
    const LONG: u64 = 1_000_000;
    let mut window = Window::default();
    window.costs.learn(load(1), 5 * LONG, 5 * LONG);
    window.disturb(WINDOW, u64::MAX / 2);
    for kernel in 1..=u64::from(4 * SAMPLES) {
        let end = kernel * 20 * LONG;
        window.looked_at = end - 30_000;
        window.account(load(1), [end - LONG * (1 + kernel * 7 % 10); 2], true, end);
    }
    assert_eq!(window.costs.each[0], 5 * LONG);
}

#[test]
fn likely_assumes_late_submission_may_be_the_longest() {
    const LONG: u64 = 10_000_000;
    let mut window = Window::default();
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
    let (mut window, context) = (Window::default(), Context::by_hand());
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
    let mut window = Window::default();
    for kernel in 1..=u64::from(4 * SAMPLES) {
        // The first of each turn shares the device with another process's queue.
        let is_beside = kernel % 2 == 0;
        let end = kernel * 4 * LONG;
        window.looked_at = end - 30_000;
        window.disturbed_until = if is_beside { end } else { 0 };
        window.account(
            load(1),
            [end - if is_beside { 2 * LONG } else { LONG }; 2],
            true,
            end,
        );
    }
    assert_eq!(window.costs.each[0], LONG);
}

#[test]
fn late_marker_changes_no_cost() {
    const LONG: u64 = 1_000_000;
    for (marked_at, passed_by) in [(900_000, 1_000_000), (50_000_000, 50_100_000)] {
        let (mut window, context) = (Window::default(), Context::by_hand());
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
    let mut window = Window::default();
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
    let mut window = Window::default();
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
    let mut window = Window::default();
    // The device is never idle: one runs, and the next is queued shortly before it ends, after a nap of
    // nearly as long. So each ends while the thread sleeps.
    for kernel in 2..100_u64 {
        let end = kernel * LONG;
        window.looked_at = end - 250_000;
        window.account(load(1), [end - LONG - 250_000; 2], true, end + 690_000);
        assert!(window.passed_at <= end + 690_000);
    }
    let cost = window.costs.each[0];
    assert!((LONG * 7 / 10..LONG * 11 / 10).contains(&cost), "{cost}");
}

#[test]
fn costs_of_kinds_are_independent() {
    let mut window = Window::default();
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
    let mut window = Window::default();
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
    window.account(load, [began; 2], true, began + took);
}

#[test]
fn cost_of_each_shape_is_known_from_its_second_launch() {
    let mut window = Window::default();
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
fn slow_markers_are_set_less_often() {
    let mut window = Window::default();
    assert_eq!(window.interval(WINDOW), 125_000);
    for (marking, interval) in [(1_000, 125_000), (2_000, 200_000), (900_000, 250_000)] {
        window.marking = marking;
        assert_eq!(window.interval(WINDOW), interval);
    }
}

#[test]
fn no_marker_keeps_an_overlapping_kernel_from_its_predecessor() {
    let window = Window::default();
    let shape = Shape::new(Submission::Kernel, &[1]);
    assert_eq!(window.least(shape, 7), [7, 7]);
    assert_eq!(window.least(shape.overlapping(true), 7), [u64::MAX, 7]);
}

#[test]
fn shared_cost_is_the_gpu_time_charged_until_the_next_launch() {
    let mut window = Window::default();
    let shape = Shape::new(Submission::Kernel, &[1]);
    window.set_charged(7_000_000);
    window.disturb(WINDOW, 1_000_000_000);
    window.submit(shape, 1, 0);
    let (_, load, _) = window.unmarked.pop().unwrap();
    window.looked_at = 199_990_000;
    window.account(load, [0; 2], true, 200_000_000);
    assert!(
        window.costs.shapes.is_new(shape.key),
        "not all of it is charged yet"
    );
    window.set_charged(107_000_000);
    assert_eq!(window.submit(shape, 1, 300_000_000), 100_000_000);
}

#[test]
fn new_shape_is_marked_alone_a_few_times_only() {
    let mut window = Window::default();
    let shape = Shape::new(Submission::Kernel, &[1]);
    let mut alone = 0;
    for _ in 0..100 {
        window.submit(shape, 1, 0);
        alone += u32::from(window.isolates);
        window.unmarked.clear();
    }
    assert_eq!(alone, 4);
}

#[test]
fn time_in_driver_call_is_not_learned() {
    const LONG: u64 = 1_000_000;
    let mut window = Window::default();
    let shape = Shape::new(Submission::Kernel, &[1]);
    window.submit(shape, 1, 0);
    let (_, load, at) = window.unmarked.pop().unwrap();
    // The driver loads the function for 8 ms. The next call sets the marker and finds that it has not passed.
    let context = Context::by_hand();
    let marker = Marker::Word { index: 1, value: 1 };
    window.in_flight.push_back(Batch {
        marker: context.mark_by_hand(marker),
        load,
        at,
        marked_at: 8 * LONG,
    });
    window.look(9 * LONG - 50_000);
    context.pass(marker);
    window.look(9 * LONG);
    assert!(window.costs.shapes.is_new(shape.key), "the next one tells");
    assert!(window.costs.each[0] <= LONG, "{:?}", window.costs);
    assert!(window.longest.get() <= LONG + LATE);
    run_alone(&mut window, shape, 10 * LONG, LONG);
    assert_eq!(window.costs.of(shape), LONG);
}

#[test]
fn cost_is_lowered_if_several_in_a_row_agree() {
    let mut shapes = super::shapes::Shapes::default();
    let cost = |shapes: &super::shapes::Shapes| shapes.known(1).map(|known| (known.nsec, known.longest));
    shapes.try_out(1);
    shapes.learn(1, 9_000);
    shapes.learn(1, 1_000);
    assert_eq!(
        cost(&shapes),
        Some((1_000, 1_000)),
        "the first may have been loaded"
    );
    shapes.learn(1, 9_000);
    assert_eq!(cost(&shapes), Some((5_000, 9_000)));
    for streak in [6, 7, 8] {
        // One ends early, so that the next ones are polled earlier.
        for most in std::iter::once(4_900).chain(std::iter::repeat_n(2_000, streak)) {
            assert_eq!(cost(&shapes), Some((5_000, 9_000)), "{streak}");
            shapes.lower(1, most);
        }
        if streak < 8 {
            shapes.lower(1, 5_000);
        }
    }
    assert_eq!(cost(&shapes), Some((2_000, 9_000 - 9_000 / 64 * 8)));
}

#[test]
fn submission_is_admitted_if_it_ends_within_the_gap() {
    const MSEC: u64 = 1_000_000;
    let admits = |cost: u64, now: u64| {
        let mut window = Window::default();
        window.costs.each = [cost; 3];
        window.set_gap(3 * MSEC, MSEC);
        window.set_gap(3 * MSEC, now);
        window.admission(None, Submission::Kernel, 1, WINDOW, now) == Admission::Room
    };
    assert!(admits(MSEC, MSEC + MSEC / 2));
    assert!(!admits(MSEC, 2 * MSEC));
    assert!(!admits(1000, 3 * MSEC), "the gap has passed");
    assert!(admits(9 * MSEC, 2 * MSEC), "it fits no gap");
    assert!(!admits(9 * MSEC, 2 * MSEC + 1));
    assert!(admits(MSEC, 3 * MSEC + STALE), "the daemon is gone");
}
