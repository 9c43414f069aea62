use super::*;
use crate::program::slot::Bound;
use crate::shared::block;
use crate::shared::device::LocalDevice;
use gcgroup_abi::{Control, NO_LIMIT, OTHER_DEVICE, Submission};

fn measured() -> (&'static Compute, &'static Control, Bound<'static>) {
    let compute = Compute::of_test(NO_LIMIT);
    let (control, file) = block::of_daemon();
    control.publish();
    compute.adopt(&file);
    control.devices[OTHER_DEVICE].measures_time.store(1, Relaxed);
    let local = LocalDevice::of(0).unwrap();
    let slot = compute
        .program
        .slots
        .of_test(compute.session, local, OTHER_DEVICE);
    (compute, control, slot)
}

fn is_busy(compute: &Compute) -> bool {
    compute.usage().devices[OTHER_DEVICE].busy(u64::MAX).1
}

fn is_armed(compute: &Compute) -> bool {
    compute.program.slots.is_armed(OTHER_DEVICE)
}

/// Steps until the device is idle.
fn settle(measure: &mut Measure, compute: &Compute) {
    while measure.step(compute, &compute.gates()).wake.is_some()
        && !matches!(measure.phases[OTHER_DEVICE], Phase::Armed(_))
    {}
}

#[test]
fn period_begins_with_a_submission_and_ends_after_it() {
    let (compute, _, slot) = measured();
    let mut measure = Measure::new();
    assert!(
        measure.step(compute, &compute.gates()).has_news,
        "the daemon learns that it measures"
    );
    assert!(is_armed(compute) && !is_busy(compute));
    assert_eq!(
        measure.step(compute, &compute.gates()),
        Step::default(),
        "nothing to do while idle"
    );
    for _ in 0..2 {
        slot.enter(Submission::Kernel);
        compute.meters[OTHER_DEVICE].note(compute.session, slot, 7);
        for _ in 0..3 {
            assert!(
                measure.step(compute, &compute.gates()).wake.is_some(),
                "a thread is inside"
            );
            assert!(is_busy(compute));
        }
        assert!(is_armed(compute), "submissions can be sampled");
        slot.uncount(Submission::Kernel);
        settle(&mut measure, compute);
        assert!(is_armed(compute) && !is_busy(compute));
    }
}

#[test]
fn nothing_is_marked_while_a_thread_is_inside() {
    let (compute, _, slot) = measured();
    let mut measure = Measure::new();
    measure.step(compute, &compute.gates());
    slot.enter(Submission::Graph);
    compute.meters[OTHER_DEVICE].note(compute.session, slot, 7);
    for _ in 0..3 {
        measure.step(compute, &compute.gates());
        let phase = &measure.phases[OTHER_DEVICE];
        assert!(matches!(phase, Phase::Busy(looks) if looks.round.is_none()));
    }
    slot.exit(Submission::Graph);
    settle(&mut measure, compute);
    assert!(!is_busy(compute));
}

#[test]
fn period_that_nobody_has_seen_begin_ends_with_measuring() {
    let (compute, control, slot) = measured();
    let mut measure = Measure::new();
    measure.step(compute, &compute.gates());
    compute.meters[OTHER_DEVICE].note(compute.session, slot, 7);
    control.devices[OTHER_DEVICE].measures_time.store(0, Relaxed);
    measure.step(compute, &compute.gates());
    assert!(!is_busy(compute) && !is_armed(compute));
}

#[test]
fn device_that_cannot_be_marked_is_left_for_a_while() {
    let (compute, _, _) = measured();
    let mut measure = Measure::new();
    for _ in 0..MOST_FAILED {
        assert_eq!(compute.usage().measures_time.load(Relaxed), 0);
        measure.count(OTHER_DEVICE, true);
    }
    assert!(!measure.step(compute, &compute.gates()).has_news && !is_armed(compute));
    measure.failures[OTHER_DEVICE].until = 1;
    assert!(measure.step(compute, &compute.gates()).has_news && is_armed(compute));
}

#[test]
fn earlier_submissions_are_looked_for() {
    let (compute, _, slot) = measured();
    slot.enter(Submission::Graph);
    let mut measure = Measure::new();
    assert!(measure.step(compute, &compute.gates()).wake.is_some());
    assert!(is_busy(compute));
    slot.uncount(Submission::Graph);
    settle(&mut measure, compute);
    assert!(is_armed(compute) && !is_busy(compute));
}

#[test]
fn other_gates_and_the_daemon_end_it() {
    let (compute, control, slot) = measured();
    let device = &control.devices[OTHER_DEVICE];
    let mut measure = Measure::new();
    for (gate, measures, goes_on) in [(Gate::Track, 1, true), (Gate::Run, 0, false)] {
        device.gate.store(Gate::Run as u32, Relaxed);
        device.measures_time.store(1, Relaxed);
        settle(&mut measure, compute);
        slot.enter(Submission::Kernel);
        compute.meters[OTHER_DEVICE].note(compute.session, slot, 7);
        measure.step(compute, &compute.gates());
        device.gate.store(gate as u32, Relaxed);
        device.measures_time.store(measures, Relaxed);
        assert_eq!(measure.step(compute, &compute.gates()), Step::default());
        assert!(!is_armed(compute));
        assert_eq!(is_busy(compute), goes_on, "{gate:?}");
        slot.uncount(Submission::Kernel);
        compute.meters[OTHER_DEVICE].stop(compute.usage(), OTHER_DEVICE, sys::now());
    }
}

#[test]
fn looks_become_rare_but_not_too_rare() {
    let mut pace = Pace { random: 1, due: 0 };
    for (length, least, most) in [
        (0, SOON * 3 / 4, SOON * 5 / 4),
        (4_000_000, 750_000, 1_250_000),
        (100_000_000, LATER * 3 / 4, LATER * 5 / 4),
        (60_000_000_000, SELDOM * 3 / 4, SELDOM * 5 / 4),
    ] {
        for _ in 0..100 {
            let mut looks = Looks::begin(5, 5);
            pace.due = 0;
            looks.schedule(5 + length, &mut pace);
            let pause = looks.next - 5 - length;
            assert!((least..=most).contains(&pause), "{length}: {pause}");
        }
    }
}

#[test]
fn short_periods_one_after_the_other_are_looked_at_less_often() {
    let mut pace = Pace { random: 1, due: 0 };
    let (began, mut now, mut count) = (1_000_000_000, 1_000_000_000, 0);
    while now < began + 2_000_000_000 {
        let mut looks = Looks::begin(now, now);
        looks.schedule(now, &mut pace);
        now = looks.next;
        count += 1;
    }
    assert!(
        (1900..=2200).contains(&count),
        "{count}: 1000 a second, and 100 at once"
    );
}
