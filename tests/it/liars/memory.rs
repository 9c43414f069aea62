//! Tests false claims of memory and swap: what an honest tenant is granted beside them, and what files show.

use support::{Config, Governed, Mount, wait_until};

use super::{liar, tell};
use crate::driver::DriverShell;

const MIB: u64 = 1 << 20;

/// Mounts a GPU of 256 MiB. The limit of `team` is 128 MiB and of the liar's `team/a` 32 MiB; the honest
/// tenant is in `team/b`.
fn mount() -> Mount {
    let config = Config::default()
        .env("SIMGPU_MEMORY", "256M")
        .arg("--allow-other");
    let mount = Mount::with(config);
    for (group, limit) in [("team", "128M"), ("team/a", "32M"), ("team/b", "max")] {
        std::fs::create_dir(mount.path().join(group)).expect("a group");
        mount.write(group, "memory.limit", limit);
        mount.write(group, "memory.swap.max", limit);
    }
    mount
}

#[track_caller]
fn join(mount: &Mount, group: &str, pid: i32) {
    mount.write(group, "gcgroup.procs", &pid.to_string());
}

/// Allocates 128 blocks of 1 MiB, as far as they are granted, then frees them. Returns the bytes granted and
/// the number of refusals.
#[track_caller]
fn take_all(shell: &mut DriverShell, next: &mut usize) -> (u64, u64) {
    let (mut blocks, mut refused) = (Vec::new(), 0);
    for _ in 0..128 {
        match shell.ask(&format!("alloc linear {MIB}")).as_str() {
            "error 2" => refused += 1,
            answer => {
                assert_eq!(answer, format!("ok {next}"));
                blocks.push(*next);
                *next += 1;
            }
        }
    }
    for block in &blocks {
        assert_eq!(shell.ask(&format!("free {block}")), "ok");
    }
    (blocks.len() as u64 * MIB, refused)
}

/// Asserts what the honest tenant gets while the liar lies, and what files show after the liar has ended.
#[track_caller]
fn next_to(lie: impl FnOnce(&mut Governed)) {
    let mount = mount();
    let mut honest = DriverShell::start(&mount);
    join(&mount, "team/b", honest.pid());
    let mut next = 0;
    assert_eq!(
        take_all(&mut honest, &mut next),
        (128 * MIB, 0),
        "the honest process cannot allocate its share alone"
    );

    let mut liar = liar(&mount, &["can_swap=1"]);
    join(&mount, "team/a", liar.pid());
    lie(&mut liar);
    let (given, refused) = take_all(&mut honest, &mut next);
    // The liar could have used 32 MiB honestly.
    assert!(
        given >= 96 * MIB,
        "only {given} bytes were allocated, {refused} allocations refused"
    );
    for (group, most) in [("team/a", 32), ("team", 128)] {
        for name in ["memory.current", "memory.peak", "memory.swap.current"] {
            let bytes = mount.number(group, name, "");
            assert!(bytes <= most * MIB, "{group}/{name}: {bytes}");
        }
    }
    assert_eq!(mount.number("team/b", "memory.events", "oom"), 0);

    liar.finish();
    wait_until("the lying process has left its group", || {
        mount.number("team/a", "memory.current", "") == 0
    });
    assert_eq!(
        take_all(&mut honest, &mut next),
        (128 * MIB, 0),
        "the honest process cannot allocate its share again"
    );
    assert_eq!(mount.number("team", "memory.current", ""), 0);
    for group in ["team/a", "team"] {
        for (file, key) in [
            ("memory.stat", "nr_alloc"),
            ("memory.events", "oom"),
            ("gcgroup.stat", "nr_submitted_kernels"),
        ] {
            let count = mount.number(group, file, key);
            assert!(count < 1 << 40, "{group}/{file}: {key} {count}");
        }
    }
}

#[test]
fn claimed_memory_costs_sibling_at_most_claimers_limit() {
    next_to(|liar| {
        tell(liar, "set memory_current 0 2^40");
        tell(liar, "set memory_peak 0 2^40");
        tell(liar, "set process.memory_peak 0 2^40");
        assert_eq!(liar.ask("request 0 1"), "refused");
    });
}

#[test]
fn claimed_memory_of_other_devices_costs_no_more() {
    next_to(|liar| {
        tell(liar, "set memory_current 63 max");
        tell(liar, "set memory_peak 63 max");
        assert_eq!(liar.ask("request 63 1"), "refused");
    });
}

#[test]
fn claimed_swap_costs_sibling_at_most_claimers_limit() {
    next_to(|liar| {
        for word in ["swap_charged", "swap_current", "swap_pool", "swappable"] {
            for device in [0, 63] {
                tell(liar, &format!("set {word} {device} 2^60"));
            }
        }
    });
}

#[test]
fn claimed_counts_are_not_added_to_totals() {
    next_to(|liar| {
        for word in [
            "nr_alloc",
            "nr_free",
            "nr_alloc_fail",
            "nr_max",
            "nr_oom",
            "nr_ended",
            "graph_kernels",
        ] {
            for device in [0, 63] {
                tell(liar, &format!("set {word} {device} max"));
            }
        }
        for word in [
            "exited.0 0",
            "exited.1 63",
            "process.nr_oom 0",
            "process.nr_max 0",
        ] {
            tell(liar, &format!("set {word} max"));
        }
    });
}

#[test]
fn random_claims_cost_sibling_at_most_claimers_limit() {
    for seed in [11, 12] {
        next_to(|liar| tell(liar, &format!("random {seed} 200000")));
    }
}

#[test]
fn claim_not_confirmed_by_nvml_is_reported() {
    let mount = mount();
    let mut liar = liar(&mount, &[]);
    let mut honest = DriverShell::start(&mount);
    assert_eq!(honest.ask(&format!("alloc linear {}", 100 * MIB)), "ok 0");
    tell(&mut liar, "set memory_current 0 2^40");
    let found = || mount.read("", "unmanaged");
    wait_until("the false claim is reported", || {
        found().contains("reason=claims_more")
    });
    assert!(found().starts_with(&format!("{} gpu=0 uid={} ", liar.pid(), super::LIAR)));
    assert_eq!(found().lines().count(), 1);
    tell(&mut liar, "set memory_current 0 0");
    wait_until("the withdrawn claim is no longer listed", || found().is_empty());
}
