//! Samples of memory beyond the ledgers, from simulated sources.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use gcgroup_abi::{Kind, OTHER_DEVICE, Thread, UsageDevice};

use super::samples::Samples;
use super::{PERIOD, Source};
use gcgroupfs_model::tree::fixture::World;
use gcgroupfs_model::tree::{Evidence, ProcessId};

/// Reports that process 100 holds this many bytes, after calling the function.
struct Says<F>(Option<u64>, F);

impl<F: Fn() + Send> Source for Says<F> {
    fn held(&self, _: usize) -> Option<HashMap<u32, Option<u64>>> {
        (self.1)();
        Some(HashMap::from([(100, self.0)]))
    }
}

const NOTHING: fn() = || ();

/// Returns the overhead shown after two samples.
fn overhead(world: &World, source: &impl Source) -> String {
    let mut samples = Samples::default();
    samples.take(&world.tree, source);
    samples.take(&world.tree, source);
    let stat = world.show("100/0/memory.stat");
    let line = stat.lines().find(|line| line.starts_with("context "));
    line.unwrap_or_default().to_owned()
}

#[test]
fn bytes_beyond_the_ledger_are_overhead() {
    let world = World::new(1);
    let id = world.join(100);
    let current = &world.usage(id).devices[0].memory_current;
    current.store(70, Relaxed);
    assert_eq!(overhead(&world, &Says(Some(100), NOTHING)), "context 30");
    assert_eq!(world.show("100/memory.current"), "100\n");
    assert_eq!(
        overhead(&world, &Says(None, NOTHING)),
        "context 30",
        "nobody can say"
    );
    current.store(170, Relaxed);
    assert_eq!(overhead(&world, &Says(Some(100), NOTHING)), "context 0");
    assert_eq!(world.show("100/memory.peak"), "200\n");
    assert_eq!(overhead(&world, &Says(Some(190), NOTHING)), "context 20");
    assert_eq!(
        overhead(&world, &Says(Some(0), NOTHING)),
        "context 0",
        "it has left the device"
    );
    assert_eq!(world.show("100/memory.peak"), "200\n", "a peak never falls");
}

/// Lists no process.
struct Nobody;

impl Source for Nobody {
    fn held(&self, _: usize) -> Option<HashMap<u32, Option<u64>>> {
        Some(HashMap::new())
    }
}

#[test]
fn process_that_had_claimed_nothing_is_measured_at_the_next_look() {
    let world = World::new(1);
    world.join(100);
    let mut samples = Samples::default();
    samples.take(&world.tree, &Nobody);
    let listed = Says(Some(30), NOTHING);
    for expected in [0, 30] {
        // Its ledger was read after the device was asked: it may have freed what is listed.
        samples.take(&world.tree, &listed);
        let stat = world.show("100/0/memory.stat");
        assert!(stat.contains(&format!("context {expected}\n")), "{stat}");
    }
}

#[test]
fn sample_during_a_change_is_ignored() {
    let world = World::new(1);
    let id = world.join(100);
    let usage = world.usage(id);
    let device = &usage.devices[0];
    assert_eq!(overhead(&world, &Says(Some(30), NOTHING)), "context 30");
    type Word = fn(&UsageDevice) -> &AtomicU64;
    let moved: [Word; 5] = [
        |device| &device.memory_current,
        |device| &device.nr_alloc,
        |device| &device.nr_free,
        |device| &device.nr_alloc_fail,
        |device| &device.unsettled,
    ];
    for word in moved {
        let held = world.usage(id);
        let meanwhile = move || {
            word(&held.devices[0]).fetch_add(1 << 32, Relaxed);
        };
        assert_eq!(overhead(&world, &Says(Some(5 << 32), meanwhile)), "context 30");
    }
    usage.nr_threads.store(1, Relaxed);
    let own: [fn(&Thread) -> &AtomicU64; 2] = [|slot| &slot.nr_alloc, |slot| &slot.nr_free];
    for word in own {
        let held = world.usage(id);
        let meanwhile = move || {
            word(&held.threads[0]).fetch_add(1, Relaxed);
        };
        assert_eq!(overhead(&world, &Says(Some(6 << 32), meanwhile)), "context 30");
    }
    device.memory_current.store(8, Relaxed);
    device.unsettled.fetch_add((1 << 32) + 1, Relaxed);
    assert_eq!(
        overhead(&world, &Says(Some(5000), NOTHING)),
        "context 30",
        "a call is under way"
    );
    device.unsettled.fetch_sub(1, Relaxed);
    let other = &usage.devices[OTHER_DEVICE];
    other.unsettled.fetch_add((1 << 32) + 1, Relaxed);
    assert_eq!(
        overhead(&world, &Says(Some(5000), NOTHING)),
        "context 30",
        "devices are being renumbered"
    );
    other.unsettled.fetch_sub(1, Relaxed);
    usage.threads[0].unsettled.store(1, Relaxed);
    assert_eq!(overhead(&world, &Says(Some(5000), NOTHING)), "context 30");
    let held = world.usage(id);
    let meanwhile = move || {
        held.threads[0].unsettled.fetch_add(2, Relaxed);
    };
    usage.threads[0].unsettled.store(2, Relaxed);
    assert_eq!(overhead(&world, &Says(Some(5000), meanwhile)), "context 30");
    assert_eq!(overhead(&world, &Says(Some(5000), NOTHING)), "context 4992");
}

