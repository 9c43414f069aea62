//! Tests the simulated driver's checkpoint functions: states, errors and refusals, called for another
//! process.

use support::{Config, Mount, wait_until};

use crate::driver::DriverShell;

const ILLEGAL_STATE: &str = "error 401";
const INVALID_VALUE: &str = "error 1";
const OUT_OF_MEMORY: &str = "error 2";
const NOT_SUPPORTED: &str = "error 801";

#[test]
fn another_process_is_locked_moved_and_unlocked_in_order() {
    let mount = Mount::new();
    let mut caller = DriverShell::start_bare(&mount);
    let mut other = DriverShell::start_bare(&mount);
    assert_eq!(other.ask("alloc linear 1048576"), "ok 0");
    let pid = other.pid();
    let mut call = |what: &str| caller.ask(&format!("process {what} {pid}"));
    assert_eq!(call("GetState"), "ok 0");
    for what in ["Checkpoint", "Restore", "Unlock"] {
        assert_eq!(call(what), ILLEGAL_STATE, "{what} of a running process");
    }
    assert_eq!(call("Lock"), "ok 0");
    assert_eq!(call("GetState"), "ok 1");
    for what in ["Lock", "Restore"] {
        assert_eq!(call(what), ILLEGAL_STATE, "{what} of a locked process");
    }
    let held = mount.truth().used(pid, 0);
    assert!(held >= 1 << 20);
    assert_eq!(call("Checkpoint"), "ok 0");
    assert_eq!(call("GetState"), "ok 2");
    assert_eq!(mount.truth().used(pid, 0), 0);
    for what in ["Lock", "Checkpoint", "Unlock"] {
        assert_eq!(call(what), ILLEGAL_STATE, "{what} of a checkpointed process");
    }
    // Its driver calls wait.
    other.tell("spin 5 1");
    assert_eq!(call("Restore"), "ok 0");
    assert_eq!(mount.truth().used(pid, 0), held);
    assert_eq!(mount.truth().nr_launches(pid, 0), 0);
    assert_eq!(call("Unlock"), "ok 0");
    assert_eq!(other.answer(), "ok");
    assert_eq!(call("GetState"), "ok 0");
    assert!(call("GetRestoreThreadId").starts_with("ok "));
    other.kill9();
    assert_eq!(call("GetState"), INVALID_VALUE);
}

#[test]
fn lock_of_a_busy_process_times_out_and_leaves_it_running() {
    let mount = Mount::new();
    let mut caller = DriverShell::start_bare(&mount);
    let mut other = DriverShell::start_bare(&mount);
    // A kernel of an hour.
    other.tell("spin 3600000000 1");
    wait_until("the kernel runs", || {
        mount.truth().nr_launches(other.pid(), 0) == 1
    });
    let pid = other.pid();
    assert_eq!(caller.ask(&format!("process Lock {pid}")), "error 600");
    assert_eq!(caller.ask(&format!("process GetState {pid}")), "ok 0");
    other.kill9();
}

/// Returns a machine with three devices, a caller, and another process with 1 MiB that is checkpointed.
#[track_caller]
fn checkpointed(config: Config) -> (Mount, DriverShell, DriverShell) {
    let mount = Mount::with(config.env("SIMGPU_DEVICES", 3));
    let mut caller = DriverShell::start_bare(&mount);
    let mut other = DriverShell::start_bare(&mount);
    assert_eq!(other.ask("alloc linear 1048576"), "ok 0");
    for what in ["Lock", "Checkpoint"] {
        assert_eq!(caller.ask(&format!("process {what} {}", other.pid())), "ok 0");
    }
    (mount, caller, other)
}

