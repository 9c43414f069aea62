//! Tests of the estimate of GPU time.

use super::super::timeline::Run;
use super::*;
use crate::program::slot::Charge;

fn seen(kernels: u64, passed: u64, progress: Progress) -> Seen {
    Seen {
        sampling: 0,
        entered: [kernels, 0, 0],
        charged: Default::default(),
        passed,
        progress,
        is_shared: false,
    }
}

fn counting() -> Estimate {
    Estimate {
        counts: true,
        ..Estimate::default()
    }
}

fn of_kernel(took: u64) -> Run {
    Run {
        what: Submission::Kernel,
        key: 1,
        took,
        alone: took,
        unsure: 0,
        is_apart: true,
        charge: Charge::Looks,
    }
}

fn learn(costs: &mut Costs, took: u64) {
    costs.learn(&of_kernel(took), 0);
}

#[test]
fn sampled_submissions_count_exactly_and_others_as_the_mean() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    learn(&mut costs, 1000);
    assert_eq!(estimate.advance(&seen(1, 50, Progress::Some), &costs), 1000);
    assert_eq!(estimate.advance(&seen(11, 50, Progress::Some), &costs), 10_000);
    learn(&mut costs, 3000);
    assert_eq!(
        estimate.advance(&seen(11, 50, Progress::Idle), &costs),
        1000,
        "3000 in place of the new mean"
    );
}

#[test]
fn earlier_work_counts_until_markers_have_passed() {
    for unseen in [0, 1, 3] {
        let (mut estimate, costs) = (Estimate::default(), Costs::default());
        for _ in 0..=unseen {
            assert_eq!(estimate.advance(&seen(50, 0, Progress::Unseen), &costs), 0);
        }
        assert_eq!(estimate.advance(&seen(50, 700, Progress::None), &costs), 700);
        assert_eq!(estimate.advance(&seen(50, 300, Progress::None), &costs), 300);
        assert_eq!(estimate.advance(&seen(50, 100, Progress::Idle), &costs), 0);
    }
}

#[test]
fn time_counts_until_a_submission_has_been_sampled() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    assert_eq!(estimate.advance(&seen(1, 700, Progress::None), &costs), 700);
    assert_eq!(estimate.advance(&seen(1, 300, Progress::None), &costs), 300);
    assert_eq!(estimate.advance(&seen(1, 100, Progress::Idle), &costs), 0);
    learn(&mut costs, 5000);
    assert_eq!(
        estimate.advance(&seen(2, 10, Progress::Some), &costs),
        5000,
        "the first one took at most the 1000 ns for which there was work"
    );
}

#[test]
fn time_before_the_first_sample_is_subtracted_from_later_work() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    let mut total = 0;
    // A kernel of 10 us waits for another process's slice of 2 ms, twice.
    for kernels in 1..=2 {
        let look = |passed, progress| Seen {
            is_shared: true,
            ..seen(kernels, passed, progress)
        };
        total += estimate.advance(&look(1_500_000, Progress::None), &costs);
        total += estimate.advance(&look(500_000, Progress::Some), &costs);
        total += estimate.advance(&look(100, Progress::Idle), &costs);
    }
    assert_eq!(total, 4_000_000);
    for kernels in 3..=1000 {
        learn(&mut costs, 10_000);
        total += estimate.advance(&seen(kernels, 300_000, Progress::Idle), &costs);
    }
    assert_eq!(total, 10_000_000);
}

#[test]
fn long_submission_counts_while_it_runs_beyond_its_price() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    learn(&mut costs, 1000);
    estimate.advance(&seen(1, 0, Progress::Idle), &costs);
    assert_eq!(estimate.advance(&seen(2, 900, Progress::None), &costs), 1000);
    assert_eq!(estimate.advance(&seen(2, 900, Progress::None), &costs), 800);
    let shared = Seen {
        is_shared: true,
        ..seen(2, 900, Progress::None)
    };
    assert_eq!(estimate.advance(&shared, &costs), 0, "others may run");
}

