//! Tests that held work is executed completely and in order, however it was submitted, and that processes of
//! higher priority get more of the GPU.

use support::{Config, Governed, Mount, wait_until};

use crate::contended::{batch, wait_for_ratio};

/// Ways to submit work, with the arguments that set the kernels' duration.
const WAYS: [(&str, &[&str]); 8] = [
    ("many streams", &["streams", "--chains", "24", "--steps", "4"]),
    ("per-thread default streams", &["per-thread", "--steps", "15"]),
    ("the legacy default stream", &["legacy", "--steps", "40"]),
    ("several contexts", &["contexts", "--steps", "15"]),
    ("many threads", &["per-thread", "--chains", "16", "--steps", "4"]),
    ("stream capture", &["capture", "--steps", "40"]),
    ("graph launches", &["graphs", "--steps", "20"]),
    (
        "long kernels",
        &["streams", "--steps", "4", "--kernel-usec", "5000"],
    ),
];

/// Starts a way of submitting with a priority from the start; the program stays after its work is complete.
#[track_caller]
fn ordered(mount: &Mount, priority: u32, arguments: &[&str]) -> Governed {
    let mut command = mount.command(support::artifacts().load());
    command
        .env("GCGROUP_PRIORITY", priority.to_string())
        .args(["order", "--hold"])
        .args(arguments);
    let mut program = Governed::spawn(command);
    program.expect("in order");
    program
}

/// Lets the program exit; returns the number of kernels it launched.
#[track_caller]
fn end(program: &mut Governed) -> u64 {
    let lines = program.finish();
    let last = lines.last().expect("a result");
    let result: serde_json::Value = serde_json::from_str(last).expect("JSON");
    result["kernels"].as_u64().expect("a number")
}

#[test]
fn work_behind_a_higher_priority_completes_in_order() {
    let mount = Mount::new();
    let _busy = batch(&mount, 0, 4);
    for (what, arguments) in WAYS {
        // A program that finishes before its turn does not test this, so it is repeated.
        wait_until(&format!("the launches are throttled: {what}"), || {
            let mut program = ordered(&mount, 7, arguments);
            let pid = program.pid();
            let throttled = mount.number(pid, "compute.stat", "nr_throttled");
            let submitted = mount.number(pid, "gcgroup.stat", "nr_submitted_kernels");
            let begun = mount.truth().nr_launches(pid, 0);
            // A captured launch runs nothing and is not counted.
            let kernels = end(&mut program);
            assert_eq!(submitted, kernels, "{what}: submitted kernels");
            assert_eq!(begun, kernels, "{what}: started kernels");
            throttled > 0
        });
    }
}

#[test]
fn work_within_a_quota_completes_in_order() {
    let mount = Mount::new();
    for (what, arguments) in WAYS {
        let mut command = mount.command(support::artifacts().load());
        command.args(["order", "--hold"]).args(arguments);
        let mut program = Governed::spawn(command);
        program.expect("ready");
        mount.write(program.pid(), "compute.max", "10000 100000");
        program.expect("in order");
        let begun = mount.truth().nr_launches(program.pid(), 0);
        assert_eq!(end(&mut program), begun, "{what}");
    }
}

#[test]
fn higher_priority_gets_more_of_the_gpu() {
    for policy in ["weighted", "strict"] {
        let mount = Mount::with(Config::default().arg("--policy").arg(policy));
        let jobs = [batch(&mount, 0, 8), batch(&mount, 0, 8)];
        let pids = jobs.each_ref().map(Governed::pid);
        let rank = |ranks: [u32; 2]| {
            for (pid, rank) in pids.iter().zip(ranks) {
                mount.write(pid, "compute.priority", &rank.to_string());
            }
        };
        rank([4, 8]);
        wait_for_ratio(&mount, pids, |ratio| ratio > 2.0);
        rank([8, 4]);
        wait_for_ratio(&mount, pids, |ratio| ratio < 0.5);
    }
}

#[test]
fn equal_priorities_are_not_throttled() {
    let mount = Mount::new();
    // Both begin with the default priority, so that they never differ in between.
    let jobs = [batch(&mount, 0, 8), batch(&mount, 0, 8)];
    let pids = jobs.each_ref().map(Governed::pid);
    wait_for_ratio(&mount, pids, |ratio| (0.1..10.0).contains(&ratio));
    for pid in pids {
        assert_eq!(mount.number(pid, "compute.stat", "nr_throttled"), 0);
    }
}

#[test]
fn held_job_resumes_when_the_other_ends() {
    let mount = Mount::new();
    let (first, second) = (batch(&mount, 0, 0), batch(&mount, 0, 15));
    let held = || mount.number(second.pid(), "compute.stat", "nr_throttled");
    let before = held();
    wait_until("the low-priority job is throttled", || held() > before);
    drop(first);
    let truth = mount.truth();
    let usage = || truth.usage_usec(second.pid(), 0);
    let goal = usage() + 500_000;
    wait_until("the low-priority job has used the GPU", || usage() >= goal);
    // A process that is held now would be held by one that has exited.
    let before = held();
    let goal = usage() + 100_000;
    wait_until("the low-priority job still uses the GPU", || usage() >= goal);
    assert_eq!(held(), before);
}
