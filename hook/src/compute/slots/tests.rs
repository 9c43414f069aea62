use super::*;
use crate::compute::slot::add;
use crate::memory::ledger::Entry;
use crate::shared::block;
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
    let process = Process::of_test(NO_LIMIT);
    let me = sys::gettid();
    let slots = &process.slots;
    let first = slots.take(process, me, local(0), 0);
    let second = slots.take(process, me, local(1), 1);
    assert!(!ptr::eq(first.thread, second.thread));
    assert!(ptr::eq(first.thread, slots.take(process, me, local(0), 0).thread));
    assert_eq!(process.usage().nr_threads.load(Relaxed), 2);
    let gate = ptr::from_ref(&process.control().devices[1].gate);
    assert!(ptr::eq(second.entrance.gate.load(Relaxed), gate));
}

#[test]
fn slot_of_dead_thread_is_reused_and_counts_stay() {
    let process = Process::of_test(NO_LIMIT);
    let slots = &process.slots;
    for number in 0..MAX_THREADS {
        let slot = slots.take(process, DEAD - u32::try_from(number).unwrap(), local(0), 0);
        submit(slot, 10);
    }
    let submitted = |device| process.usage().submitted(device, Submission::Kernel);
    assert_eq!(submitted(0), 10 * MAX_THREADS as u64);
    let mine = slots.take(process, sys::gettid(), local(1), 1);
    assert!(mine.extra.is_none());
    submit(mine, 1);
    assert_eq!((submitted(0), submitted(1)), (10 * MAX_THREADS as u64, 1));
    let again = slots.take(process, sys::gettid(), local(0), 0);
    submit(again, 1);
    assert_eq!(submitted(0), 10 * MAX_THREADS as u64 + 1);
}

#[test]
fn thread_that_died_inside_driver_delays_no_drain() {
    let process = Process::of_test(NO_LIMIT);
    let slots = &process.slots;
    let dead = slots.take(process, DEAD, local(0), 0);
    dead.enter(Submission::Copy);
    assert!(!slots.is_any_inside(process, Scope::Device(0)));
    let mine = slots.take(process, sys::gettid(), local(0), 0);
    mine.enter(Submission::Kernel);
    assert!(slots.is_any_inside(process, Scope::Device(0)));
    assert!(!slots.is_any_inside(process, Scope::Device(1)));
    mine.uncount(Submission::Kernel);
    assert!(!slots.is_any_inside(process, Scope::Device(0)));
}

#[test]
fn threads_beyond_block_are_counted() {
    let process = Process::of_test(NO_LIMIT);
    let slots = &process.slots;
    let me = sys::gettid();
    // One living thread on many devices stands in for many threads on one device.
    for number in 0..MAX_THREADS {
        let slot = slots.take(process, me, local(0), 0);
        slot.side
            .local
            .store(u32::try_from(number).unwrap() + 1000, Relaxed);
    }
    let extra = slots.take(process, me, local(0), 0);
    assert!(extra.extra.is_some());
    assert!(ptr::eq(extra.thread, slots.take(process, me, local(0), 0).thread));
    submit(extra, 3);
    extra.enter(Submission::Kernel);
    assert!(slots.is_any_inside(process, Scope::Device(0)));
    assert_eq!(process.usage().submitted(0, Submission::Kernel), 3);
    add(extra.thread.exited(Submission::Kernel), 1);
    slots.fold(process);
    slots.fold(process);
    assert_eq!(process.usage().submitted(0, Submission::Kernel), 4);
}

#[test]
fn new_daemon_moves_slots_with_their_counts() {
    let process = Process::of_test(NO_LIMIT);
    let (control, file) = block::of_daemon();
    let slot = process
        .slots
        .take(process, sys::gettid(), local(0), gcgroup_abi::OTHER_DEVICE);
    submit(slot, 5);
    control.publish();
    // The driver was not asked for a UUID, so the device stays unknown and the slot keeps its place.
    process.adopt(&file);
    assert_eq!(slot.index(), gcgroup_abi::OTHER_DEVICE);
    point(process, slot, 2);
    assert_eq!(process.usage().submitted(2, Submission::Kernel), 5);
}

#[test]
fn allocations_are_summed_over_threads() {
    let process = Process::of_test(NO_LIMIT);
    let entry = |index| Entry::new(Kind::Linear, 100, local(0), index, 0);
    let sums = |index| {
        let sums = process.usage().allocations(index);
        (sums.nr_alloc, sums.nr_free, sums.kinds[Kind::Linear as usize])
    };
    let count = |bound: Bound<'_>, index, times| {
        for _ in 0..times {
            let own = Counts::of(process.usage(), bound.thread, index);
            process.memory.levels.enter(process.usage(), own, &entry(index));
        }
    };
    let shared = &process.usage().devices[1];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| count(process.slots.of_test(process, local(0), 1), 1, 1000));
        }
    });
    assert_eq!(sums(1), (4000, 0, 400_000));
    assert_eq!(shared.nr_alloc.load(Relaxed), 0, "shared words are untouched");

    let mine = process.slots.of_test(process, local(0), 1);
    count(mine, 1, 1);
    for _ in 0..2 {
        // Frees of other threads' blocks make the thread's own counter negative.
        let own = Counts::of(process.usage(), mine.thread, 1);
        process.memory.levels.leave(process.usage(), own, &entry(1));
    }
    assert_eq!(sums(1), (4001, 2, 399_900));
    count(mine, 2, 3);
    assert_eq!(sums(2), (3, 0, 300), "on a device that is not the slot's");
    assert_eq!(process.usage().devices[2].nr_alloc.load(Relaxed), 3);
}

#[test]
fn counts_stay_with_device_when_slot_moves() {
    let process = Process::of_test(NO_LIMIT);
    let bound = process.slots.of_test(process, local(0), 3);
    let counts = |bound: Bound<'_>, index| {
        let own = Counts::of(process.usage(), bound.thread, index).unwrap();
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
        let sums = process.usage().allocations(index);
        (sums.nr_alloc, sums.kinds[Kind::Array as usize])
    };
    assert_eq!((sums(3), sums(4)), ((1, 7), (0, 0)), "as it was counted");
    counts(bound, 4);
    assert_eq!((sums(3), sums(4)), ((1, 7), (1, 7)));
    assert_eq!(process.usage().devices[3].nr_alloc.load(Relaxed), 1);
}