/// The host is loaded, or a process that is not governed has the GPU.
#[test]
fn markers_that_pass_late_count_once_where_all_is_sampled() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    learn(&mut costs, 1000);
    let mut total = estimate.advance(&seen(1, 0, Progress::Idle), &costs);
    for kernels in 2..=100 {
        let look = |sampling, progress| Seen {
            sampling,
            ..seen(kernels, 5000, progress)
        };
        total += estimate.advance(&look(1, Progress::None), &costs);
        total += estimate.advance(&look(1, Progress::None), &costs);
        learn(&mut costs, 1000);
        // The next one is submitted before or after the look.
        let is_early = kernels % 2 == 0 && kernels < 100;
        let next = seen(kernels + u64::from(is_early), 5000, Progress::Some);
        let sampling = usize::from(is_early);
        total += estimate.advance(&Seen { sampling, ..next }, &costs);
    }
    assert_eq!(total, 109_000, "the last one was seen to run for 10 us");
}

#[test]
fn markers_that_pass_late_show_submissions_that_are_not_sampled() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    learn(&mut costs, 1000);
    estimate.advance(&seen(1, 0, Progress::Idle), &costs);
    // The second is sampled, the third is not.
    let both = |progress| Seen {
        sampling: 1,
        ..seen(3, 5000, progress)
    };
    assert_eq!(estimate.advance(&both(Progress::None), &costs), 5000);
    learn(&mut costs, 1000);
    assert_eq!(estimate.advance(&seen(3, 5000, Progress::None), &costs), 5000);
    assert_eq!(estimate.advance(&seen(3, 100, Progress::Idle), &costs), 0);
    learn(&mut costs, 1000);
    assert_eq!(estimate.advance(&seen(4, 100, Progress::Idle), &costs), 1000);
}

#[test]
fn submissions_from_before_counting_are_charged_for_their_time_alone() {
    for has_learned in [false, true] {
        let (mut estimate, mut costs) = (Estimate::default(), Costs::default());
        if has_learned {
            learn(&mut costs, 1000);
        }
        for kernels in [50, 90] {
            let look = |passed, progress| seen(kernels, passed, progress);
            assert_eq!(estimate.advance(&look(0, Progress::Some), &costs), 0);
            assert_eq!(estimate.advance(&look(700, Progress::None), &costs), 700);
            assert_eq!(estimate.advance(&look(5, Progress::Idle), &costs), 0);
            assert_eq!(estimate.advance(&look(700, Progress::None), &costs), 0);
            estimate.pause();
        }
    }
}

/// A program of few kernels of different lengths, the first sample of which is of a short one.
#[test]
fn time_alone_before_the_first_sample_counts_beyond_a_low_mean() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    let queued = |passed, progress| Seen {
        sampling: 1,
        ..seen(8, passed, progress)
    };
    let mut total = estimate.advance(&queued(0, Progress::Unseen), &costs);
    for _ in 0..7 {
        total += estimate.advance(&queued(1000, Progress::None), &costs);
    }
    learn(&mut costs, 10);
    total += estimate.advance(&seen(8, 10, Progress::Some), &costs);
    assert_eq!(total, 7000);
    total += estimate.advance(&seen(8, 10, Progress::Idle), &costs);
    assert_eq!(total, 7000);
    assert_eq!(estimate.advance(&seen(9, 10, Progress::Some), &costs), 10);
}

#[test]
fn earlier_work_in_front_of_sampled_work_counts_beside_it() {
    for has_learned in [false, true] {
        let (mut estimate, mut costs) = (Estimate::default(), Costs::default());
        if has_learned {
            learn(&mut costs, 1000);
        }
        // Eight are queued before counting begins; for each that ends another one is submitted.
        let mut total = estimate.advance(&seen(8, 0, Progress::Unseen), &costs);
        for kernels in 9..=16 {
            let sampling = usize::try_from(kernels - 8).unwrap();
            let queued = seen(kernels, 1000, Progress::None);
            total += estimate.advance(&Seen { sampling, ..queued }, &costs);
        }
        for sampling in (0..8).rev() {
            learn(&mut costs, 1000);
            let progress = if sampling == 0 {
                Progress::Idle
            } else {
                Progress::Some
            };
            let ended = seen(16, 1000, progress);
            total += estimate.advance(&Seen { sampling, ..ended }, &costs);
        }
        assert_eq!(total, 16_000, "{has_learned}");
    }
}

