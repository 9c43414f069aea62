//! Tests how groups share a GPU: each is one competitor among its siblings, by the simulator's truth.

use std::fs;
use std::process::{Child, Stdio};

use support::{Governed, Mount, artifacts, wait_until};

use crate::contended::{goes_on, long_batch, wait_for_used};

fn batch(mount: &Mount) -> Governed {
    mount.load(&long_batch())
}

/// Starts `number` batch jobs in a group, which is made.
fn tenant(mount: &Mount, group: &str, number: usize) -> Vec<Governed> {
    fs::create_dir(mount.path().join(group)).expect("root may create a group");
    let jobs: Vec<Governed> = (0..number).map(|_| batch(mount)).collect();
    for job in &jobs {
        mount.write(group, "gcgroup.procs", &job.pid().to_string());
    }
    jobs
}

/// Waits until the first jobs have `percent` of what all use, by the simulator's truth.
#[track_caller]
fn wait_for_share(mount: &Mount, [first, others]: [&[Governed]; 2], percent: u64) {
    let pids = |jobs: &[Governed]| jobs.iter().map(Governed::pid).collect();
    wait_for_used(mount, &[(pids(first), percent), (pids(others), 100 - percent)]);
}

#[test]
fn groups_of_different_sizes_share_equally() {
    let mount = Mount::new();
    let one = tenant(&mount, "one", 1);
    let many = tenant(&mount, "many", 4);
    goes_on(&mount, one[0].pid(), 0, 20_000);
    wait_for_share(&mount, [&one, &many], 50);
    // A process in the root is a competitor there.
    let root = [batch(&mount)];
    let others: Vec<Governed> = one.into_iter().chain(many).collect();
    wait_for_share(&mount, [&root, &others], 33);
    wait_until("the effective share is shown", || {
        mount.number(root[0].pid(), "compute.stat", "share_percent") == 33
    });
}

#[test]
fn nested_groups_and_priorities_divide_what_their_parent_gets() {
    let mount = Mount::new();
    let outer = tenant(&mount, "outer", 1);
    let inner = tenant(&mount, "outer/inner", 2);
    let other = tenant(&mount, "other", 1);
    let all: Vec<Governed> = outer.into_iter().chain(inner).collect();
    wait_for_share(&mount, [&other, &all], 50);
    wait_for_share(&mount, [&all[..1], &all[1..]], 50);
    mount.write("outer", "compute.priority", "7");
    wait_for_share(&mount, [&other, &all], 33);
    drop(all);
    goes_on(&mount, other[0].pid(), 0, 100_000);
}

#[test]
fn quota_of_a_group_is_divided_as_the_gpu_on_each_level() {
    let mount = Mount::new();
    let direct = tenant(&mount, "outer", 1);
    fs::create_dir(mount.path().join("outer/middle")).expect("root may create a group");
    let one = tenant(&mount, "outer/middle/one", 1);
    let two = tenant(&mount, "outer/middle/two", 2);
    let beside = tenant(&mount, "beside", 1);
    mount.write("outer", "compute.max", "40000 100000");
    let middle: Vec<Governed> = one.into_iter().chain(two).collect();
    wait_for_share(&mount, [&direct, &middle], 50);
    wait_for_share(&mount, [&middle[..1], &middle[1..]], 50);
    let all: Vec<Governed> = direct.into_iter().chain(middle).collect();
    wait_for_share(&mount, [&beside, &all], 60);
    // A quota within it bounds the lower level further.
    mount.write("outer/middle", "compute.max", "10000 100000");
    wait_for_share(&mount, [&all[..1], &all[1..]], 75);
    wait_for_share(&mount, [&beside, &all], 60);
}

#[test]
fn equal_groups_close_no_gate() {
    let mount = Mount::new();
    let tenants = ["one", "two"].map(|group| tenant(&mount, group, 1));
    let throttled = |job: &Governed| mount.number(job.pid(), "compute.stat", "nr_throttled");
    for jobs in &tenants {
        goes_on(&mount, jobs[0].pid(), 0, 50_000);
    }
    let before = tenants.each_ref().map(|jobs| throttled(&jobs[0]));
    for jobs in &tenants {
        goes_on(&mount, jobs[0].pid(), 0, 200_000);
    }
    let after = tenants.each_ref().map(|jobs| throttled(&jobs[0]));
    assert_eq!(before, after);
}

