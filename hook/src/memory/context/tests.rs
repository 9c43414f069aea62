//! Charges of contexts, with a daemon that answers what the test says.

use super::*;
use crate::shared::block;
use gcgroup_abi::{Control, DEFAULT_CONTEXT, NO_LIMIT};

const ESTIMATE: u64 = 60;

/// Returns a process with a limit of 100 bytes, on a device where a primary context is expected to take
/// [`ESTIMATE`], and the daemon's view of its control block.
fn limited() -> (&'static Memory, &'static Control) {
    let memory = Memory::of_test(NO_LIMIT);
    let (control, file) = block::of_daemon();
    for device in &control.devices {
        device.memory_limit.store(NO_LIMIT, Relaxed);
    }
    control.memory_limit.store(100, Relaxed);
    control.devices[0].context_estimate[0].store(ESTIMATE, Relaxed);
    // The program's first device has the daemon's number 0.
    control.nr_devices.store(1, Relaxed);
    control.devices[0].uuid[0].store(1, Relaxed);
    control.publish();
    let local = LocalDevice::of(0).unwrap();
    memory.session.devices.of_test(memory.control(), local, [1, 0]);
    memory.adopt(&file);
    (memory, control)
}

/// Makes a primary context with that number.
fn make(memory: &Memory, number: u32) -> Result<(), CUerror> {
    let turn = memory.make_context(LocalDevice::of(0).unwrap());
    turn.charge(&[ContextKind::Primary])?.settle(number, || ())
}

/// Answers the last request; returns whether all contexts are measured then.
fn answer(memory: &Memory, control: &Control, missing: i64) -> bool {
    let device = &memory.usage().devices[0];
    assert_eq!(device.unsettled.load(Relaxed) & 0xffff_ffff, 0);
    let answered = &control.devices[0];
    answered.context_missing.store(missing.cast_unsigned(), Relaxed);
    let asked = device.context_request.load(Acquire);
    answered.context_answer.store(asked, Release);
    memory.settle_contexts()
}

/// Returns what is charged, what of it for contexts, and what of that is estimated.
fn charged(memory: &Memory) -> [u64; 3] {
    let device = &memory.usage().devices[0];
    [
        &device.memory_current,
        &device.context_charged,
        &device.context_estimated,
    ]
    .map(|word| word.load(Relaxed))
}

#[test]
fn freed_shared_memory_stays_charged_until_measured() {
    let (memory, control) = limited();
    control.memory_limit.store(1000, Relaxed);
    assert_eq!(make(memory, 1), Ok(()));
    for (missing, left) in [(-40, [60, 60, 0]), (-25, [75, 75, 0]), (10, [110, 110, 0])] {
        let (charge, sums) = memory.try_charge(0, 40).unwrap();
        charge.keep(sums);
        for bytes in [15, 25] {
            memory.keep_shared(LocalDevice::of(0).unwrap(), 0, bytes);
        }
        assert_eq!(charged(memory)[..2], [100; 2]);
        assert!(answer(memory, control, missing));
        assert_eq!(charged(memory), left, "{missing}");
        // What another process holds of it is not known to be gone until it is measured anew.
        let excess = left[0].cast_signed() - 60;
        memory
            .contexts
            .charged
            .lock()
            .iter_mut()
            .for_each(|charged| charged.is_asked = true);
        memory.ask_size(0, None);
        assert!(answer(memory, control, -excess));
        assert_eq!(charged(memory), [60, 60, 0]);
    }
}

#[test]
fn charge_of_context_becomes_its_measured_size() {
    let (memory, control) = limited();
    for (missing, size) in [(40, 100), (-20, 40), (0, ESTIMATE), (50, 110), (-70, 0)] {
        assert_eq!(make(memory, 1), Ok(()));
        assert_eq!(charged(memory), [ESTIMATE; 3]);
        assert!(answer(memory, control, missing));
        assert_eq!(charged(memory), [size, size, 0], "{missing}");
        memory.context_uncharged(1);
        assert_eq!(charged(memory), [0; 3]);
    }
}