#[test]
fn charge_made_before_the_daemon_is_no_overhead() {
    let world = World::new(1);
    let id = world.join(100);
    let other = &world.usage(id).devices[OTHER_DEVICE];
    other.memory_current.store(70, Relaxed);
    assert_eq!(overhead(&world, &Says(Some(100), NOTHING)), "context 30");
}

#[test]
fn greater_of_two_samples_counts() {
    let world = World::new(1);
    let id = world.join(100);
    let mut samples = Samples::default();
    for (held, shown) in [(30, 30), (20, 30), (20, 20), (50, 50), (0, 50), (0, 0)] {
        samples.take(&world.tree, &Says(Some(held), NOTHING));
        assert_eq!(world.control(id).devices[0].memory_overhead.load(Relaxed), shown);
    }
    world.tree.leave(id, 0);
    assert!(samples.take(&world.tree, &Says(Some(1), NOTHING)) > PERIOD);
    assert!(samples.last.is_empty());
}

/// Asks for a measurement of a new context, as the hook does.
fn ask(world: &World, id: ProcessId) {
    world.usage(id).devices[0].context_request.fetch_add(1, Relaxed);
}

/// Measures contexts, and returns what the process is told to be missing in its charge; `None`: no answer.
fn missing(world: &World, id: ProcessId, source: &impl Source) -> Option<i64> {
    Samples::default().measure_contexts(&world.tree, source);
    let (usage, control) = (world.usage(id), world.control(id));
    let (usage, control) = (&usage.devices[0], &control.devices[0]);
    let is_answered = control.context_answer.load(Relaxed) == usage.context_request.load(Relaxed);
    is_answered.then(|| control.context_missing.load(Relaxed).cast_signed())
}

#[test]
fn new_context_is_compared_with_its_charge() {
    let world = World::new(1);
    let id = world.join(100);
    let usage = world.usage(id);
    let device = &usage.devices[0];
    let says = |bytes| Says(Some(bytes), NOTHING);
    for (charged, contexts, linear, held, expected) in [
        (0, 0, 0, 64, Some(64)),
        (60, 60, 0, 64, Some(4)),
        (70, 70, 0, 64, Some(-6)),
        (170, 70, 100, 164, Some(-6)),
        (170, 70, 100, 174, Some(4)),
        // An allocation is under way, and may be there or not.
        (170, 70, 0, 164, None),
        (170, 70, 0, 174, None),
    ] {
        device.memory_current.store(charged, Relaxed);
        device.context_charged.store(contexts, Relaxed);
        device.kinds[Kind::Linear as usize].store(linear, Relaxed);
        ask(&world, id);
        assert_eq!(missing(&world, id, &says(held)), expected);
    }
    ask(&world, id);
    assert_eq!(missing(&world, id, &Says(None, NOTHING)), None, "nobody can say");
    assert_eq!(missing(&world, id, &lists(&[7])), None, "not listed yet");
    let held = world.usage(id);
    let meanwhile = move || {
        held.devices[0].memory_current.fetch_add(1, Relaxed);
    };
    assert_eq!(missing(&world, id, &Says(Some(9), meanwhile)), None);
    device.unsettled.store((1 << 32) + 1, Relaxed);
    assert_eq!(missing(&world, id, &says(900)), None, "a call is under way");
    device.unsettled.store(1 << 32, Relaxed);
    device.memory_current.store(170, Relaxed);
    device.kinds[Kind::Linear as usize].store(100, Relaxed);
    assert_eq!(missing(&world, id, &says(900)), Some(730));
}

