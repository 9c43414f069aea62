//! Ticks over a tree: reads usage blocks and checks what control blocks contain afterwards.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{BELL_AT_BEGIN, BELL_AT_END, Gate, UNKNOWN_COST};

use crate::arbiter::settings::Settings;
use crate::arbiter::state::{Next, State};
use crate::tree::fixture::{OWNER, ROOT, World, set_now};
use crate::tree::{Evidence, Notice, ProcessId};

pub(in crate::arbiter) const MSEC: u64 = 1_000_000;

/// A tree, its arbiter, and simulated time.
pub(in crate::arbiter) struct Play {
    pub(in crate::arbiter) world: World,
    state: State,
    pub(in crate::arbiter) now: u64,
    woken: Vec<usize>,
}

impl Play {
    pub(in crate::arbiter) fn new(nr_devices: usize) -> Self {
        Self {
            world: World::new(nr_devices),
            state: State::new(Settings::default()),
            now: 1_000_000 * MSEC,
            woken: Vec::new(),
        }
    }

    /// Registers a process with a context on device 0.
    pub(in crate::arbiter) fn join(&self, pid: u32, priority: u32) -> ProcessId {
        let id = self.world.join(pid);
        self.world
            .store(&format!("{pid}/compute.priority"), ROOT, &priority.to_string())
            .unwrap();
        self.contexts(id, 0, 1);
        id
    }

    /// Sets the number of contexts of a process on a device, and rings as the hook does.
    pub(in crate::arbiter) fn contexts(&self, id: ProcessId, device: usize, number: u32) {
        let usage = self.world.usage(id);
        usage.devices[device].nr_contexts.store(number, Relaxed);
        self.world.tree.rung(id);
    }

    pub(in crate::arbiter) fn begins(&self, id: ProcessId) {
        self.world.usage(id).devices[0]
            .busy_since
            .store(self.now, Relaxed);
    }

    pub(in crate::arbiter) fn ends(&self, id: ProcessId) {
        let device = &self.world.usage(id).devices[0];
        let since = device.busy_since.swap(0, Relaxed);
        device.busy_nsec.fetch_add(self.now - since, Relaxed);
    }

    pub(in crate::arbiter) fn begins_if_idle(&self, id: ProcessId) {
        if self.world.usage(id).devices[0].busy_since.load(Relaxed) == 0 {
            self.begins(id);
        }
    }

    pub(in crate::arbiter) fn ends_if_busy(&self, id: ProcessId) {
        if self.world.usage(id).devices[0].busy_since.load(Relaxed) != 0 {
            self.ends(id);
        }
    }

    pub(in crate::arbiter) fn waits(&self, id: ProcessId, threads: u32) {
        self.world.usage(id).devices[0].nr_waiting.store(threads, Relaxed);
    }

    pub(in crate::arbiter) fn tick(&mut self) -> Next {
        let (state, now) = (&mut self.state, self.now);
        let (next, opened) = self.world.tree.arbitrate(|tree| state.tick(now, tree));
        self.woken = opened.into_iter().map(|(_, device)| device).collect();
        next
    }

    pub(in crate::arbiter) fn after(&mut self, nsec: u64) -> Next {
        self.now += nsec;
        self.tick()
    }

    pub(in crate::arbiter) fn gate(&self, id: ProcessId) -> Gate {
        Gate::from_word(self.world.control(id).devices[0].gate.load(Relaxed))
    }

    fn bell(&self, id: ProcessId) -> u32 {
        self.world.control(id).devices[0].wants_bell.load(Relaxed)
    }

    fn wants_bell(&self, id: ProcessId) -> bool {
        self.bell(id) == BELL_AT_BEGIN
    }

