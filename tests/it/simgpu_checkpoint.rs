//! Tests the simulated driver's checkpoint functions: states, errors and refusals, called for another
//! process.

use support::{Mount, wait_until};

use crate::driver::DriverShell;

const ILLEGAL_STATE: &str = "error 401";
const INVALID_VALUE: &str = "error 1";

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
