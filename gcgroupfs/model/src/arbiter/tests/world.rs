//! Ticks over a tree: reads usage blocks and checks what control blocks contain afterwards.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{BELL_AT_BEGIN, BELL_AT_END, Gate};

use crate::arbiter::settings::Settings;
use crate::arbiter::state::{Next, State};
use crate::tree::fixture::{OWNER, ROOT, World};
use crate::tree::{Notice, ProcessId};

pub(in crate::arbiter) const MSEC: u64 = 1_000_000;

/// A tree, its arbiter, and simulated time.
pub(in crate::arbiter) struct Play {
    pub(in crate::arbiter) world: World,
    pub(super) state: State,
    pub(in crate::arbiter) now: u64,
    pub(super) woken: Vec<usize>,
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

    pub(super) fn wants_bell(&self, id: ProcessId) -> bool {
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