    fn rings(&self) -> Vec<ProcessId> {
        let notices = self.world.take_notices().into_iter();
        notices
            .filter_map(|notice| match notice {
                Notice::Ring(id) => Some(id),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn equal_priorities_need_no_bell_and_no_tick() {
    let mut play = Play::new(1);
    let ids = [play.join(100, 8), play.join(101, 8)];
    play.tick();
    let rings = std::collections::BTreeSet::from_iter(play.rings());
    assert_eq!(rings, ids.into(), "they are told to measure their work");
    play.begins(ids[0]);
    for _ in 0..3 {
        assert_eq!(play.tick().at, None);
        assert_eq!(ids.map(|id| play.gate(id)), [Gate::Run; 2]);
        assert_eq!(ids.map(|id| play.wants_bell(id)), [false; 2]);
    }
    assert_eq!(play.rings(), []);
}

#[test]
fn window_is_narrow_before_a_turn_ends() {
    let mut play = Play::new(1);
    let (high, low) = (play.join(100, 7), play.join(101, 8));
    play.tick();
    play.begins(high);
    play.waits(low, 1);
    play.tick();
    let window = |play: &Play| play.world.control(high).devices[0].window_usec.load(Relaxed);
    let mut windows = vec![window(&play)];
    while play.gate(high) == Gate::Arbitrate && windows.len() < 100 {
        play.after(MSEC / 2);
        windows.push(window(&play));
    }
    assert_eq!(play.gate(high), Gate::Throttled);
    assert_eq!(windows.first(), Some(&2000));
    windows.pop();
    assert!(windows.ends_with(&[2000, 500, 500, 500, 500]), "{windows:?}");
    assert_eq!(windows.iter().filter(|window| **window == 500).count(), 4);
}

#[test]
fn higher_priority_neighbour_sets_gate_arbitrate() {
    let mut play = Play::new(1);
    let (high, low) = (play.join(100, 2), play.join(101, 10));
    assert_eq!(
        play.tick(),
        Next {
            at: None,
            again: false,
            memory_news: Vec::new(),
        }
    );
    assert_eq!((play.gate(high), play.gate(low)), (Gate::Track, Gate::Arbitrate));
    let device = &play.world.control(low).devices[0];
    assert_eq!(device.window_usec.load(Relaxed), 500);
    assert!(play.wants_bell(high) && play.wants_bell(low));
    let rings = std::collections::BTreeSet::from_iter(play.rings());
    assert_eq!(rings, [high, low].into(), "both must begin to publish their work");
    play.contexts(high, 0, 0);
    play.tick();
    assert_eq!((play.gate(high), play.gate(low)), (Gate::Run, Gate::Run));
}

#[test]
fn lower_priority_waits_while_higher_priority_is_busy() {
    let mut play = Play::new(1);
    play.world.store("compute.policy", ROOT, "strict").unwrap();
    let (high, low) = (play.join(100, 2), play.join(101, 10));
    play.begins(low);
    play.tick();
    assert_eq!(play.gate(low), Gate::Arbitrate);
    play.begins(high);
    let next = play.after(MSEC);
    assert_eq!((play.gate(high), play.gate(low)), (Gate::Track, Gate::Throttled));
    assert_eq!(
        play.world.control(low).devices[0].patience_usec.load(Relaxed),
        250_000
    );
    assert!(
        next.at.is_some(),
        "the end of work is polled for while a process waits"
    );
    assert_eq!((play.bell(high), play.bell(low)), (BELL_AT_END, 0));
    play.ends(low);
    play.waits(low, 2);
    assert!(play.after(MSEC).at.is_some());
    play.ends(high);
    play.after(MSEC / 2);
    assert_eq!(play.gate(low), Gate::Throttled, "work may come soon");
    play.after(MSEC);
    assert_eq!(play.gate(low), Gate::Arbitrate);
    assert_eq!(play.woken, [0], "waiting threads are woken");
}

#[test]
fn wait_for_a_turn_names_its_owner_and_counts_time() {
    let mut play = Play::new(1);
    play.world.store("compute.policy", ROOT, "strict").unwrap();
    let (high, low) = (play.join(100, 2), play.join(101, 10));
    let waits = |play: &Play| play.world.show("101/gcgroup.waits");
    play.begins(high);
    play.tick();
    play.after(MSEC);
    assert_eq!(waits(&play), "", "no thread waits");
    play.waits(low, 1);
    for _ in 0..5 {
        play.after(MSEC);
    }
    assert_eq!(play.gate(low), Gate::Throttled);
    let line = "100 gpu=0 for=turn usec=4000 now=1 priority=2 comm=";
    assert!(waits(&play).starts_with(line), "{}", waits(&play));
    assert_eq!(play.world.show("100/gcgroup.waits"), "");
    play.ends(high);
    for _ in 0..10 {
        play.after(MSEC);
    }
    assert_eq!(play.gate(low), Gate::Arbitrate);
    assert!(waits(&play).contains(" now=0 priority=2 "), "{}", waits(&play));
    play.world.tree.leave(high, 0);
    play.after(MSEC);
    assert!(waits(&play).contains(" now=0 comm="), "{}", waits(&play));
}

#[test]
fn wait_for_a_quota_is_for_no_other_process() {
    let mut play = Play::new(1);
    let (other, bounded) = (play.join(100, 8), play.join(101, 8));
    play.world.store("101/compute.max", ROOT, "1000 100000").unwrap();
    play.begins(other);
    play.begins(bounded);
    for _ in 0..20 {
        play.after(MSEC);
    }
    play.ends(bounded);
    play.waits(bounded, 1);
    play.after(MSEC);
    assert_eq!(play.gate(bounded), Gate::Throttled);
    play.after(MSEC);
    assert_eq!(play.world.show("101/gcgroup.waits"), "");
}

#[test]
fn pause_is_given_to_lower_priority_until_work_is_expected() {
    let mut play = Play::new(1);
    play.world.store("compute.policy", ROOT, "strict").unwrap();
    let (high, low) = (play.join(100, 2), play.join(101, 10));
    play.begins(low);
    play.tick();
    let gap = |play: &Play| play.world.control(low).devices[0].gap_until.load(Relaxed);
    for _ in 0..16 {
        play.begins(high);
        play.after(5 * MSEC);
        assert_eq!((play.gate(low), gap(&play)), (Gate::Throttled, 0));
        play.ends(high);
        play.after(20 * MSEC);
    }
    play.begins(high);
    play.after(5 * MSEC);
    play.ends(high);
    let ended = play.now;
    let next = play.tick();
    let until = ended + 20 * MSEC - MSEC / 4;
    assert_eq!((play.gate(low), gap(&play)), (Gate::Arbitrate, until));
    assert!(next.at.is_some_and(|at| at <= until), "{next:?}");
    play.now = until;
    play.ends(low);
    play.waits(low, 1);
    play.tick();
    assert_eq!(play.gate(low), Gate::Throttled, "work is expected");
    play.after(MSEC);
    assert_eq!(
        (play.gate(low), gap(&play)),
        (Gate::Arbitrate, 0),
        "the pause is longer"
    );
    let held = play.world.show("100/compute.stat");
    assert!(!held.contains("held_usec 0\n"), "{held}");
}

#[test]
fn tick_is_not_scheduled_while_no_process_waits() {
    let mut play = Play::new(1);
    let (high, low) = (play.join(100, 2), play.join(101, 10));
    play.begins(high);
    assert_eq!(play.tick().at, None);
    assert_eq!(
        play.gate(low),
        Gate::Throttled,
        "held before it can queue anything"
    );
    assert!(play.wants_bell(low) && !play.wants_bell(high));
    play.ends(high);
    play.now += 50 * MSEC;
    play.waits(low, 1);
    play.tick();
    assert_eq!(play.gate(low), Gate::Arbitrate);
    assert!(play.wants_bell(high), "it may begin again");
}

#[test]
fn work_begun_before_bell_is_requested_is_seen() {
    let mut play = Play::new(1);
    let (_, low) = (play.join(100, 2), play.join(101, 10));
    play.tick();
    // Read as idle; the block changes before the bell is requested.
    let (now, usage) = (play.now, play.world.usage(low));
    let device = &usage.devices[0];
    play.world.tree.arbitrate(|tree| {
        let seen = tree.seen(now, 0, |_| false);
        let seen = seen.iter().find(|one| one.id == low).unwrap();
        assert!(!tree.has_begun(0, seen));
        device.nr_waiting.store(1, Relaxed);
        assert!(tree.has_begun(0, seen));
        device.nr_waiting.store(0, Relaxed);
        device.busy_since.store(now, Relaxed);
        assert!(tree.has_begun(0, seen));
    });
}

#[test]
fn work_of_unknown_cost_is_charged_until_the_cost_is_known() {
    let mut play = Play::new(1);
    let (_, low) = (play.join(100, 2), play.join(101, 10));
    play.tick();
    let usage = play.world.usage(low);
    let submitted = &usage.devices[0].submitted_nsec;
    submitted.fetch_add(UNKNOWN_COST + 200_000, Relaxed);
    play.now += MSEC;
    play.begins(low);
    play.after(5 * MSEC);
    let charged = |play: &Play| play.world.control(low).devices[0].usage_nsec.load(Relaxed);
    assert_eq!(charged(&play), 5 * MSEC);
    submitted.fetch_sub(UNKNOWN_COST - 10_000, Relaxed);
    for _ in 0..10 {
        play.after(10 * MSEC);
    }
    assert_eq!(charged(&play), 5 * MSEC, "it had work, and was never seen idle");
    submitted.fetch_add(MSEC, Relaxed);
    play.after(10 * MSEC);
    assert_eq!(charged(&play), 6 * MSEC);
}

#[test]
fn death_of_busy_process_opens_other_gates() {
    let mut play = Play::new(1);
    let (high, low) = (play.join(100, 2), play.join(101, 10));
    play.begins(high);
    play.waits(low, 1);
    play.tick();
    assert_eq!(play.gate(low), Gate::Throttled);
    play.world.tree.leave(high, 0);
    play.tick();
    assert_eq!(play.gate(low), Gate::Run);
    assert_eq!(play.woken, [0]);
}

#[test]
fn frozen_process_counts_as_idle_and_is_held_after_thaw() {
    let mut play = Play::new(1);
    let (high, low) = (play.join(100, 2), play.join(101, 10));
    play.begins(high);
    play.begins(low);
    play.world.store("100/compute.freeze", ROOT, "1").unwrap();
    play.tick();
    assert_eq!((play.gate(high), play.gate(low)), (Gate::Frozen, Gate::Run));
    play.world.store("100/compute.freeze", ROOT, "0").unwrap();
    play.tick();
    assert_eq!((play.gate(high), play.gate(low)), (Gate::Track, Gate::Throttled));
    play.world.store("101/compute.freeze", ROOT, "1").unwrap();
    play.tick();
    assert_eq!(play.gate(low), Gate::Frozen);
    play.world.store("101/compute.freeze", ROOT, "0").unwrap();
    assert_eq!(play.gate(low), Gate::Arbitrate, "until the next tick");
    play.tick();
    assert_eq!(play.gate(low), Gate::Throttled);
}

#[test]
fn quota_throttles_until_period_ends_and_tracks_neighbour() {
    let mut play = Play::new(1);
    let (one, other) = (play.join(100, 8), play.join(101, 8));
    play.world
        .store("100/0/compute.max", OWNER, "25000 100000")
        .unwrap();
    play.tick();
    assert_eq!((play.gate(one), play.gate(other)), (Gate::Arbitrate, Gate::Track));
    play.begins(one);
    let next = play.tick();
    assert_eq!(next.at, Some(play.now + 25 * MSEC));
    let next = play.after(26 * MSEC);
    assert_eq!(play.gate(one), Gate::Throttled);
    assert_eq!(
        next.at,
        Some(play.now + 74 * MSEC),
        "no tick before the period ends"
    );
    play.ends(one);
    play.waits(one, 1);
    play.after(74 * MSEC);
    assert_eq!(play.gate(one), Gate::Arbitrate);
    assert_eq!(play.woken, [0]);
    play.world.store("100/0/compute.max", OWNER, "max").unwrap();
    play.tick();
    assert_eq!((play.gate(one), play.gate(other)), (Gate::Run, Gate::Run));
}

#[test]
fn quota_of_a_process_with_pauses_is_charged_what_it_tells() {
    let mut play = Play::new(1);
    let id = play.join(100, 8);
    let usage = play.world.usage(id);
    let submitted = &usage.devices[0].submitted_nsec;
    usage.measures_time.store(1, Relaxed);
    play.tick();
    submitted.fetch_add(MSEC, Relaxed);
    // No look at its work falls into a pause.
    play.begins(id);
    play.after(100 * MSEC);
    for quota in ["90000", "max", "90000"] {
        play.world.store("100/0/compute.max", OWNER, quota).unwrap();
        for _ in 0..5 {
            play.after(0);
            submitted.fetch_add(MSEC, Relaxed);
            play.after(100 * MSEC);
            assert_ne!(play.gate(id), Gate::Throttled);
        }
    }
    let charged = play.world.control(id).devices[0].usage_nsec.load(Relaxed);
    assert_eq!(charged, 16 * MSEC);
}

#[test]
fn process_quota_counts_all_devices() {
    let mut play = Play::new(2);
    let id = play.join(100, 8);
    let usage = play.world.usage(id);
    play.contexts(id, 1, 1);
    play.world.store("100/compute.max", OWNER, "20000").unwrap();
    play.tick();
    for device in &usage.devices[..2] {
        device.busy_since.store(play.now, Relaxed);
    }
    play.after(11 * MSEC);
    let control = play.world.control(id);
    let gates = [0, 1].map(|device: usize| control.devices[device].gate.load(Relaxed));
    assert_eq!(gates, [Gate::Throttled as u32; 2]);
    assert_eq!(play.world.show("100/0/compute.max"), "max 100000\n");
}

#[test]
fn gpu_time_overlap_is_divided_and_kept_in_totals() {
    let mut play = Play::new(1);
    let (one, other) = (play.join(100, 8), play.join(101, 8));
    assert!(play.world.show("compute.stat").starts_with("usage_usec 0\n"));
    for notice in play.world.take_notices() {
        if let Notice::Watched(ids) = notice {
            ids.into_iter().for_each(|id| play.state.watch(play.now, id));
        }
    }
    play.tick();
    assert_eq!(play.gate(one), Gate::Track, "compute.stat was read");
    play.begins(one);
    assert!(play.tick().at.is_some());
    play.after(10 * MSEC);
    play.begins(other);
    play.after(10 * MSEC);
    play.ends(other);
    play.after(0);
    let usage = |path: &str| play.world.show(&format!("{path}compute.stat"));
    assert!(
        usage("100/").starts_with("usage_usec 15000\n"),
        "{}",
        usage("100/")
    );
    assert!(usage("101/0/").starts_with("usage_usec 5000\n"));
    play.world.tree.leave(other, 0);
    assert!(play.world.show("compute.stat").starts_with("usage_usec 20000\n"));
    play.ends(one);
    play.after(11_000 * MSEC);
    assert_eq!(play.gate(one), Gate::Run, "the watch has ended");
}

#[test]
fn gpu_time_continues_from_an_earlier_daemon() {
    let world = World::new(1);
    let blocks = crate::tree::fixture::blocks();
    let before = &blocks.usage().raw().devices[0].usage_nsec_before;
    before.store(7_000_000, Relaxed);
    world.join_with(100, blocks, crate::tree::Settings::default());
    assert!(world.show("100/compute.stat").starts_with("usage_usec 7000\n"));
}

#[test]
fn hostile_block_is_charged_at_most_the_passed_time() {
    let mut play = Play::new(1);
    let (liar, honest) = (play.join(100, 10), play.join(101, 2));
    play.tick();
    for word in [u64::MAX, 1, 0, u64::MAX / 2] {
        let usage = play.world.usage(liar);
        let device = &usage.devices[0];
        device.busy_nsec.store(word, Relaxed);
        device.busy_since.store(word / 3, Relaxed);
        device.busy_sequence.store(1, Relaxed);
        device.nr_waiting.store(u32::MAX, Relaxed);
        play.begins(honest);
        play.after(MSEC);
        play.ends(honest);
        play.after(MSEC);
        assert_ne!(play.gate(honest), Gate::Frozen);
    }
    let charged = play.world.control(liar).devices[0].usage_nsec.load(Relaxed);
    assert!(charged <= 8 * MSEC, "{charged}");
}

#[test]
fn waiters_that_never_go_on_lose_the_turn() {
    let mut play = Play::new(1);
    let (stuck, busy) = (play.join(100, 2), play.join(101, 10));
    play.begins(busy);
    play.waits(stuck, 1);
    // Twenty seconds of ticks: a process that claims waiting threads and then does nothing must cost the
    // other little.
    let mut held = 0;
    for tick in 0..40_000 {
        play.after(MSEC / 2);
        held += u64::from(play.gate(busy) == Gate::Throttled);
        // The claimed number of waiting threads changes.
        play.waits(stuck, 1 + tick / 3 % 2);
    }
    assert!(held < 20, "{held} of 40000");
    // A process that has shown work is believed again.
    play.begins(stuck);
    play.after(MSEC);
    assert_eq!(play.gate(busy), Gate::Throttled);
}

#[test]
fn refuted_process_is_not_charged_until_confirmed() {
    let mut play = Play::new(1);
    let (liar, honest) = (play.join(100, 2), play.join(101, 10));
    play.world.take_notices();
    play.begins(liar);
    play.begins(honest);
    play.tick();
    assert_eq!(play.gate(honest), Gate::Throttled);
    let asks = |play: &Play| {
        let notices = play.world.take_notices();
        notices
            .into_iter()
            .filter(|notice| *notice == Notice::AuditAsked)
            .count()
    };
    assert_eq!(asks(&play), 2, "one for each");
    let tree = play.world.tree.clone();
    let set = |evidence| tree.set_evidence(liar, 0, evidence);
    set(Evidence::Refuted);
    for _ in 0..20 {
        play.after(10 * MSEC);
    }
    assert_eq!((play.gate(honest), play.gate(liar)), (Gate::Run, Gate::Run));
    assert_eq!(play.world.control(liar).devices[0].usage_nsec.load(Relaxed), 0);
    assert_eq!(asks(&play), 0);
    set(Evidence::Confirmed);
    play.tick();
    assert_eq!(play.gate(honest), Gate::Throttled);
}

#[test]
fn policy_is_writable_by_root_only() {
    let world = World::new(1);
    assert_eq!(world.show("compute.policy"), "weighted\n");
    assert_eq!(
        world
            .store("compute.policy", OWNER, "strict")
            .unwrap_err()
            .errno(),
        libc::EACCES
    );
    world.store("compute.policy", ROOT, "strict").unwrap();
    assert_eq!(world.show("compute.policy"), "strict\n");
    assert_eq!(world.take_notices(), [Notice::RootChanged]);
    world.tree.set_default_policy(crate::arbiter::WEIGHTED);
    assert_eq!(
        world.show("compute.policy"),
        "strict\n",
        "the default does not replace a written policy"
    );
}

#[test]
fn open_all_opens_every_gate_that_is_not_frozen() {
    let mut play = Play::new(2);
    let (high, low) = (play.join(100, 2), play.join(101, 10));
    play.begins(high);
    play.world.store("100/1/compute.freeze", ROOT, "1").unwrap();
    play.tick();
    assert_eq!(play.gate(low), Gate::Throttled);
    let ((), opened) = play.world.tree.arbitrate(|tree| tree.open_all());
    assert_eq!((play.gate(high), play.gate(low)), (Gate::Run, Gate::Run));
    assert_eq!(opened.len(), 1, "threads that wait there must be woken");
    let frozen = play.world.control(high).devices[1].gate.load(Relaxed);
    assert_eq!(frozen, Gate::Frozen as u32, "a frozen gate stays frozen");
}

#[test]
fn process_that_measures_by_itself_is_charged_with_open_gates() {
    let mut play = Play::new(1);
    let ids = [play.join(100, 8), play.join(101, 8)];
    for id in ids {
        play.world.usage(id).measures_time.store(1, Relaxed);
    }
    play.tick();
    assert_eq!(ids.map(|id| play.wants_bell(id)), [true; 2], "nobody works yet");
    play.begins(ids[0]);
    assert_eq!(play.tick().at, Some(play.now + 100 * MSEC), "one works");
    play.begins(ids[1]);
    assert_eq!(play.tick().at, Some(play.now + 10 * MSEC), "the time is divided");
    play.now += 10 * MSEC;
    play.tick();
    assert_eq!(ids.map(|id| play.gate(id)), [Gate::Run; 2]);
    let charged = ids.map(|id| play.world.control(id).devices[0].usage_nsec.load(Relaxed));
    assert_eq!(charged, [5 * MSEC; 2]);
}

#[test]
fn process_that_leaves_is_charged_since_the_last_tick_but_not_for_long() {
    for (passed, charged) in [(50 * MSEC, 50 * MSEC), (3600 * 1000 * MSEC, 1000 * MSEC)] {
        let mut play = Play::new(1);
        let id = play.join(100, 8);
        play.world.usage(id).measures_time.store(1, Relaxed);
        play.tick();
        play.begins(id);
        play.tick();
        play.now += passed;
        set_now(play.now);
        play.world.tree.leave(id, 0);
        let sums = play.world.show("exited");
        let expected = format!("compute.usage_usec={} ", charged / 1000);
        assert!(sums.contains(&expected), "{sums}");
    }
}