/// Has the tenant `act` until all have used two seconds of GPU time. Returns the part of `victim` in them,
/// percent.
fn share_beside(mount: &Mount, victim: &Governed, mut act: impl FnMut()) -> u64 {
    let truth = mount.truth();
    let both = || [truth.usage_usec(victim.pid(), 0), truth.busy_ns(0) / 1000];
    let before = both();
    let mut passed = [0, 0];
    wait_until("two seconds are used", || {
        act();
        let now = both();
        passed = [now[0] - before[0], now[1] - before[1]];
        passed[1] >= 2_000_000
    });
    100 * passed[0] / passed[1]
}

#[test]
fn tenant_that_freezes_its_processes_in_turn_has_its_part() {
    let mount = Mount::new();
    let victim = tenant(&mount, "victim", 1);
    let attackers = tenant(&mount, "attacker", 6);
    goes_on(&mount, victim[0].pid(), 0, 50_000);
    let mut at = 0;
    let share = share_beside(&mount, &victim[0], || {
        // One after the other runs while the work of the others drains.
        mount.write(attackers[at].pid(), "compute.freeze", "1");
        at = (at + 1) % attackers.len();
        mount.write(attackers[at].pid(), "compute.freeze", "0");
    });
    // It had 15 % where what draining processes use was forgiven.
    assert!(share >= 36, "{share} %");
}

#[test]
fn tenant_of_short_processes_has_its_part() {
    let mount = Mount::new();
    let victim = tenant(&mount, "victim", 1);
    fs::create_dir(mount.path().join("short")).expect("root may create a group");
    goes_on(&mount, victim[0].pid(), 0, 50_000);
    let start = || {
        let mut command = mount.gcgroupfs(&["run", "--group", "short", "--"]);
        command
            .arg(artifacts().load())
            .args(["launches", "2", "--kernel-usec", "8000"]);
        command.stdout(Stdio::null()).spawn().expect("the program starts")
    };
    let mut short: Vec<Child> = (0..6).map(|_| start()).collect();
    let mut nr_ended = 0;
    let share = share_beside(&mount, &victim[0], || {
        for one in &mut short {
            if one.try_wait().expect("a child").is_some() {
                *one = start();
                nr_ended += 1;
            }
        }
    });
    for one in &mut short {
        one.wait().expect("a child");
    }
    assert!(nr_ended > 20 && share >= 36, "{share} %, {nr_ended} have ended");
}

#[test]
fn jobs_moved_among_groups_that_come_and_go_all_progress() {
    const GROUPS: [&str; 4] = ["one", "one/two", "one/two/three", "four"];
    let mut mount = Mount::new();
    let jobs: Vec<Governed> = (0..4).map(|_| batch(&mount)).collect();
    let progress = |mount: &Mount, usec| {
        for job in &jobs {
            goes_on(mount, job.pid(), 0, usec);
        }
    };
    for round in 0..8 {
        for group in GROUPS {
            fs::create_dir(mount.path().join(group)).expect("root may create a group");
        }
        for (at, job) in jobs.iter().enumerate() {
            let group = GROUPS[(at * at + round) % GROUPS.len()];
            mount.write(group, "gcgroup.procs", &job.pid().to_string());
            mount.write(group, "compute.priority", &(6 + (at + round) % 4).to_string());
        }
        progress(&mount, 5_000);
        if round == 4 {
            mount.kill9();
            progress(&mount, 5_000);
            mount.restart();
            wait_until("the jobs have registered again", || {
                jobs.iter().all(|job| mount.governs(job.pid()))
            });
        }
        for job in &jobs {
            mount.write("", "gcgroup.procs", &job.pid().to_string());
        }
        for group in GROUPS.iter().rev() {
            fs::remove_dir(mount.path().join(group)).expect("the group is empty");
        }
    }
    progress(&mount, 20_000);
}
