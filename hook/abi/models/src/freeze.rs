//! Entry and exit counters, the barrier of a drain, and the generation of a freeze.
//!
//! The fast path of a submission is assembly (`hook/src/arch`). On x86-64 its increments are plain loads and
//! stores, and stores are not reordered with each other; on AArch64 the store that counts the exit is a
//! release. So it is simulated by `Entrance::enter` and `Thread::exit`, which are relaxed and releasing
//! stores.

use std::sync::Arc;

use crate::{Barrier, check, needed, zeroed};
use gcgroup_abi::sync::Ordering::{Relaxed, SeqCst};
use gcgroup_abi::sync::{AtomicU32, fence};
use gcgroup_abi::{ControlDevice, Entrance, Gate, Submission, Thread, UsageDevice};
use loom::thread;

/// A step that is left out or at the wrong time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The helper makes no thread pass a barrier.
    NoBarrier,
    /// The helper does so before the gate is closed.
    BarrierFirst,
    /// The helper reads the counters before the barrier.
    CountersFirst,
    /// The thread loads the gate before it counts its entry.
    GateFirst,
    /// The thread counts its exit before it calls the driver.
    ExitFirst,
}

struct World {
    control: Arc<ControlDevice>,
    usage: Arc<UsageDevice>,
    entrance: Arc<Entrance>,
    slot: Arc<Thread>,
    /// Set to 1 by a driver call.
    submitted: AtomicU32,
    barrier: Barrier,
}

impl World {
    fn new() -> Arc<Self> {
        // SAFETY: atomics only.
        let (control, usage, entrance, slot) = unsafe {
            (
                zeroed::<ControlDevice>(),
                zeroed::<UsageDevice>(),
                zeroed::<Entrance>(),
                zeroed::<Thread>(),
            )
        };
        let world = Self {
            control,
            usage,
            entrance,
            slot,
            submitted: AtomicU32::new(0),
            barrier: Barrier::new(),
        };
        assert!(!world.entrance.is_inside(&world.slot));
        assert_eq!(world.control.freeze_state(), (0, false));
        world.usage.drained_generation.load(Relaxed);
        world.submitted.load(Relaxed);
        Arc::new(world)
    }

    fn is_gate_open(&self) -> bool {
        Gate::from_word(self.control.gate.load(Relaxed)) == Gate::Run
    }

    /// Submits correctly except for `fault`; `between` runs between the entry and the load of the gate.
    fn submit(&self, fault: Fault, between: impl Fn(&Self)) {
        let what = Submission::Kernel;
        self.barrier.interrupt();
        let is_open = if fault == Fault::GateFirst {
            let is_open = self.is_gate_open();
            between(self);
            self.entrance.enter(what);
            is_open
        } else {
            self.entrance.enter(what);
            between(self);
            self.is_gate_open()
        };
        self.barrier.interrupt();
        if is_open {
            if fault == Fault::ExitFirst {
                self.slot.exit(what);
            }
            self.submitted.store(1, Relaxed);
            self.barrier.interrupt();
            if fault != Fault::ExitFirst {
                self.slot.exit(what);
            }
        } else {
            self.entrance.withdraw(what);
        }
        self.barrier.end();
    }

    fn wait_until_outside(&self) {
        while self.entrance.is_inside(&self.slot) {
            thread::yield_now();
        }
    }
}

/// The daemon freezes while a thread submits; the helper drains and reports it.
fn drain(
    fault: Fault,
    between: impl Fn(&World) + Copy + Send + Sync + 'static,
    barrier: impl Fn(&World) + Send + Sync + 'static,
) -> impl Fn() + Send + Sync {
    move || {
        let world = World::new();
        let submitting = world.clone();
        let thread = thread::spawn(move || submitting.submit(fault, between));
        if fault == Fault::BarrierFirst {
            barrier(&world);
        }
        world.control.change_freeze(Gate::Frozen);
        let (generation, is_frozen) = world.control.freeze_state();
        assert!(is_frozen);
        if fault == Fault::CountersFirst {
            world.wait_until_outside();
        }
        if !matches!(fault, Fault::NoBarrier | Fault::BarrierFirst) {
            barrier(&world);
        }
        if fault != Fault::CountersFirst {
            world.wait_until_outside();
        }
        let before = world.submitted.load(Relaxed);
        assert!(world.usage.report_drained(&world.control, generation));
        thread.join().unwrap();
        assert_eq!(
            world.submitted.load(Relaxed),
            before,
            "nothing is submitted after the drain"
        );
    }
}

