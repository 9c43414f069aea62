//! Charges of contexts, with a daemon that answers what the test says.

use super::*;
use crate::shared::block;
use gcgroup_abi::{Control, NO_LIMIT};
use std::thread;

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
    control.measures_contexts.store(1, Relaxed);
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

/// Makes a primary context with that number while the daemon answers `missing`.
fn make(memory: &Memory, control: &Control, number: u32, missing: i64) -> Result<(), CUerror> {
    let device = &memory.usage().devices[0];
    let asked = device.context_request.load(Relaxed).wrapping_add(1);
    thread::scope(|scope| {
        let making = scope.spawn(|| {
            let turn = memory.make_context(LocalDevice::of(0).unwrap());
            turn.charge(&[ContextKind::Primary])?.settle(number)
        });
        while device.context_request.load(Acquire) != asked && !making.is_finished() {
            thread::yield_now();
        }
        assert!(device.unsettled.load(Relaxed) & 0xffff_ffff <= 1);
        let answered = &control.devices[0];
        answered.context_missing.store(missing.cast_unsigned(), Relaxed);
        answered.context_answer.store(asked, Release);
        sys::futex_wake(&answered.context_answer);
        making.join().unwrap()
    })
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
fn charge_of_context_becomes_its_measured_size() {
    let (memory, control) = limited();
    assert!(make(memory, control, 1, 40).is_ok());
    assert_eq!(charged(memory), [100, 100, 0]);
    memory.context_uncharged(1);
    assert_eq!(charged(memory), [0; 3]);
    assert!(make(memory, control, 2, -20).is_ok());
    assert_eq!(charged(memory), [40, 40, 0]);
    memory.context_uncharged(2);
    assert_eq!(charged(memory), [0; 3]);
    assert_eq!(memory.usage().devices[0].unsettled.load(Relaxed) & 0xffff_ffff, 0);
}

#[test]
fn context_larger_than_the_limit_is_refused_after_its_measurement() {
    let (memory, control) = limited();
    assert_eq!(make(memory, control, 1, 41), Err(CUerror::OUT_OF_MEMORY));
    assert_eq!(charged(memory), [ESTIMATE, ESTIMATE, ESTIMATE], "it exists still");
    memory.context_uncharged(1);
    assert_eq!(charged(memory), [0; 3]);
}

#[test]
fn estimate_beyond_the_limit_is_refused_at_once_and_reported() {
    let (memory, control) = limited();
    control.memory_limit.store(ESTIMATE - 1, Relaxed);
    let turn = memory.make_context(LocalDevice::of(0).unwrap());
    assert!(turn.charge(&[ContextKind::Primary]).is_err());
    assert_eq!(charged(memory), [0; 3]);
    let device = &memory.usage().devices[0];
    let word = ContextKind::of_word(device.context_kind.load(Relaxed));
    assert_eq!(word, (Some(ContextKind::Primary), true));
    assert_eq!(device.context_request.load(Relaxed), 1);
    assert_eq!(memory.usage().nr_oom.load(Relaxed), 1);
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
fn estimate_stands_without_an_answer() {
    let (memory, control) = limited();
    assert!(make(memory, control, 1, CONTEXT_UNKNOWN.cast_signed()).is_ok());
    assert_eq!(charged(memory), [ESTIMATE; 3]);
    memory.context_uncharged(1);
    // The daemon is silent, which is waited for once.
    for number in [2, 3] {
        let turn = memory.make_context(LocalDevice::of(0).unwrap());
        let made = turn.charge(&[ContextKind::Primary]).unwrap();
        assert!(made.settle(number).is_ok());
        assert_eq!(charged(memory), [ESTIMATE; 3]);
        assert!(memory.contexts.is_silent.load(Relaxed));
        memory.context_uncharged(number);
    }
}

#[test]
fn nothing_is_charged_without_a_limit() {
    let (memory, control) = limited();
    control.memory_limit.store(NO_LIMIT, Relaxed);
    let turn = memory.make_context(LocalDevice::of(0).unwrap());
    turn.charge(&[ContextKind::Primary]).unwrap().settle(1).unwrap();
    assert_eq!(charged(memory), [0; 3]);
    assert_eq!(memory.usage().devices[0].context_request.load(Relaxed), 0);
}
