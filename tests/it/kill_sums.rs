//! Tests at random that after kills of processes and daemons, in any order, the totals of groups and of the
//! root are the sums of the living.

use std::fs;

use support::{Config, Mount, wait_until};

use crate::driver::DriverShell;
use crate::supervise;

const MIB: u64 = 1 << 20;
const EACH: u64 = 24 * MIB;

/// Numbers by xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).expect("31 bits fit") % most
    }
}

fn start(mount: &Mount, group: &str) -> DriverShell {
    let mut shell = DriverShell::start(mount);
    mount.write(group, "gcgroup.procs", &shell.pid().to_string());
    assert_eq!(shell.ask(&format!("alloc linear {EACH}")), "ok 0");
    shell
}

fn current(mount: &Mount, directory: &str) -> u64 {
    mount.number(directory, "memory.current", "")
}

/// Waits until exactly these processes are governed, and their memory is that of the groups and of the root.
#[track_caller]
fn assert_sums(mount: &Mount, shells: &[(&str, DriverShell)]) {
    let all = shells.len() as u64 * EACH;
    wait_until("the living are governed, and nobody else", || {
        let procs = mount.read("", "gcgroup.procs");
        procs.lines().count() == shells.len()
            && shells.iter().all(|(_, shell)| {
                let own = shell.pid().to_string();
                procs.lines().any(|line| line == own)
            })
    });
    wait_until("the totals are the sums of the living", || {
        let of = |group: &str| shells.iter().filter(|(own, _)| own.starts_with(group)).count() as u64 * EACH;
        ["team", "team/a", "team/b"]
            .iter()
            .all(|group| current(mount, group) == of(group))
            && current(mount, "") == all
    });
    assert_eq!(mount.number("", "memory.stat", "linear"), all);
}

/// Kills processes and daemons in random order, with new processes in between.
fn kill_at_random(is_supervised: bool, seed: u64) {
    let config = match is_supervised {
        true => Config::default().arg("--supervise"),
        false => Config::default(),
    };
    let mut mount = Mount::with(config);
    fs::create_dir_all(mount.path().join("team/a")).expect("groups");
    fs::create_dir(mount.path().join("team/b")).expect("a group");
    mount.write("team", "memory.limit", &(1_u64 << 30).to_string());
    let mut random = Random(seed);
    let mut shells: Vec<(&str, DriverShell)> = Vec::new();
    for _ in 0..6 {
        while shells.len() < 6 {
            let group = ["team/a", "team/b"][random.below(2)];
            shells.push((group, start(&mount, group)));
        }
        let (nr_killed, is_daemon_first) = (1 + random.below(6), random.below(2) == 0);
        let doomed = shells.split_off(shells.len() - nr_killed);
        let kill_daemon = |mount: &mut Mount| match is_supervised {
            true => supervise::kill9(mount),
            false => mount.kill9(),
        };
        if is_daemon_first {
            kill_daemon(&mut mount);
        }
        doomed.into_iter().for_each(|(_, shell)| shell.kill9());
        if !is_daemon_first {
            kill_daemon(&mut mount);
        }
        if !is_supervised {
            mount.restart();
        }
        assert_sums(&mount, &shells);
    }
}

#[test]
fn totals_after_kills_of_processes_and_daemons_are_sums_of_the_living() {
    (1..4).for_each(|seed| kill_at_random(false, seed));
}

#[test]
fn totals_after_kills_under_a_supervisor_are_sums_of_the_living() {
    (1..4).for_each(|seed| kill_at_random(true, seed));
}