#[test]
fn time_of_earlier_work_stays_charged_beside_the_first_sample() {
    let (mut estimate, mut costs) = (Estimate::default(), Costs::default());
    estimate.advance(&seen(1, 0, Progress::Some), &costs);
    assert_eq!(estimate.advance(&seen(1, 700, Progress::None), &costs), 700);
    estimate.advance(&seen(2, 5, Progress::Some), &costs);
    learn(&mut costs, 500);
    let rest = estimate.advance(&seen(2, 500, Progress::Idle), &costs);
    assert!((495..=505).contains(&rest), "{rest}");
}

#[test]
fn submission_that_its_thread_takes_over_is_subtracted_from_later_work() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    learn(&mut costs, 1000);
    let mut look = |kernels| estimate.advance(&seen(kernels, 0, Progress::Some), &costs);
    assert_eq!([1, 3, 2, 3, 4].map(&mut look), [1000, 2000, 0, 0, 1000]);
}

#[test]
fn submission_that_runs_longer_than_its_thread_has_charged_counts_once() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    learn(&mut costs, 1000);
    estimate.advance(&seen(1, 0, Progress::Idle), &costs);
    let look = |sampling, passed, progress| Seen {
        sampling,
        charged: ([1, 0, 0], 1000),
        ..seen(1, passed, progress)
    };
    assert_eq!(estimate.advance(&look(1, 600, Progress::None), &costs), 0);
    assert_eq!(estimate.advance(&look(1, 5000, Progress::None), &costs), 4600);
    let run = Run {
        charge: Charge::Known(1000),
        ..of_kernel(6000)
    };
    costs.learn(&run, 0);
    assert_eq!(estimate.advance(&look(0, 100, Progress::Idle), &costs), 400);
    let next = Seen {
        charged: ([2, 0, 0], 2000),
        ..seen(1, 3000, Progress::None)
    };
    assert_eq!(estimate.advance(&next, &costs), 2000, "one that is not sampled");
}

#[test]
fn launches_that_become_part_of_a_graph_are_priced() {
    let (mut estimate, mut costs) = (Estimate::default(), Costs::default());
    let look = |entered, progress| Seen {
        entered,
        ..seen(0, 700, progress)
    };
    estimate.advance(&look([1, 0, 0], Progress::Unseen), &costs);
    let run = Run {
        what: Submission::Graph,
        ..of_kernel(1000)
    };
    costs.learn(&run, 0);
    estimate.advance(&look([0, 1, 0], Progress::Some), &costs);
    estimate.advance(&look([0, 1, 0], Progress::Idle), &costs);
    assert_eq!(estimate.advance(&look([0, 2, 0], Progress::Some), &costs), 1000);
    estimate.advance(&look([0, 2, 0], Progress::Idle), &costs);
    assert_eq!(estimate.advance(&look([0, 3, 0], Progress::Some), &costs), 1000);
}

#[test]
fn what_a_thread_has_charged_too_much_is_subtracted_at_once() {
    let (mut estimate, mut costs) = (counting(), Costs::default());
    learn(&mut costs, 1000);
    estimate.advance(&seen(1, 0, Progress::Idle), &costs);
    let run = Run {
        charge: Charge::Known(50_000),
        ..of_kernel(1000)
    };
    costs.learn(&run, 0);
    let look = |count, nsec, passed, progress| Seen {
        charged: ([count, 0, 0], nsec),
        ..seen(1, passed, progress)
    };
    assert_eq!(
        estimate.advance(&look(1, 50_000, 10, Progress::Idle), &costs),
        -49_000
    );
    let next = look(2, 51_000, 30_000, Progress::None);
    assert_eq!(estimate.advance(&next, &costs), 29_000);
}
