//! A thread and a device without a clock: how long the device is idle, and how much is queued.

use super::*;
use crate::compute::wait::nap;

/// A thread that submits one kernel after another as soon as there is room, and a device that runs nothing
/// else.
#[derive(Debug)]
struct Bench {
    context: Arc<Context>,
    shape: Shape,
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
            shape: Submission::Kernel.into(),
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
                match window.admission(None, self.shape, 1, WINDOW, self.now) {
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
            window.submit(self.shape, 1, self.now);
            let (_, load, at) = window.unmarked.pop().unwrap();
            self.now += 3_000;
            window.in_flight.push_back(Batch {
                marker: self.context.mark_by_hand(marker),
                load,
                at,
                marked_at: self.now,
            });
        }
    }
}

#[test]
fn long_submission_is_admitted_just_before_previous_ends() {
    const LONG: u64 = 1_000_000;
    for kernels in [[LONG; 4], [LONG, LONG * 21 / 20, LONG * 19 / 20, LONG]] {
        let late: fn(u32) -> u64 = |asked| 50_000 + u64::from(asked * 7 % 13) * 10_000;
        for cost in [LONG * 8 / 10, LONG * 9 / 10, LONG, LONG * 12 / 10] {
            let mut window = Window::default();
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

/// A bench for kernels of one shape, whose sleeps are too long by 50 to 170 microseconds.
fn run_shape(window: &mut Window, bench: &mut Bench, kernels: impl Iterator<Item = u64>) {
    bench.shape = Shape::new(Submission::Kernel, &[1]);
    bench.run(window, kernels, |asked| {
        50_000 + u64::from(asked * 7 % 13) * 10_000
    });
}

#[test]
fn slow_first_run_is_forgotten_after_a_few() {
    const LONG: u64 = 1_000_000;
    for (slow, runs) in [(1, 8), (2, 40), (3, 40)] {
        let (mut window, mut bench) = (Window::default(), Bench::new());
        run_shape(&mut window, &mut bench, std::iter::repeat_n(9 * LONG, slow));
        run_shape(&mut window, &mut bench, std::iter::repeat_n(LONG, runs));
        let known = window.costs.shapes.known(bench.shape.key).unwrap();
        assert!(
            (LONG * 9 / 10..LONG * 6 / 5).contains(&known.nsec),
            "{slow}: {known:?}"
        );
        (bench.idle, bench.most) = (0, 0);
        let began = bench.now;
        run_shape(&mut window, &mut bench, std::iter::repeat_n(LONG, 100));
        let idle = bench.idle * 100 / (bench.now - began);
        assert!(
            idle <= if slow == 1 { 3 } else { 12 },
            "{slow}: {idle} % idle; {:?}",
            window.costs
        );
        assert!(
            bench.most <= WINDOW * 3 / 4 + LONG / 20,
            "{slow}: {} were left",
            bench.most
        );
    }
}

#[test]
fn alternating_durations_are_not_underestimated() {
    const LONG: u64 = 9_000_000;
    for kernels in [&[LONG, LONG / 9][..], &[LONG, LONG / 9, LONG / 9, LONG / 9]] {
        let (mut window, mut bench) = (Window::default(), Bench::new());
        for kernel in kernels.iter().cycle().take(400) {
            if bench.submitted == 8 {
                // What the durations are like is known from here on.
                bench.most = 0;
            }
            run_shape(&mut window, &mut bench, std::iter::once(*kernel));
            let longest = window
                .costs
                .shapes
                .known(bench.shape.key)
                .map_or(LONG, |known| known.longest);
            assert!(
                longest >= LONG * 4 / 5 || bench.submitted < 8,
                "{longest}: {:?}",
                bench.submitted
            );
        }
        assert!(
            bench.most <= WINDOW * 3 / 4 + LONG / 20,
            "{} were left",
            bench.most
        );
    }
}
