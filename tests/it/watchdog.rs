//! Tests that a hanging test is ended and reports where it hangs.

use std::fs;

use support::{Mount, ignored_test, stop};
use tempfile::TempDir;

#[test]
#[ignore = "hangs: what another test has hang"]
fn hangs() {
    let mount = Mount::new();
    stop(mount.daemon().expect("the daemon runs"));
    // The stopped daemon never answers this read.
    let read = fs::read(mount.file("", "gcgroup.stat"));
    panic!("the stopped daemon answered: {read:?}");
}

#[test]
fn test_hanging_in_the_kernel_is_ended_and_named() {
    // Builds the artifacts first, so that the build does not count towards the time limit.
    support::artifacts();
    let directory = TempDir::new().expect("a temporary directory");
    let output = ignored_test("watchdog::hangs", directory.path())
        // Seconds; longer than a daemon takes to start.
        .env("GCGROUP_TEST_PATIENCE", "5")
        .output()
        .expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(101), "{said}");
    assert!(said.contains("watchdog::hangs hangs"), "{said}");
    assert!(said.contains("request_wait_answer"), "{said}");
    assert!(said.contains("gcgroupfs mount"), "{said}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc(5)");
    let point = directory.path().to_string_lossy().into_owned();
    assert!(!mounts.contains(&point), "{mounts}");
}
