use super::*;
use crate::memory::ABSURD;
use crate::shared::block;
use gcgroup_abi::{Control, NO_LIMIT, Usage};
use std::sync::atomic::AtomicU32;
use std::thread;

/// Returns a process in a group and the daemon's view of its control block.
fn member(granted: u64) -> (&'static Memory, &'static Control) {
    let memory = Memory::of_test(NO_LIMIT);
    memory.usage().devices[0].memory_granted.store(granted, Relaxed);
    (memory, adopt(memory))
}

/// Connects another daemon, which has seen the earlier requests.
fn adopt(memory: &Memory) -> &'static Control {
    let (control, file) = block::of_daemon();
    for (device, usage) in control.devices.iter().zip(&memory.usage().devices) {
        device.memory_limit.store(NO_LIMIT, Relaxed);
        let asked = usage.grant_request.load(Relaxed);
        device.grant_answer.store(asked, Relaxed);
    }
    control.memory_limit.store(NO_LIMIT, Relaxed);
    control.publish();
    memory.adopt(&file);
    control
}

fn request(usage: &Usage) -> &AtomicU32 {
    &usage.devices[0].grant_request
}

fn wait_for(request: &AtomicU32, number: u32) {
    while request.load(Acquire) != number {
        thread::yield_now();
    }
}

fn answer(control: &Control, number: u32) {
    control.devices[0].grant_answer.store(number, Release);
    sys::futex_wake(&control.devices[0].grant_answer);
}

#[test]
fn daemon_is_asked_only_beyond_the_grant() {
    let (memory, control) = member(100);
    let device = &memory.usage().devices[0];
    assert!(memory.charge(0, 100).is_ok());
    assert_eq!(request(memory.usage()).load(Relaxed), 0);
    thread::scope(|scope| {
        let charging = scope.spawn(|| memory.charge(0, 50).is_ok());
        wait_for(request(memory.usage()), 1);
        assert_eq!(device.grant_wanted.load(Relaxed), 50);
        // Answered, but not enough: another process was faster.
        device.memory_granted.store(120, Relaxed);
        answer(control, 1);
        wait_for(request(memory.usage()), 2);
        device.memory_granted.store(150, Relaxed);
        answer(control, 2);
        assert!(charging.join().unwrap());
    });
    assert_eq!(device.memory_current.load(Relaxed), 150);
}

#[test]
fn refused_request_refuses_charge_unless_bytes_were_freed() {
    let (memory, control) = member(100);
    assert!(memory.charge(0, 100).is_ok());
    let refuse = |number| {
        wait_for(request(memory.usage()), number);
        control.devices[0].grant_refused.store(number, Relaxed);
        answer(control, number);
    };
    thread::scope(|scope| {
        let charging = scope.spawn(|| memory.charge(0, 10).map(drop));
        refuse(1);
        assert_eq!(charging.join().unwrap(), Err(Full::Group(0)));
        let charging = scope.spawn(|| memory.charge(0, 10).map(drop));
        wait_for(request(memory.usage()), 2);
        memory.page_counter.uncharge(0, 20);
        refuse(2);
        assert_eq!(charging.join().unwrap(), Ok(()));
    });
    assert_eq!(memory.usage().devices[0].memory_current.load(Relaxed), 90);
}

#[test]
fn waiting_request_is_repeated_to_the_next_daemon() {
    let (memory, _lost) = member(0);
    thread::scope(|scope| {
        let charging = scope.spawn(|| memory.charge(0, 10).is_ok());
        wait_for(request(memory.usage()), 1);
        let next = adopt(memory);
        wait_for(request(memory.usage()), 2);
        memory.usage().devices[0].memory_granted.store(10, Relaxed);
        answer(next, 2);
        assert!(charging.join().unwrap());
    });
}

#[test]
fn silent_daemon_is_waited_for_once() {
    let (memory, control) = member(0);
    assert_eq!(memory.charge(0, 10).map(drop), Err(Full::Group(0)));
    let silent = &memory.grants.is_silent[0];
    assert!(silent.load(Relaxed));
    assert_eq!(memory.charge(0, 10).map(drop), Err(Full::Group(0)));
    let asked = request(memory.usage()).load(Relaxed);
    assert_eq!(asked, 2, "it is asked without waiting");
    // The daemon was only slow.
    memory.usage().devices[0].memory_granted.store(10, Relaxed);
    answer(control, asked);
    assert!(memory.charge(0, 10).is_ok());
    thread::scope(|scope| {
        let charging = scope.spawn(|| memory.charge(0, 10).is_ok());
        wait_for(request(memory.usage()), 3);
        memory.usage().devices[0].memory_granted.store(20, Relaxed);
        answer(control, 3);
        assert!(charging.join().unwrap());
    });
    assert!(!silent.load(Relaxed));
}

