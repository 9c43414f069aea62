//! Ticks over a tree: GPU time that is charged, and quotas.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{Gate, UNKNOWN_COST};

use super::world::{MSEC, Play};
use crate::tree::fixture::{OWNER, ROOT, World, set_now};
use crate::tree::{Evidence, Notice};

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
    assert_eq!(play.gate(low), Gate::Throttled, "before the next tick");
    play.tick();
    assert_eq!(play.gate(low), Gate::Throttled);
}