#[test]
fn process_is_restored_on_another_device_and_back() {
    let (mount, mut caller, mut other) = checkpointed(Config::default());
    let pid = other.pid();
    let mut restored = |pairs: &str| {
        assert_eq!(caller.ask(&format!("restore {pid} {pairs}")), "ok");
        assert_eq!(caller.ask(&format!("process Unlock {pid}")), "ok 0");
        let shown = other.ask("uuid");
        assert_eq!(other.ask("alloc linear 1048576").split(' ').next(), Some("ok"));
        assert_eq!(other.ask("spin 5 1"), "ok");
        assert_eq!(other.ask("sync"), "ok");
        for what in ["Lock", "Checkpoint"] {
            assert_eq!(caller.ask(&format!("process {what} {pid}")), "ok 0");
        }
        shown
    };
    assert_eq!(restored("0:2,1:1,2:0"), "ok 2");
    assert_eq!(
        [0, 1, 2].map(|gpu| mount.truth().nr_launches(pid, gpu)),
        [0, 0, 1]
    );
    assert_eq!(restored("0:2,1:0,2:1"), "ok 1");
    assert_eq!(restored("0:0,1:1,2:2"), "ok 1");
    assert_eq!(restored("0:2,1:0,2:1"), "ok 0");
    assert_eq!(
        [0, 1, 2].map(|gpu| mount.truth().nr_launches(pid, gpu)),
        [1, 2, 1]
    );
    assert_eq!(caller.ask(&format!("process Restore {pid}")), "ok 0");
    assert!(mount.truth().used(pid, 0) >= 5 << 20);
    assert_eq!([1, 2].map(|gpu| mount.truth().used(pid, gpu)), [0, 0]);
}

#[test]
fn restore_on_devices_that_cannot_take_its_place_changes_nothing() {
    let (_mount, mut caller, other) = checkpointed(Config::default().env("SIMGPU_QUIRKS", "two-chips"));
    let pid = other.pid();
    for (pairs, error) in [
        ("0:2", INVALID_VALUE),
        ("0:2,1:1", INVALID_VALUE),
        ("0:2,1:1,2:2", INVALID_VALUE),
        ("0:2,0:1,2:0", INVALID_VALUE),
        ("0:2,1:1,2:0,2:0", INVALID_VALUE),
        ("0:9,1:1,2:0", INVALID_VALUE),
        ("9:0,1:1,2:2", INVALID_VALUE),
        ("0:1,1:0,2:2", NOT_SUPPORTED),
    ] {
        assert_eq!(caller.ask(&format!("restore {pid} {pairs}")), error, "{pairs}");
        assert_eq!(caller.ask(&format!("process GetState {pid}")), "ok 2", "{pairs}");
    }
    assert_eq!(caller.ask(&format!("restore {pid} 0:2,1:1,2:0")), "ok");
}

#[test]
fn restore_on_a_full_device_or_by_an_older_driver_is_refused() {
    let (mount, mut caller, other) = checkpointed(Config::default().env("SIMGPU_MEMORY", "1G"));
    let pid = other.pid();
    assert_eq!(caller.ask("gpu 1"), "ok");
    let free = caller.ask("meminfo");
    let free: u64 = free
        .split(' ')
        .next()
        .and_then(|free| free.parse().ok())
        .expect("bytes");
    assert_eq!(caller.ask(&format!("alloc linear {}", free - (1 << 19))), "ok 0");
    assert_eq!(caller.ask(&format!("restore {pid} 0:1,1:0,2:2")), OUT_OF_MEMORY);
    assert_eq!(mount.truth().used(pid, 1), 0);
    assert_eq!(caller.ask(&format!("restore {pid} 0:2,1:1,2:0")), "ok");
    assert!(mount.truth().used(pid, 2) > 0);

    let (_old, mut caller, other) = checkpointed(Config::default().env("SIMGPU_DRIVER", "12.8"));
    let pid = other.pid();
    assert_eq!(caller.ask(&format!("restore {pid} 0:2,1:1,2:0")), INVALID_VALUE);
    assert_eq!(caller.ask(&format!("process Restore {pid}")), "ok 0");
}
