//! Sleeping and waking: the daemon until work begins, the hook's helper, and threads at a gate.
//!
//! A lost wake-up leaves a thread asleep for ever, which loom reports as a deadlock: the waits have no time
//! limit here, unlike the real ones.

use std::sync::Arc;

use crate::{Event, Futex, check, needed, zeroed};
use gcgroup_abi::sync::AtomicU32;
use gcgroup_abi::sync::Ordering::Relaxed;
use gcgroup_abi::{ControlDevice, Gate, UsageDevice};
use loom::thread;

/// A step at the wrong time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The daemon checks for work before it asks for the bell.
    LookFirst,
    /// The hook checks whether it must ring before it publishes.
    BellFirst,
}

/// Work begins while the daemon goes to sleep.
fn work_begins(fault: Fault) -> impl Fn() + Send + Sync {
    move || {
        // SAFETY: atomics only.
        let (control, usage) = unsafe { (zeroed::<ControlDevice>(), zeroed::<UsageDevice>()) };
        control.set_wants_bell(false, false);
        assert!(!usage.has_begun(0));
        let bell = Arc::new(Event::new());
        let hook = {
            let (control, usage, bell) = (control.clone(), usage.clone(), bell.clone());
            thread::spawn(move || {
                let is_wanted = fault == Fault::BellFirst && control.wants_bell_now();
                assert!(usage.begin_busy(1));
                if is_wanted || fault != Fault::BellFirst && control.wants_bell_now() {
                    bell.post();
                }
            })
        };
        let has_begun = fault == Fault::LookFirst && usage.has_begun(0);
        control.set_wants_bell(true, false);
        ControlDevice::fence_bells();
        if !(has_begun || fault != Fault::LookFirst && usage.has_begun(0)) {
            bell.poll();
        }
        hook.join().unwrap();
    }
}

#[test]
fn daemon_does_not_sleep_through_begin_of_work() {
    // One fence on each side.
    assert_eq!(needed(work_begins(Fault::None)), ["bell.rs: fence(SeqCst);"; 2]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn check_before_bell_is_wanted_is_found() {
    check(work_begins(Fault::LookFirst));
}

#[test]
#[should_panic(expected = "deadlock")]
fn bell_checked_before_publishing_is_found() {
    check(work_begins(Fault::BellFirst));
}

/// A thread of the program wakes the helper twice, for two pieces of work (`helper::Line`, `Helper::sleep`).
fn helper_sleeps(hears_first: bool) -> impl Fn() + Send + Sync {
    move || {
        let (work, line) = (Arc::new(AtomicU32::new(0)), Arc::new(Event::new()));
        work.load(Relaxed);
        let program = {
            let (work, line) = (work.clone(), line.clone());
            thread::spawn(move || {
                for number in 1..=2 {
                    work.store(number, Relaxed);
                    line.post();
                }
            })
        };
        loop {
            line.poll();
            if hears_first {
                line.hear();
            }
            let seen = work.load(Relaxed);
            if !hears_first {
                line.hear();
            }
            if seen == 2 {
                break;
            }
        }
        program.join().unwrap();
    }
}

#[test]
fn helper_checks_for_work_after_reading_socket() {
    check(helper_sleeps(true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn helper_reading_socket_after_check_is_found() {
    check(helper_sleeps(false));
}

/// A thread waits at a frozen gate while the daemon thaws it (`wait::wait_frozen`, `Bells::ring`).
fn gate_opens(is_woken_first: bool) -> impl Fn() + Send + Sync {
    move || {
        // SAFETY: atomics only.
        let control = unsafe { zeroed::<ControlDevice>() };
        control.change_freeze(Gate::Frozen);
        let queue = Arc::new(Futex::new());
        let daemon = {
            let (control, queue) = (control.clone(), queue.clone());
            thread::spawn(move || {
                if is_woken_first {
                    queue.wake();
                }
                control.change_freeze(Gate::Run);
                if !is_woken_first {
                    queue.wake();
                }
            })
        };
        while Gate::from_word(control.gate.load(Relaxed)) == Gate::Frozen {
            queue.wait(&control.gate, Gate::Frozen as u32);
        }
        daemon.join().unwrap();
    }
}

#[test]
fn thread_at_a_gate_is_woken_by_thaw() {
    check(gate_opens(false));
}

#[test]
#[should_panic(expected = "deadlock")]
fn wake_before_gate_opens_is_found() {
    check(gate_opens(true));
}
