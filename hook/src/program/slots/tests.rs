use std::ptr;

use super::*;
use crate::program::Program;
use crate::shared::block;
use crate::shared::counters::add;
use crate::shared::device::LocalDevice;
use crate::sys;
use gcgroup_abi::{Kind, NO_LIMIT, Submission};

fn local(number: i32) -> LocalDevice {
    LocalDevice::of(number).unwrap()
}

fn submit(bound: Bound<'_>, times: u64) {
    bound.submit(Submission::Kernel, times);
}

/// A thread id that does not exist in this process.
const DEAD: u32 = 0x3fff_fff0;

#[test]
fn thread_keeps_its_slot_on_each_device() {
    let program = Program::of_test(NO_LIMIT);
    let me = sys::gettid();
    let slots = &program.slots;
    let first = slots.take(program.session, me, local(0), 0);
    let second = slots.take(program.session, me, local(1), 1);
    assert!(!ptr::eq(first.thread, second.thread));
    assert!(ptr::eq(
        first.thread,
        slots.take(program.session, me, local(0), 0).thread
    ));
    assert_eq!(program.session.usage().nr_threads.load(Relaxed), 2);
    let gate = ptr::from_ref(&program.session.control().devices[1].gate);
    assert!(ptr::eq(second.entrance.gate.load(Relaxed), gate));
}

#[test]
fn slot_of_dead_thread_is_reused_and_counts_stay() {
    let program = Program::of_test(NO_LIMIT);
    let slots = &program.slots;
    for number in 0..MAX_THREADS {
        let slot = slots.take(
            program.session,
            DEAD - u32::try_from(number).unwrap(),
            local(0),
            0,
        );
        submit(slot, 10);
    }
    let submitted = |device| program.session.usage().submitted(device, Submission::Kernel);
    assert_eq!(submitted(0), 10 * MAX_THREADS as u64);
    let mine = slots.take(program.session, sys::gettid(), local(1), 1);
    assert!(mine.heap_slot.is_none());
    submit(mine, 1);
    assert_eq!((submitted(0), submitted(1)), (10 * MAX_THREADS as u64, 1));
    let again = slots.take(program.session, sys::gettid(), local(0), 0);
    submit(again, 1);
    assert_eq!(submitted(0), 10 * MAX_THREADS as u64 + 1);
}

#[test]
fn thread_that_died_inside_driver_delays_no_drain() {
    let program = Program::of_test(NO_LIMIT);
    let slots = &program.slots;
    let dead = slots.take(program.session, DEAD, local(0), 0);
    dead.enter(Submission::Copy);
    assert!(!slots.is_any_inside(program.session, |device| device == 0));
    let mine = slots.take(program.session, sys::gettid(), local(0), 0);
    mine.enter(Submission::Kernel);
    assert!(slots.is_any_inside(program.session, |device| device == 0));
    assert!(!slots.is_any_inside(program.session, |device| device == 1));
    mine.uncount(Submission::Kernel);
    assert!(!slots.is_any_inside(program.session, |device| device == 0));
}

#[test]
fn threads_beyond_block_are_counted() {
    let program = Program::of_test(NO_LIMIT);
    let slots = &program.slots;
    let me = sys::gettid();
    // One living thread on many devices stands in for many threads on one device.
    for number in 0..MAX_THREADS {
        let slot = slots.take(program.session, me, local(0), 0);
        slot.state
            .local
            .store(u32::try_from(number).unwrap() + 1000, Relaxed);
    }
    let heap_slot = slots.take(program.session, me, local(0), 0);
    assert!(heap_slot.heap_slot.is_some());
    assert!(ptr::eq(
        heap_slot.thread,
        slots.take(program.session, me, local(0), 0).thread
    ));
    submit(heap_slot, 3);
    heap_slot.enter(Submission::Kernel);
    assert!(slots.is_any_inside(program.session, |device| device == 0));
    assert_eq!(program.session.usage().submitted(0, Submission::Kernel), 3);
    add(heap_slot.thread.exited(Submission::Kernel), 1);
    slots.fold(program.session);
    slots.fold(program.session);
    assert_eq!(program.session.usage().submitted(0, Submission::Kernel), 4);
}

#[test]
fn new_daemon_moves_slots_with_their_counts() {
    let program = Program::of_test(NO_LIMIT);
    let (control, file) = block::of_daemon();
    let slot = program.slots.take(
        program.session,
        sys::gettid(),
        local(0),
        gcgroup_abi::OTHER_DEVICE,
    );
    submit(slot, 5);
    control.publish();
    // The driver was not asked for a UUID, so the device stays unknown and the slot keeps its place.
    program.adopt(&file);
    assert_eq!(slot.index(), gcgroup_abi::OTHER_DEVICE);
    point(program.session.control(), slot, 2, false);
    assert_eq!(program.session.usage().submitted(2, Submission::Kernel), 5);
}

#[test]
fn counts_stay_with_device_when_slot_moves() {
    let program = Program::of_test(NO_LIMIT);
    let bound = program.slots.of_test(program.session, local(0), 3);
    let counts = |bound: Bound<'_>, index| {
        let own = Counts::of(program.session.usage(), bound.thread, index).unwrap();
        own.count_alloc();
        assert!(own.add_kind(Kind::Array, 7));
        assert!(
            !own.add_kind(Kind::Pool, 7),
            "by what is reserved, for all threads"
        );
    };
    counts(bound, 3);
    bound.thread.device.store(4, Relaxed);
    let sums = |index| {
        let sums = program.session.usage().allocations(index);
        (sums.nr_alloc, sums.kinds[Kind::Array as usize])
    };
    assert_eq!((sums(3), sums(4)), ((1, 7), (0, 0)), "as it was counted");
    counts(bound, 4);
    assert_eq!((sums(3), sums(4)), ((1, 7), (1, 7)));
    assert_eq!(program.session.usage().devices[3].nr_alloc.load(Relaxed), 1);
}
