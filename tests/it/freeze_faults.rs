//! Tests freezes while driver calls of the hook keep failing: a freeze completes or reports the reason.

use support::{Mount, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};

/// Error code that the simulated driver never returns by itself. It does not imply that submitted work has
/// ended.
const FAULT: u32 = 46;

/// Starts a driver shell with injected faults.
#[track_caller]
fn start(mount: &Mount, faults: &str) -> DriverShell {
    let mut command = mount.command(driver_shell());
    command.env("SIMGPU_FAULTS", faults);
    DriverShell::spawn(command)
}

/// Freezes a busy process, waits until it is drained, and thaws it.
#[track_caller]
fn is_frozen_when_work_has_ended(faults: &str) {
    let mount = Mount::new();
    let mut shell = start(&mount, faults);
    let dir = Dir::of(&mount, shell.pid());
    // Half a second of work.
    assert_eq!(shell.ask("spin 10000 50"), "ok", "{faults}");
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || {
        let is_frozen = dir.is_frozen();
        assert!(
            !is_frozen || mount.truth().nr_launches(shell.pid(), 0) == 50,
            "{faults}: the process is frozen before all kernels have started"
        );
        is_frozen
    });
    assert!(mount.truth().usage_usec(shell.pid(), 0) >= 450_000, "{faults}");
    assert!(!dir.read("gcgroup.events").contains("drain_error"), "{faults}");
    dir.write("compute.freeze", 0);
    assert_eq!(shell.ask("spin 1 1"), "ok", "{faults}");
}

#[test]
fn freeze_completes_while_event_calls_fail() {
    for name in [
        "cuEventCreate",
        "cuEventQuery",
        "cuEventRecord",
        "cuCtxRecordEvent",
    ] {
        is_frozen_when_work_has_ended(&format!("{name}={FAULT}"));
    }
}

#[test]
fn freeze_completes_while_all_event_calls_fail() {
    is_frozen_when_work_has_ended(&format!("cuEvent*={FAULT},cuCtxRecordEvent={FAULT}"));
}

#[test]
fn freeze_completes_on_old_driver_while_event_calls_fail() {
    for name in ["cuEventCreate", "cuEventQuery", "cuEventRecord"] {
        is_frozen_when_work_has_ended(&format!("cuCtxRecordEvent=500,{name}={FAULT}"));
    }
}

#[test]
fn freeze_completes_while_event_calls_lack_memory() {
    is_frozen_when_work_has_ended("cuEventCreate=2");
}

#[test]
fn freeze_completes_when_queries_report_a_dead_context() {
    for error in [214, 700, 719] {
        let mount = Mount::new();
        let mut shell = start(&mount, &format!("cuEventQuery={error}"));
        let dir = Dir::of(&mount, shell.pid());
        assert_eq!(shell.ask("spin 1 3"), "ok");
        dir.freeze();
    }
}

/// Tests a driver on which neither event queries nor marker writes work.
#[test]
fn freeze_that_cannot_complete_reports_the_drivers_error() {
    let mount = Mount::new();
    let faults = format!("cuEventQuery={FAULT},cuStreamWriteValue32*={FAULT}");
    let mut shell = start(&mount, &faults);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask("spin 1 3"), "ok");
    let error = |dir: &Dir<'_>| {
        let events = dir.read("gcgroup.events");
        let line = events.lines().find_map(|line| line.strip_prefix("drain_error "));
        line.map(|error| error.parse::<u32>().expect("a number"))
    };
    assert_eq!(error(&dir), None);
    dir.write("compute.freeze", 1);
    wait_until("gcgroup.events shows the drain error", || {
        error(&dir) == Some(FAULT)
    });
    assert_eq!(error(&dir.gpu(0)), Some(FAULT));
    assert!(!dir.is_frozen());
    let line = format!("{} cannot tell whether its frozen work has ended", shell.pid());
    wait_until("the log reports the drain error", || mount.log().contains(&line));
    // The launch is held and then released.
    shell.tell("spin 1 1");
    wait_until("the launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") == 1
    });
    dir.write("compute.freeze", 0);
    assert_eq!(shell.answer(), "ok");
    wait_until("gcgroup.events shows no drain error", || error(&dir).is_none());
}

#[test]
fn freeze_completes_once_the_driver_recovers() {
    let mount = Mount::new();
    // Event queries fail 200 times, marker writes always.
    let queries: Vec<String> = (1..=200).map(|n| format!("cuEventQuery={FAULT}@{n}")).collect();
    let faults = format!("{},cuStreamWriteValue32*={FAULT}", queries.join(","));
    let mut shell = start(&mount, &faults);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask("spin 1 3"), "ok");
    dir.freeze();
    assert!(!dir.read("gcgroup.events").contains("drain_error"));
}