#[test]
fn managed_memory_on_the_device_does_not_pass_for_an_estimated_context() {
    let world = World::new(1);
    let id = world.join(100);
    let usage = world.usage(id);
    let device = &usage.devices[0];
    device.memory_current.store(180, Relaxed);
    device.context_charged.store(80, Relaxed);
    device.kinds[Kind::Managed as usize].store(100, Relaxed);
    for (estimated, held, expected) in [
        // Of the 100 bytes of managed memory all are there; the context takes 10.
        (80, 110, -70),
        (60, 110, -60),
        (0, 110, 0),
        // 50 of them are there, or 30 and 20 of the context.
        (80, 50, -80),
    ] {
        device.context_estimated.store(estimated, Relaxed);
        ask(&world, id);
        assert_eq!(
            missing(&world, id, &Says(Some(held), NOTHING)),
            Some(expected),
            "{estimated} {held}"
        );
    }
}

#[test]
fn overhead_waits_until_the_charge_of_contexts_is_corrected() {
    let world = World::new(1);
    let id = world.join(100);
    let published = || world.control(id).devices[0].memory_overhead.load(Relaxed);
    ask(&world, id);
    let mut samples = Samples::default();
    for _ in 0..3 {
        samples.take(&world.tree, &Says(Some(64), NOTHING));
        assert_eq!(published(), 0);
    }
    let missing = world.control(id).devices[0].context_missing.load(Relaxed);
    assert_eq!(missing, 64);
}

#[test]
fn charge_of_contexts_is_no_overhead() {
    let world = World::new(1);
    let id = world.join(100);
    let usage = world.usage(id);
    let device = &usage.devices[0];
    device.memory_current.store(70, Relaxed);
    device.context_charged.store(50, Relaxed);
    let published = |held| {
        overhead(&world, &Says(Some(held), NOTHING));
        world.control(id).devices[0].memory_overhead.load(Relaxed)
    };
    assert_eq!(published(70), 0);
    assert_eq!(published(75), 5, "it has grown");
    assert_eq!(overhead(&world, &Says(Some(75), NOTHING)), "context 55");
    assert_eq!(published(60), 0, "the estimate is too high");
    device.unsettled.store((1 << 32) + 1, Relaxed);
    assert_eq!(published(90), 0, "a context is being made");
}

/// Lists exactly these pids; `true`: of the first pid namespace.
struct ListsIn<'a>(&'a [u32], bool);

impl Source for ListsIn<'_> {
    fn held(&self, _: usize) -> Option<HashMap<u32, Option<u64>>> {
        Some(self.0.iter().map(|pid| (*pid, Some(5))).collect())
    }

    fn sees_everybody(&self) -> bool {
        self.1
    }
}

fn lists(pids: &[u32]) -> ListsIn<'_> {
    ListsIn(pids, true)
}

#[test]
fn use_claim_is_refuted_until_the_process_is_listed() {
    let world = World::new(1);
    let (liar, idle) = (world.join(100), world.join(101));
    let claims = |nr_contexts| {
        world.usage(liar).devices[0]
            .nr_contexts
            .store(nr_contexts, Relaxed)
    };
    let mut samples = Samples::default();
    let mut look = |listed: &[u32]| {
        samples.take(&world.tree, &lists(listed));
        [liar, idle].map(|id| world.tree.evidence(id, 0))
    };
    assert_eq!(look(&[101]), [Evidence::Unknown, Evidence::Confirmed]);
    claims(1);
    assert_eq!(look(&[]), [Evidence::Confirmed; 2], "an empty list says nothing");
    assert_eq!(
        look(&[7]),
        [Evidence::Confirmed, Evidence::Unknown],
        "nor does one of other processes; the idle process claims nothing"
    );
    assert_eq!(look(&[101]), [Evidence::Refuted, Evidence::Confirmed]);
    claims(0);
    assert_eq!(look(&[101])[0], Evidence::Refuted, "it may claim again at once");
    claims(1);
    assert_eq!(look(&[100, 101])[0], Evidence::Confirmed);
    claims(0);
    assert_eq!(look(&[101])[0], Evidence::Unknown, "its context has gone");
    world.submit(liar, 0, 1);
    world.usage(liar).devices[0].busy_since.store(1, Relaxed);
    assert_eq!(look(&[100])[0], Evidence::Confirmed);
}

