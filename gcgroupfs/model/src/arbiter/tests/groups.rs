//! Quotas of groups, which all of their processes share, and what their ended processes have used.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::Gate;

use super::world::{MSEC, Play};
use crate::tree::fixture::{ROOT, set_now};
use crate::tree::{Evidence, ProcessId};

#[test]
fn group_quota_is_shared_by_all_processes() {
    let mut play = Play::new(1);
    let (one, other, outside) = (play.join(100, 8), play.join(101, 8), play.join(102, 8));
    play.world.group("a/b");
    play.world.store("a/compute.max", ROOT, "20000 100000").unwrap();
    play.world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    play.world.store("a/b/gcgroup.procs", ROOT, "101").unwrap();
    play.tick();
    let gates = |play: &Play| [one, other, outside].map(|id| play.gate(id));
    assert_eq!(gates(&play), [Gate::Arbitrate, Gate::Arbitrate, Gate::Track]);
    // One after the other, each for half of the quota.
    play.begins(one);
    let next = play.tick();
    assert_eq!(next.at, Some(play.now + 20 * MSEC));
    play.after(11 * MSEC);
    play.ends(one);
    play.begins(other);
    play.tick();
    assert_eq!(play.gate(one), Gate::Arbitrate);
    let next = play.after(10 * MSEC);
    assert_eq!(gates(&play), [Gate::Throttled, Gate::Throttled, Gate::Track]);
    play.ends(other);
    play.waits(one, 1);
    play.waits(other, 1);
    play.now = next.at.unwrap();
    play.tick();
    assert_eq!(play.gate(one), Gate::Arbitrate);
    // A process that leaves the group is not held any more.
    play.world.store("gcgroup.procs", ROOT, "101").unwrap();
    play.tick();
    assert_eq!(play.gate(other), Gate::Track);
}

#[test]
fn processes_that_leave_use_the_quotas_of_their_groups() {
    let mut play = Play::new(1);
    play.world.group("a/b");
    play.world.store("a/compute.max", ROOT, "25000 100000").unwrap();
    let last = play.join(200, 8);
    play.world.store("a/gcgroup.procs", ROOT, "200").unwrap();
    let begin = |play: &mut Play, pid: u32| {
        let id = play.join(pid, 8);
        play.world
            .store("a/b/gcgroup.procs", ROOT, &pid.to_string())
            .unwrap();
        play.world.usage(id).measures_time.store(1, Relaxed);
        play.tick();
        play.begins(id);
        play.tick();
        id
    };
    let leave = |play: &mut Play, ids: &[ProcessId], nsec| {
        play.now += nsec;
        set_now(play.now);
        for id in ids {
            play.world.tree.leave(*id, 0);
        }
        play.tick();
        play.gate(last)
    };
    for pid in [100, 101] {
        let id = begin(&mut play, pid);
        assert_eq!(leave(&mut play, &[id], 10 * MSEC), Gate::Arbitrate, "{pid}");
    }
    let liar = begin(&mut play, 102);
    play.world.tree.set_evidence(liar, 0, Evidence::Refuted);
    assert_eq!(
        leave(&mut play, &[liar], 10 * MSEC),
        Gate::Arbitrate,
        "a refuted claim is not charged"
    );
    let both = [103, 104].map(|pid| begin(&mut play, pid));
    assert_eq!(
        leave(&mut play, &both, 4 * MSEC),
        Gate::Arbitrate,
        "no more than the time that has passed"
    );
    let id = begin(&mut play, 105);
    assert_eq!(leave(&mut play, &[id], MSEC), Gate::Throttled);
}

#[test]
fn work_of_a_context_that_has_gone_is_charged() {
    let mut play = Play::new(1);
    let id = play.join(100, 8);
    play.world.store("100/compute.max", ROOT, "25000 100000").unwrap();
    play.tick();
    for nsec in [10 * MSEC, 20 * MSEC] {
        play.contexts(id, 0, 1);
        play.begins(id);
        play.tick();
        play.now += nsec;
        play.ends(id);
        play.contexts(id, 0, 0);
        play.tick();
        play.tick();
    }
    let charged = |play: &Play| play.world.control(id).devices[0].usage_nsec.load(Relaxed);
    assert_eq!(charged(&play), 30 * MSEC);
    // No claim is left that evidence could refute.
    play.world.tree.set_evidence(id, 0, Evidence::Unknown);
    play.world.usage(id).devices[0].busy_nsec.fetch_add(MSEC, Relaxed);
    play.contexts(id, 0, 0);
    play.after(10 * MSEC);
    assert_eq!(charged(&play), 30 * MSEC);
    play.contexts(id, 0, 1);
    play.tick();
    assert_eq!(play.gate(id), Gate::Throttled);
}

