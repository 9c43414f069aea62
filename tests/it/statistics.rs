//! Tests that statistics count correctly.

use std::time::Instant;

use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::contended::batch;
use crate::driver::{Dir, DriverShell};

/// Returns the submitted, ended and pending kernels from one read.
fn kernels(dir: &Dir<'_>) -> [u64; 3] {
    let text = dir.read("gcgroup.stat");
    let mut numbers = text
        .lines()
        .map(|line| line.rsplit(' ').next().and_then(|number| number.parse().ok()));
    [(); 3].map(|()| numbers.next().flatten().expect("three numbers"))
}

#[test]
fn kernels_end_without_the_program_waiting_for_them() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    for round in 1..=5 {
        // The program only launches; no later call of it reports that the kernels have ended.
        assert_eq!(shell.ask("spin 100 20"), "ok");
        wait_until("no kernel is pending", || {
            let [submitted, _, pending] = kernels(&dir);
            assert_eq!(submitted, 20 * round);
            assert!(pending <= submitted);
            pending == 0
        });
        assert_eq!(kernels(&dir), [20 * round, 20 * round, 0]);
    }
}

#[test]
fn synchronising_program_has_no_pending_kernels_at_once() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    for round in 1..=5 {
        assert_eq!(shell.ask("spin 100 20"), "ok");
        assert_eq!(shell.ask("sync"), "ok");
        assert_eq!(kernels(&dir), [20 * round, 20 * round, 0]);
    }
}

#[test]
fn kernels_are_pending_while_they_run() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask("spin 20000 30"), "ok");
    let mut most = 0;
    wait_until("no kernel is pending", || {
        // Queries the driver before it reads the file.
        let is_idle = shell.ask("query") == "ok";
        let [submitted, ended, pending] = kernels(&dir);
        assert_eq!((submitted, ended + pending), (30, 30));
        most = most.max(pending);
        is_idle && pending == 0
    });
    assert!(most > 0);
}

#[test]
fn graph_launch_counts_once_with_all_its_kernels() {
    let mount = Mount::new();
    let mut command = mount.command(artifacts().load());
    command.args([
        "throughput",
        "--graph",
        "4",
        "--kernel-usec",
        "100",
        "--duration",
        "600",
    ]);
    let program = Governed::spawn(command);
    let dir = Dir::of(&mount, program.pid());
    wait_until("ten graphs are launched", || {
        dir.exists() && dir.key("compute.stat", "nr_graphs") >= 10
    });
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || dir.is_frozen());
    let graphs = dir.key("compute.stat", "nr_graphs");
    let [submitted, ..] = kernels(&dir);
    assert_eq!(submitted, 4 * graphs + dir.key("compute.stat", "nr_launches"));
    wait_until("every kernel is counted as completed", || {
        kernels(&dir) == [submitted, submitted, 0]
    });
}

#[test]
fn time_of_held_calls_is_counted_during_and_after_a_freeze() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let frozen = || ["nr_frozen", "frozen_usec"].map(|key| dir.key("compute.stat", key));
    assert_eq!(frozen(), [0, 0]);
    dir.write("compute.freeze", 1);
    let said = Instant::now();
    shell.tell("spin 100 1");
    wait_until("the launch waits at the gate", || frozen()[0] == 1);
    let held = Instant::now();
    wait_until("frozen_usec counts during the freeze", || frozen()[1] > 0);
    let least = held.elapsed();
    dir.write("compute.freeze", 0);
    assert_eq!(shell.answer(), "ok");
    let most = said.elapsed();
    wait_until("frozen_usec covers the whole freeze", || {
        let [times, usec] = frozen();
        assert!(times == 1 && u128::from(usec) <= most.as_micros());
        u128::from(usec) >= least.as_micros()
    });
    assert_eq!(dir.gpu(0).key("compute.stat", "frozen_usec"), frozen()[1]);
}

#[test]
fn expired_patience_passes_a_batch_and_is_counted() {
    let settings = tempfile::NamedTempFile::new().expect("a file");
    let text = "[compute]\npolicy = \"strict\"\nstarvation_percent = 0\npatience_usec = 25_000\n";
    std::fs::write(settings.path(), text).expect("the file is writable");
    let config = Config::default().arg("--config");
    let mount = Mount::with(config.arg(settings.path().to_str().expect("the path is UTF-8")));
    let _busy = batch(&mount, 0, 0);
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("compute.priority", 15);
    wait_until("a gate timeout is counted", || {
        assert_eq!(shell.ask("spin 100 1"), "ok");
        dir.key("compute.stat", "gate_timeouts") > 0
    });
    assert!(dir.key("compute.stat", "nr_throttled") > 0);
}