#[test]
fn list_of_another_pid_namespace_refutes_if_it_fits_what_processes_report() {
    let world = World::new(1);
    let (liar, honest) = (world.join(100), world.join(101));
    let contexts = |id, number| world.usage(id).devices[0].nr_contexts.store(number, Relaxed);
    world.usage(liar).devices[0].nr_waiting.store(1, Relaxed);
    let mut samples = Samples::default();
    let mut look = |listed: &[u32]| {
        samples.take(&world.tree, &ListsIn(listed, false));
        [liar, honest].map(|id| world.tree.evidence(id, 0))
    };
    assert_eq!(
        look(&[101]),
        [Evidence::Confirmed; 2],
        "101 may be another process"
    );
    contexts(honest, 1);
    assert_eq!(look(&[]), [Evidence::Confirmed; 2]);
    assert_eq!(look(&[101, 7]), [Evidence::Confirmed; 2], "7 is not governed");
    assert_eq!(look(&[101]), [Evidence::Refuted, Evidence::Confirmed]);
    contexts(liar, 1);
    assert_eq!(look(&[100, 101]), [Evidence::Confirmed; 2]);
}

#[test]
fn short_claim_between_two_looks_is_refuted() {
    let world = World::new(1);
    let (liar, _) = (world.join(100), world.join(101));
    let waiting = &world.usage(liar).devices[0].nr_waiting;
    let claim = || {
        waiting.store(1, Relaxed);
        world.tree.rung(liar);
        world.tree.arbitrate(|tree| tree.seen(5, 0, |_| false));
        waiting.store(0, Relaxed);
    };
    let mut samples = Samples::default();
    claim();
    samples.take(&world.tree, &lists(&[101]));
    assert_eq!(world.tree.evidence(liar, 0), Evidence::Refuted);
    // Not involved any more, as after a context that has ended.
    let mut samples = Samples::default();
    world.tree.set_evidence(liar, 0, Evidence::Unknown);
    samples.take(&world.tree, &lists(&[101]));
    claim();
    samples.take(&world.tree, &lists(&[101]));
    assert_eq!(
        world.tree.evidence(liar, 0),
        Evidence::Refuted,
        "known and not involved"
    );
}

/// Reports what processes 100 and 101 hold, and a device of which more is in use.
struct Shares {
    held: [u64; 2],
    used: [u64; 2],
    nr_looks: AtomicUsize,
}

impl Source for Shares {
    fn held(&self, _: usize) -> Option<HashMap<u32, Option<u64>>> {
        Some((100..).zip(self.held.map(Some)).collect())
    }

    fn used(&self, _: usize) -> Option<u64> {
        Some(self.used[self.nr_looks.fetch_add(1, Relaxed) % 2])
    }
}

#[test]
fn memory_without_owner_is_charged_to_those_that_may_hold_it() {
    let world = World::new(1);
    let ids = [100, 101].map(|pid| world.join(pid));
    let mut samples = Samples::default();
    let mut look = |used| {
        let nr_looks = AtomicUsize::new(0);
        let held = [10, 20];
        samples.take(&world.tree, &Shares { held, used, nr_looks });
        ids.map(|id| world.control(id).devices[0].memory_overhead.load(Relaxed))
    };
    let usages = ids.map(|id| world.usage(id));
    let (owner, other) = (&usages[0].devices[0], &usages[1].devices[0]);
    assert_eq!(look([37; 2]), [10, 20], "7 bytes belong to no process");
    let opened = &other.kinds[Kind::Ipc as usize];
    opened.store(100, Relaxed);
    assert_eq!(look([37; 2]), [10, 20], "the owner has it");
    owner.shared_freed.store(50, Relaxed);
    assert_eq!(look([77; 2]), [50, 60], "both may hold 40 bytes");
    assert_eq!(look([197; 2]), [50, 120], "no more than they may hold");
    assert_eq!(look([197, 198]), [50, 120], "an allocation is under way");
    opened.store(0, Relaxed);
    usages[1].nr_shared.store(1, Relaxed);
    other.nr_unsized.store(1, Relaxed);
    assert_eq!(look([197; 2]), [50, 180], "of any size");
    other.nr_unsized.store(0, Relaxed);
    usages[1].nr_shared.store(0, Relaxed);
    look([37; 2]);
    assert_eq!(look([37; 2]), [10, 20]);
    assert_eq!(look([197; 2]), [10, 20], "they hold none of it any more");
}
