//! Tests that counts of processes stay in the totals of their groups and of the root after processes and
//! daemons end.

use std::fs;
use std::time::Instant;

use nix::unistd::Pid;
use support::{Config, Mount, wait_for, wait_until};

use crate::driver::DriverShell;

const MIB: u64 = 1 << 20;

/// Starts a governed process that has made `nr_alloc` allocations.
#[track_caller]
fn counting(mount: &Mount, nr_alloc: u64) -> DriverShell {
    let mut shell = DriverShell::start(mount);
    count(&mut shell, nr_alloc);
    shell
}

#[track_caller]
fn count(shell: &mut DriverShell, nr_alloc: u64) {
    for _ in 0..nr_alloc {
        assert!(shell.ask(&format!("alloc linear {MIB}")).starts_with("ok "));
    }
}

fn nr_alloc(mount: &Mount, directory: &str) -> u64 {
    mount.number(directory, "memory.stat", "nr_alloc")
}

/// Waits until the journal contains the process's number of allocations.
#[track_caller]
fn wait_until_written(mount: &Mount, shell: &DriverShell, nr_alloc: u64) {
    let file = mount.state_dir().join("settings.jsonl");
    wait_until("the journal contains the count of allocations", || {
        let text = fs::read_to_string(&file).expect("the journal exists");
        let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap_or_default();
        let last = text.lines().rfind(|line| parse(line)["pid"] == shell.pid());
        // A line counts once the first line has its number.
        let number = text
            .lines()
            .next()
            .and_then(|line| parse(line)["last"].as_str()?.parse().ok());
        let last = last.map(parse).unwrap_or_default();
        last["settings"]["counts"][""]["nr_alloc"] == nr_alloc && last["n"].as_u64() <= number
    });
}

/// Stops the process, so that it does not register with the next daemon.
#[track_caller]
fn stop(shell: &DriverShell) {
    support::stop(Pid::from_raw(shell.pid()));
}

#[test]
fn members_ending_without_daemon_keep_group_totals() {
    let mut mount = Mount::new();
    fs::create_dir_all(mount.path().join("team/a")).expect("groups");
    let shells = [1, 1].map(|count| counting(&mount, count));
    let [early, late] = shells.map(|mut shell| {
        mount.write("team/a", "gcgroup.procs", &shell.pid().to_string());
        count(&mut shell, 3);
        shell
    });
    assert_eq!(nr_alloc(&mount, "team"), 6);
    assert_eq!(
        nr_alloc(&mount, ""),
        8,
        "the root lost the counts from before the group"
    );
    wait_until_written(&mount, &early, 4);
    wait_until_written(&mount, &late, 4);
    stop(&late);
    mount.kill9();
    early.kill9();
    mount.restart();
    late.kill9();
    wait_until("the end of the stopped process is noticed", || {
        nr_alloc(&mount, "team") == 6
    });
    for _ in 0..2 {
        mount.kill9();
        mount.restart();
        assert_eq!(
            nr_alloc(&mount, "team"),
            6,
            "the ended processes are not counted exactly once"
        );
        assert_eq!(nr_alloc(&mount, "team/a/0"), 6);
        assert_eq!(nr_alloc(&mount, ""), 8);
    }
}

#[test]
fn processes_without_group_keep_root_totals() {
    let mut mount = Mount::new();
    let [mut gone, early, stays] = [1, 2, 4].map(|count| counting(&mount, count));
    assert_eq!(gone.ask("spin 5 3"), "ok");
    let launches = |mount: &Mount| mount.number("", "compute.stat", "nr_launches");
    let submitted = |mount: &Mount| mount.number("", "gcgroup.stat", "nr_submitted_kernels:");
    let is_there = |mount: &Mount, shell: &DriverShell| mount.path().join(shell.pid().to_string()).exists();
    gone.quit();
    wait_until("the ended process is listed in exited", || {
        !mount.read("", "exited").is_empty()
    });
    wait_until_written(&mount, &early, 2);
    mount.kill9();
    early.kill9();
    mount.restart();
    wait_until("the surviving process has registered again", || {
        is_there(&mount, &stays)
    });
    assert_eq!(nr_alloc(&mount, ""), 7);
    assert_eq!((launches(&mount), submitted(&mount)), (3, 3));
    wait_until_written(&mount, &stays, 4);
    mount.kill9();
    mount.restart();
    wait_until("the process has registered with the third daemon", || {
        is_there(&mount, &stays)
    });
    assert_eq!(
        nr_alloc(&mount, ""),
        7,
        "the process that registered again is counted twice"
    );
    stays.quit();
    wait_until("the last process is no longer governed", || {
        mount.read("", "gcgroup.procs").is_empty()
    });
    mount.kill9();
    mount.restart();
    assert_eq!(nr_alloc(&mount, ""), 7, "the ended process is counted twice");
    assert_eq!((launches(&mount), submitted(&mount)), (3, 3));
}