#[test]
fn existing_memory_is_covered_if_groups_have_room() {
    let (memory, control) = member(0);
    let page_counter = &memory.page_counter;
    page_counter.charge(0, 30);
    thread::scope(|scope| {
        let covering = scope.spawn(|| memory.cover(0, false));
        wait_for(request(memory.usage()), 1);
        assert_eq!(memory.usage().devices[0].grant_wanted.load(Relaxed), 0);
        memory.usage().devices[0].memory_granted.store(30, Relaxed);
        answer(control, 1);
        assert_eq!(covering.join().unwrap(), Ok(()));
    });
    page_counter.charge(0, 1);
    thread::scope(|scope| {
        let covering = scope.spawn(|| memory.cover(0, false));
        wait_for(request(memory.usage()), 2);
        control.devices[0].grant_refused.store(2, Relaxed);
        answer(control, 2);
        assert_eq!(covering.join().unwrap(), Err(Full::Group(0)));
    });
    control.devices[0].memory_limit.store(29, Relaxed);
    assert_eq!(memory.cover(0, false), Err(Full::Device(0)));
}

#[test]
fn charge_bounded_by_high_alone_passes_without_a_daemon() {
    let (memory, control) = member(100);
    control.devices[0].high.store(HIGH_IN_FORCE | HIGH_ALONE, Relaxed);
    // Left by the daemon that is gone: nobody would reset it.
    control.devices[0].high_wait_usec.store(u32::MAX, Relaxed);
    assert!(memory.charge(0, 150).is_ok());
    assert!(memory.charge(0, 1000).is_ok());
    assert_eq!(memory.usage().devices[0].memory_current.load(Relaxed), 1150);
    // The driver refuses it.
    assert!(memory.try_charge(0, ABSURD).is_ok());
    // A thread that never ends its request.
    let asking = memory.grants.asking[0].lock();
    let charged = thread::scope(|scope| scope.spawn(|| memory.charge(0, 10).is_ok()).join());
    assert!(charged.unwrap());
    drop(asking);
    control.devices[0].memory_limit.store(1210, Relaxed);
    assert_eq!(memory.charge(0, 51).map(drop), Err(Full::Device(0)));
    control.devices[0].high.store(HIGH_IN_FORCE, Relaxed);
    assert_eq!(
        memory.charge(0, 1).map(drop),
        Err(Full::Group(0)),
        "a group has a limit"
    );
}

#[test]
fn high_on_one_device_ends_no_wait_on_another() {
    let (memory, _lost) = member(0);
    let usage = memory.usage();
    usage.devices[1].memory_granted.store(0, Relaxed);
    let control = adopt(memory);
    control.devices[1].high.store(HIGH_IN_FORCE | HIGH_ALONE, Relaxed);
    thread::scope(|scope| {
        let charging = scope.spawn(|| memory.charge(0, 10).is_ok());
        wait_for(request(usage), 1);
        assert!(memory.charge(1, 10).is_ok());
        let silent = &memory.grants.is_silent;
        assert!(silent.iter().all(|silent| !silent.load(Relaxed)));
        let next = adopt(memory);
        wait_for(request(usage), 2);
        usage.devices[0].memory_granted.store(10, Relaxed);
        answer(next, 2);
        assert!(charging.join().unwrap());
    });
}

#[test]
fn growth_of_an_allocation_beyond_high_is_marked_as_counted() {
    let (memory, control) = member(0);
    let (device, set) = (&memory.usage().devices[0], &control.devices[0]);
    set.high.store(HIGH_IN_FORCE, Relaxed);
    let charge = || memory.reserve(0, 10);
    thread::scope(|scope| {
        for (number, wait_usec) in [(1, 0), (2, 1)] {
            let charging = scope.spawn(move || memory.charge_granted(0, 10, charge));
            wait_for(request(memory.usage()), number);
            assert_eq!(device.grant_wanted.load(Relaxed), 10);
            set.high_wait_usec.store(wait_usec, Relaxed);
            device.memory_granted.fetch_add(10, Relaxed);
            answer(control, number);
            assert_eq!(charging.join().unwrap().unwrap().1, wait_usec != 0);
        }
        memory.page_counter.charge(0, 5);
        let covering = scope.spawn(|| memory.cover(0, true));
        wait_for(request(memory.usage()), 3);
        assert_eq!(device.grant_wanted.load(Relaxed), WANTED_AGAIN);
        device.memory_granted.fetch_add(5, Relaxed);
        answer(control, 3);
        assert_eq!(covering.join().unwrap(), Ok(()));
    });
}

#[test]
fn request_numbers_wrap() {
    assert!(reaches(1, u32::MAX) && reaches(7, 7));
    assert!(!reaches(u32::MAX, 1) && !reaches(6, 7));
}