#[test]
fn member_with_long_kernels_waits_until_others_have_caught_up() {
    let mut play = Play::new(1);
    let (long, short) = (play.join(100, 8), play.join(101, 8));
    play.world.group("a");
    play.world.store("a/compute.max", ROOT, "20000 100000").unwrap();
    play.world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    play.world.store("a/gcgroup.procs", ROOT, "101").unwrap();
    play.tick();
    let gates = |play: &Play| [long, short].map(|id| play.gate(id));
    play.begins(long);
    play.begins(short);
    play.tick();
    play.after(20 * MSEC);
    assert_eq!(gates(&play), [Gate::Throttled; 2], "each has had half");
    play.ends(short);
    play.waits(short, 1);
    play.after(10 * MSEC);
    play.ends(long);
    play.waits(long, 1);
    play.after(70 * MSEC);
    assert_eq!(gates(&play), [Gate::Throttled, Gate::Arbitrate], "10 ms ahead");
    play.begins(short);
    play.waits(short, 0);
    let next = play.tick().at.unwrap();
    assert!(next <= play.now + 75 * MSEC / 10, "it may have caught up");
    play.after(75 * MSEC / 10 + 1);
    assert_eq!(gates(&play), [Gate::Arbitrate; 2]);
    play.ends(short);
    play.after(100 * MSEC);
    play.after(100 * MSEC);
    play.begins(long);
    play.after(10 * MSEC);
    play.waits(short, 1);
    play.after(0);
    assert_eq!(gates(&play), [Gate::Arbitrate; 2], "less than the quota was used");
}

/// Simulates ten seconds of a lying process in a group with 10 % of the GPU and an honest, always busy one in
/// a group beside it, both inside a group with 50 %. Returns the number of milliseconds in which the honest
/// one's gate was open.
fn open_beside(mut play: Play, lie: impl Fn(&Play, u64)) -> u64 {
    let honest = play.join(101, 8);
    play.world.group("a/liar");
    play.world.group("a/honest");
    play.world.store("a/compute.max", ROOT, "50000 100000").unwrap();
    play.world
        .store("a/liar/compute.max", ROOT, "10000 100000")
        .unwrap();
    play.world.store("a/liar/gcgroup.procs", ROOT, "100").unwrap();
    play.world.store("a/honest/gcgroup.procs", ROOT, "101").unwrap();
    play.tick();
    let mut open = 0;
    for msec in 0..10_000 {
        lie(&play, msec);
        if play.gate(honest) == Gate::Throttled {
            play.ends_if_busy(honest);
        } else {
            play.begins_if_idle(honest);
            open += 1;
        }
        play.after(MSEC);
    }
    open
}

#[test]
fn lie_costs_at_most_the_quota_of_the_liars_group() {
    let without = {
        let play = Play::new(1);
        play.join(100, 8);
        open_beside(play, |_, _| {})
    };
    assert!((4_900..=5_200).contains(&without), "{without}");
    type Lie = fn(&Play, ProcessId, u64);
    let lies: [(&str, Lie); 3] = [
        ("always busy", |play, liar, _| play.begins_if_idle(liar)),
        ("alternating", |play, liar, msec| match msec % 7 {
            0 => play.begins_if_idle(liar),
            3 => play.ends_if_busy(liar),
            _ => {}
        }),
        ("absurd", |play, liar, msec| {
            let usage = play.world.usage(liar);
            usage.devices[0].busy_since.store(1, Relaxed);
            usage.devices[0].busy_nsec.store(msec << 40, Relaxed);
            usage.devices[0].submitted_nsec.store(msec << 50, Relaxed);
        }),
    ];
    for (what, lie) in lies {
        let play = Play::new(1);
        let liar = play.join(100, 8);
        let with = open_beside(play, |play, msec| lie(play, liar, msec));
        // The liar could have used a fifth of the common quota honestly.
        assert!(
            with * 100 >= without * 80 * 97 / 100,
            "{what}: {with} of {without}"
        );
    }
}