#[test]
fn exec_restarts_counts_and_totals_continue() {
    let mut mount = Mount::new();
    fs::create_dir(mount.path().join("team")).expect("a group");
    let mut shell = DriverShell::start(&mount);
    mount.write("team", "gcgroup.procs", &shell.pid().to_string());
    count(&mut shell, 3);
    shell.exec();
    count(&mut shell, 2);
    let totals = |mount: &Mount| ["team", ""].map(|directory| nr_alloc(mount, directory));
    assert_eq!(totals(&mount), [5, 5]);
    wait_until_written(&mount, &shell, 2);
    mount.kill9();
    shell.exec();
    count(&mut shell, 1);
    mount.restart();
    let own = shell.pid().to_string();
    wait_until("the process has registered again", || {
        mount.read("team", "gcgroup.procs") == own
    });
    assert_eq!(
        totals(&mount),
        [6, 6],
        "the counts of the earlier program were lost"
    );
    wait_until_written(&mount, &shell, 1);
    mount.kill9();
    mount.restart();
    wait_until("the process has registered with the third daemon", || {
        mount.read("team", "gcgroup.procs") == own
    });
    assert_eq!(totals(&mount), [6, 6]);
}

#[test]
fn memory_over_time_and_gpu_time_are_told_at_the_end() {
    const BYTES: u64 = 64 << 20;
    let mount = Mount::with(Config::default().arg("--log").arg("info"));
    let began = Instant::now();
    let mut shell = DriverShell::start(&mount);
    let pid = shell.pid();
    assert_eq!(shell.ask(&format!("alloc linear {BYTES}")), "ok 0");
    let allocated = Instant::now();
    // Charges that are sampled at the daemon's own times, not by a read.
    let context = mount.number(pid, "memory.current", "") - BYTES;
    let held = allocated.elapsed();
    // GPU time is measured under a quota.
    mount.write(pid, "compute.max", "90000 100000");
    shell.tell("spin 20000 1");
    assert_eq!(shell.answer(), "ok");
    let used = || mount.number(pid, "compute.stat", "usage_usec");
    // Its end is found by polling: the middle between two polls is charged.
    wait_until("the GPU time is charged", || used() >= 10_000);
    let used = used();
    shell.kill9();
    let line = wait_for("the process is listed in exited", || {
        let exited = mount.read("", "exited");
        let mut lines = exited.lines();
        lines
            .find(|line| line.starts_with(&format!("{pid} ")))
            .map(str::to_owned)
    });
    let total = began.elapsed();
    let value = |key: &str| -> f64 {
        let value = line.split(' ').find_map(|pair| pair.strip_prefix(key));
        value.and_then(|value| value.parse().ok()).expect("a number")
    };
    assert!(value("compute.usage_usec=") >= used as f64, "{line}: {used}");
    let value = value("memory.byte_seconds=");
    // Between two samples the mean is taken, so at least half of what it held at the end counts.
    assert!(
        value >= (BYTES as f64 * held.as_secs_f64() / 2.0).floor(),
        "{line}: {held:?}"
    );
    assert!(
        value <= (BYTES + context) as f64 * total.as_secs_f64(),
        "{line}: {total:?}"
    );
    wait_until("the end is logged", || {
        mount.log().contains(&format!("ended: {line}"))
    });
}