/// The fast path with an open gate: between entry and gate there is only what the kernel inserts.
fn fast(fault: Fault) -> impl Fn() + Send + Sync {
    let interrupt = |world: &World| world.barrier.interrupt();
    drain(fault, interrupt, |world| world.barrier.all_threads())
}

/// The slow path (`gate::admit`), which fences itself: the helper's own fence suffices.
fn slow(fault: Fault) -> impl Fn() + Send + Sync {
    drain(fault, |_| fence(SeqCst), |_| fence(SeqCst))
}

#[test]
fn drained_device_gets_no_submission() {
    assert_eq!(
        needed(fast(Fault::None)),
        [
            "freeze.rs: counts.any(|(entered, exited)| entered.load(Acquire) != exited.load(Acquire))",
            "freeze.rs: exited.store(exited.load(Relaxed).wrapping_add(1), Release);",
        ]
    );
}

#[test]
fn slow_path_needs_no_barrier_but_its_own() {
    check(slow(Fault::None));
}

#[test]
#[should_panic(expected = "nothing is submitted after the drain")]
fn slow_path_without_a_barrier_is_found() {
    check(slow(Fault::NoBarrier));
}

#[test]
#[should_panic(expected = "nothing is submitted after the drain")]
fn drain_without_a_barrier_is_found() {
    check(fast(Fault::NoBarrier));
}

#[test]
#[should_panic(expected = "nothing is submitted after the drain")]
fn barrier_before_the_gate_is_closed_is_found() {
    check(fast(Fault::BarrierFirst));
}

#[test]
#[should_panic(expected = "nothing is submitted after the drain")]
fn counters_read_before_the_barrier_are_found() {
    check(fast(Fault::CountersFirst));
}

#[test]
#[should_panic(expected = "nothing is submitted after the drain")]
fn gate_loaded_before_the_entry_is_found() {
    check(fast(Fault::GateFirst));
}

#[test]
#[should_panic(expected = "nothing is submitted after the drain")]
fn exit_before_the_driver_returned_is_found() {
    check(fast(Fault::ExitFirst));
}

/// The daemon freezes, thaws and freezes while the helper reads: the generation of a freeze implies its
/// closed gate.
fn generations(
    change: impl Fn(&ControlDevice, Gate) + Send + Sync + Copy + 'static,
) -> impl Fn() + Send + Sync {
    move || {
        let world = World::new();
        let daemon = world.clone();
        let thread = thread::spawn(move || {
            for gate in [Gate::Frozen, Gate::Run, Gate::Frozen] {
                change(&daemon.control, gate);
            }
        });
        let (generation, is_frozen) = world.control.freeze_state();
        if is_frozen && generation == 3 {
            assert!(
                !world.is_gate_open(),
                "the gate is closed once its freeze is taken up"
            );
        }
        thread.join().unwrap();
    }
}

#[test]
fn generation_of_a_freeze_comes_with_its_closed_gate() {
    assert_eq!(
        needed(generations(ControlDevice::change_freeze)),
        [
            "freeze.rs: let generation = self.freeze_generation.load(Acquire);",
            "freeze.rs: self.freeze_generation.fetch_add(1, Release);",
        ]
    );
}

#[test]
#[should_panic(expected = "the gate is closed once its freeze is taken up")]
fn generation_that_moves_before_its_gate_is_found() {
    check(generations(|control, gate| {
        control.freeze_generation.fetch_add(1, Relaxed);
        control.gate.store(gate as u32, Relaxed);
    }));
}
