//! Tests processes that race for a group's last bytes while they are moved and killed, with the GPU's usage
//! monitored.

use std::sync::atomic::{AtomicBool, Ordering};

use support::{Mount, Truth, wait_until};

use super::{MIB, OUT_OF_MEMORY, alloc, count, join, member, mkdir};
use crate::driver::DriverShell;

/// Starts four processes in a group with this limit.
fn team_of_four(limit: u64) -> (Mount, Vec<DriverShell>) {
    let mount = Mount::new();
    mkdir(&mount, "team");
    mount.write("team", "memory.limit", &limit.to_string());
    let shells = (0..4).map(|_| member(&mount, "team")).collect();
    (mount, shells)
}

/// Makes all processes allocate blocks of `bytes` with four threads each until no room is left.
fn race(shells: &mut [DriverShell], bytes: u64) {
    for shell in shells {
        shell.tell(&format!("race 4 {bytes}"));
    }
}

/// Runs `body` while a monitor asserts that at most `limit` bytes of a GPU are in use.
fn never_more_than<T>(mount: &mut Mount, limit: u64, body: impl FnOnce(&mut Mount) -> T) -> T {
    let (is_over, truth) = (AtomicBool::new(false), Truth::of(&mount.simgpu_dir()));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut highest = 0;
            while !is_over.load(Ordering::Relaxed) {
                highest = truth.used_at_once(0).unwrap_or(0).max(highest);
                std::thread::yield_now();
            }
            highest
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(mount)));
        is_over.store(true, Ordering::Relaxed);
        let highest = watcher.join().expect("the watcher ends without a panic");
        assert!(highest <= limit, "{highest} bytes were in use");
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn racing_members_fill_limit_and_never_exceed_it() {
    const BLOCK: u64 = 64 << 10;
    const LIMIT: u64 = 200 * MIB;
    let (mut mount, mut shells) = team_of_four(LIMIT);
    let got: u64 = never_more_than(&mut mount, LIMIT, |_| {
        race(&mut shells, BLOCK);
        shells
            .iter_mut()
            .map(|shell| count(&shell.answer(), "raced"))
            .sum()
    });
    assert_eq!(got * BLOCK, LIMIT);
    assert_eq!(mount.number("team", "memory.current", ""), LIMIT);
    let oom = mount.number("team", "memory.events", "oom");
    assert!(oom >= 16, "some threads were never refused: {oom}");
    for shell in &mut shells {
        assert_eq!(alloc(shell, 1), OUT_OF_MEMORY);
    }
}

#[test]
fn short_lived_members_never_exceed_limit_and_release_all() {
    const LIMIT: u64 = 40 * MIB;
    let mut mount = Mount::new();
    mkdir(&mount, "team");
    mkdir(&mount, "team/a");
    mount.write("team", "memory.limit", &LIMIT.to_string());
    mount.write("team/a", "memory.limit", &(LIMIT / 2).to_string());
    let mut shells: Vec<_> = ["team", "team/a", "team", "team/a"]
        .iter()
        .map(|group| member(&mount, group))
        .collect();
    never_more_than(&mut mount, LIMIT, |mount| {
        for shell in &mut shells {
            shell.tell(&format!("shuffle 1500 {}", 12 * MIB));
        }
        // The processes move between groups meanwhile.
        for round in 0..40 {
            let shell = &shells[round % 4];
            join(mount, ["team", "team/a"][(round / 4) % 2], shell);
        }
        for shell in &mut shells {
            assert!(count(&shell.answer(), "shuffled") > 0);
        }
    });
    for (shell, group) in shells.iter_mut().zip(["team", "team/a", "team/a", "team"]) {
        join(&mount, group, shell);
        let limit = if group == "team" { LIMIT } else { LIMIT / 2 };
        assert_eq!(alloc(shell, limit + 1), OUT_OF_MEMORY);
        assert_eq!(alloc(shell, limit), "ok 0");
        assert_eq!(shell.ask("free 0"), "ok");
    }
}

#[test]
fn pools_and_physical_memory_share_a_group_limit() {
    const LIMIT: u64 = 256 * MIB;
    let (mut mount, mut shells) = team_of_four(LIMIT);
    let got: u64 = never_more_than(&mut mount, LIMIT, |_| {
        let mut got = 0;
        for round in 0..4 {
            for kind in ["pool", "async", "vmm"] {
                for shell in &mut shells {
                    shell.tell(&format!("alloc {kind} {}", 32 * MIB));
                }
                let answers: Vec<_> = shells.iter_mut().map(DriverShell::answer).collect();
                got += answers.iter().filter(|answer| answer.starts_with("ok")).count() as u64;
                assert!(round > 0 || kind != "pool" || got == 4, "{answers:?}");
            }
        }
        got
    });
    assert_eq!(got * 32 * MIB, LIMIT);
    assert_eq!(mount.number("team", "memory.current", ""), LIMIT);
}

#[test]
fn member_killed_in_race_releases_exactly_its_charge() {
    const BLOCK: u64 = 64 << 10;
    const LIMIT: u64 = 100 * MIB;
    let (mut mount, mut shells) = team_of_four(LIMIT);
    let mut last = member(&mount, "team");
    never_more_than(&mut mount, LIMIT, |mount| {
        race(&mut shells, BLOCK);
        wait_until("the members have charged a third of the limit", || {
            mount.number("team", "memory.current", "") > LIMIT / 3
        });
        shells.drain(..2).for_each(DriverShell::kill9);
        let left: u64 = shells
            .iter_mut()
            .map(|shell| count(&shell.answer(), "raced"))
            .sum();
        assert!(left * BLOCK <= LIMIT);
        wait_until("the killed processes have left the group", || {
            mount.read("team", "gcgroup.procs").lines().count() == 3
        });
        let filled = count(&last.ask(&format!("race 2 {BLOCK}")), "raced");
        assert_eq!((left + filled) * BLOCK, LIMIT);
    });
}

#[test]
fn limit_is_exact_when_daemon_is_killed_in_race() {
    const BLOCK: u64 = 64 << 10;
    const LIMIT: u64 = 200 * MIB;
    let (mut mount, mut shells) = team_of_four(LIMIT);
    let got: u64 = never_more_than(&mut mount, LIMIT, |mount| {
        race(&mut shells, BLOCK);
        for part in [5, 3] {
            wait_until("the members have charged a part of the limit", || {
                mount.number("team", "memory.current", "") > LIMIT / part
            });
            mount.kill9();
            mount.restart();
        }
        shells
            .iter_mut()
            .map(|shell| count(&shell.answer(), "raced"))
            .sum()
    });
    assert_eq!(got * BLOCK, LIMIT, "an allocation was refused below the limit");
    wait_until("the charges of all members are restored", || {
        mount.number("team", "memory.current", "") == LIMIT
    });
}