#[test]
fn contexts_are_corrected_together() {
    let (memory, control) = limited();
    control.memory_limit.store(1000, Relaxed);
    for number in [1, 2, 3] {
        assert_eq!(make(memory, number), Ok(()));
        let kind = memory.usage().devices[0].context_kind.load(Relaxed);
        let is_alone = ContextKind::of_word(kind) == Some(ContextKind::Primary);
        assert_eq!(is_alone, number == 1, "a size is of one context");
    }
    assert!(answer(memory, control, -100));
    assert_eq!(charged(memory), [80, 80, 0]);
    assert_eq!(make(memory, 4), Ok(()));
    assert!(answer(memory, control, 7));
    assert_eq!(charged(memory), [147, 147, 0]);
    for number in [1, 2, 3, 4] {
        memory.context_uncharged(number);
    }
    assert_eq!(charged(memory), [0; 3]);
}

/// Contexts that were measured are no estimates: beside managed memory the daemon keeps what it knows.
#[test]
fn measured_contexts_stay_measured_when_another_is_destroyed() {
    let (memory, control) = limited();
    control.memory_limit.store(1000, Relaxed);
    for number in [1, 2] {
        assert_eq!(make(memory, number), Ok(()));
    }
    assert!(answer(memory, control, -90), "each takes 15");
    memory.context_uncharged(1);
    assert_eq!(charged(memory), [15, 15, 0]);
    assert!(!memory.settle_contexts(), "it is measured anew");
    assert!(answer(memory, control, 5));
    assert_eq!(charged(memory), [20, 20, 0]);
}

#[test]
fn answer_to_an_earlier_request_is_ignored() {
    let (memory, control) = limited();
    control.memory_limit.store(1000, Relaxed);
    assert_eq!(make(memory, 1), Ok(()));
    let asked = memory.usage().devices[0].context_request.load(Relaxed);
    let answered = &control.devices[0];
    answered.context_missing.store(40, Relaxed);
    assert_eq!(make(memory, 2), Ok(()));
    answered.context_answer.store(asked, Release);
    assert!(!memory.settle_contexts(), "there is another context by now");
    memory.context_uncharged(2);
    assert!(!memory.settle_contexts());
    assert_eq!(charged(memory), [ESTIMATE; 3]);
}

#[test]
fn estimate_alone_refuses_no_context() {
    let (memory, control) = limited();
    control.memory_limit.store(ESTIMATE - 1, Relaxed);
    assert_eq!(make(memory, 1), Ok(()));
    assert_eq!(charged(memory), [ESTIMATE - 1; 3]);
    assert_eq!(memory.usage().nr_oom.load(Relaxed), 0);
    assert_eq!(make(memory, 2), Err(CUerror::OUT_OF_MEMORY), "nothing is left");
    assert_eq!(charged(memory), [ESTIMATE - 1; 3]);
    assert!(answer(memory, control, -30));
    assert_eq!(make(memory, 2), Ok(()));
    assert_eq!(charged(memory), [59, 59, 30]);
}

#[test]
fn failed_context_is_uncharged() {
    let (memory, _) = limited();
    let turn = memory.make_context(LocalDevice::of(0).unwrap());
    let made = turn.charge(&[ContextKind::Primary]).unwrap();
    assert_eq!(charged(memory), [ESTIMATE; 3]);
    drop(made);
    assert_eq!(charged(memory), [0; 3]);
}

#[test]
fn context_is_charged_without_a_limit_and_without_a_daemon() {
    let (memory, control) = limited();
    control.memory_limit.store(NO_LIMIT, Relaxed);
    assert_eq!(make(memory, 1), Ok(()));
    assert_eq!(charged(memory), [ESTIMATE; 3]);
    let memory = Memory::of_test(NO_LIMIT);
    let index = memory.session.devices.index(LocalDevice::of(0).unwrap());
    assert_eq!(make(memory, 1), Ok(()));
    let device = &memory.usage().devices[index];
    assert_eq!(device.context_charged.load(Relaxed), DEFAULT_CONTEXT);
}