#[test]
fn outer_quota_is_charged_for_all_of_a_long_kernel() {
    let mut play = Play::new(1);
    let id = play.join(100, 8);
    play.world.group("a/b");
    play.world.store("a/compute.max", ROOT, "20000 100000").unwrap();
    play.world.store("a/b/compute.max", ROOT, "10000 100000").unwrap();
    play.world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    play.tick();
    play.begins(id);
    play.after(100 * MSEC);
    play.ends(id);
    play.after(0);
    // Ten of the hundred milliseconds are charged in each period. Then the inner quota is removed, and the
    // outer one is charged the rest.
    for _ in 0..4 {
        play.after(100 * MSEC);
        assert_eq!(play.gate(id), Gate::Throttled);
    }
    play.world.store("a/b/compute.max", ROOT, "max").unwrap();
    play.tick();
    assert_eq!(play.gate(id), Gate::Throttled, "50 ms of debt are left");
    play.after(100 * MSEC);
    assert_eq!(play.gate(id), Gate::Throttled, "30 ms of debt are left");
    play.after(200 * MSEC);
    assert_eq!(play.gate(id), Gate::Arbitrate);
}

#[test]
fn device_quota_counts_only_its_device() {
    let mut play = Play::new(2);
    let id = play.join(100, 8);
    play.world.group("a");
    play.world.store("a/1/compute.max", ROOT, "1000 100000").unwrap();
    play.world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    play.tick();
    play.begins(id);
    play.after(50 * MSEC);
    assert_eq!(play.gate(id), Gate::Run);
    play.world.store("a/0/compute.max", ROOT, "1000 100000").unwrap();
    play.tick();
    play.after(2 * MSEC);
    assert_eq!(play.gate(id), Gate::Throttled);
}

#[test]
fn debt_of_an_ended_process_stays_in_its_own_group() {
    let mut play = Play::new(1);
    let [one, beside] = [100, 101].map(|pid| play.join(pid, 8));
    play.world.group("a/b");
    for (file, value) in [
        ("a/compute.max", "50000 100000"),
        ("a/b/compute.max", "10000 100000"),
        ("a/b/gcgroup.procs", "100"),
        ("a/gcgroup.procs", "101"),
    ] {
        play.world.store(file, ROOT, value).unwrap();
    }
    play.tick();
    play.begins(one);
    play.after(1000 * MSEC);
    play.ends(one);
    play.after(0);
    play.world.tree.leave(one, 0);
    // The outer quota has had its part of the period in which the process ended.
    play.after(100 * MSEC);
    play.begins(beside);
    play.after(49 * MSEC);
    assert_eq!(
        play.gate(beside),
        Gate::Arbitrate,
        "all of the outer quota is left"
    );
    play.after(2 * MSEC);
    assert_eq!(play.gate(beside), Gate::Throttled);
    // Its successor repays the debt.
    let next = play.join(102, 8);
    play.world.store("a/b/gcgroup.procs", ROOT, "102").unwrap();
    play.waits(next, 1);
    play.after(5000 * MSEC);
    assert_eq!(play.gate(next), Gate::Throttled);
}

#[test]
fn group_waits_for_what_an_ended_process_has_used() {
    let mut play = Play::new(1);
    let begin = |play: &mut Play, group: &str, pid: u32, submitted: u64| {
        let id = play.join(pid, 8);
        let procs = format!("{group}/gcgroup.procs");
        play.world.store(&procs, ROOT, &pid.to_string()).unwrap();
        play.world.usage(id).measures_time.store(1, Relaxed);
        play.tick();
        play.begins(id);
        let device = &play.world.usage(id).devices[0];
        device.submitted_nsec.store(submitted, Relaxed);
        play.tick();
        id
    };
    for group in ["one", "other"] {
        play.world.group(group);
    }
    let ended = begin(&mut play, "one", 100, 1000 * MSEC);
    let beside = begin(&mut play, "other", 101, 5 * MSEC);
    play.after(MSEC);
    assert_eq!(
        [ended, beside].map(|id| play.gate(id)),
        [Gate::Run; 2],
        "a bundle"
    );
    // The other group has had work for 50 ms too, but only 4 ms of it was its own.
    play.now += 50 * MSEC;
    set_now(play.now);
    play.world.tree.leave(ended, 0);
    play.tick();
    let next = begin(&mut play, "one", 102, 1000 * MSEC);
    assert_eq!(
        [next, beside].map(|id| play.gate(id)),
        [Gate::Throttled, Gate::Arbitrate]
    );
}
