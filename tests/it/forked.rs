//! Tests that children of a process that forks cannot affect the parent through memory shared with the
//! daemon.

use support::Mount;

use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;

/// Runs a child as another user that overwrites all memory it can reach; the parent runs as root.
fn child_writes_where_the_block_was(how: &str) {
    let command = format!("vandal {how}");
    let mount = Mount::new();
    let mut bare = DriverShell::start_bare(&mount);
    assert_eq!(bare.ask("spin 1 1"), "ok");
    let answer = bare.ask(&command);
    let status = answer.rsplit(' ').next().expect("a status");
    assert_eq!(
        status != "0",
        how.starts_with("fork"),
        "the driver's answer to a child of an initialised process"
    );

    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask(&format!("alloc linear {MIB}")), "ok 0");
    assert_eq!(shell.ask("spin 1 3"), "ok");
    assert_eq!(
        shell.ask(&command),
        format!("0 0 {status}"),
        "the child used the parent's usage block or another answer"
    );
    assert_eq!(dir.number("memory.current"), MIB);
    assert_eq!(dir.number("memory.peak"), MIB);
    assert_eq!(mount.number("", "memory.current", ""), MIB);
    assert_eq!(dir.launches(), 3);
    // On the thread that forked, also through a gate that closes and opens.
    assert_eq!(shell.ask("spin 1 1"), "ok");
    dir.freeze();
    dir.write("compute.freeze", 0);
    assert_eq!(shell.ask("spin 1 1"), "ok");
    assert_eq!(shell.ask(&format!("alloc linear {MIB}")), "ok 1");
    assert_eq!(dir.number("memory.current"), 2 * MIB);
    assert_eq!(dir.launches(), 5);
    shell.quit();
}

#[test]
fn forked_child_cannot_write_parents_block() {
    child_writes_where_the_block_was("fork files");
}

#[test]
fn launches_work_with_an_overwritten_usage_block() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask("spin 1 1"), "ok");
    // No fork handler ran in this child, so it still has the block's descriptor.
    let answer = shell.ask("vandal clone files");
    assert!(answer.starts_with("0 1 "), "{answer}");
    assert_eq!(shell.ask("spin 1 100"), "ok");
    assert_eq!(shell.ask("busy 8 100"), "ok", "launches of new threads failed");
    assert_eq!(shell.ask("sync"), "ok");
    shell.quit();
}

#[test]
fn raw_clone_child_cannot_write_parents_block() {
    child_writes_where_the_block_was("clone");
}

#[test]
fn raw_clone_child_is_held_to_the_limit() {
    let mount = Mount::new();
    let mut command = mount.command(driver_shell());
    command.env("GCGROUP_MEMORY_LIMIT", "8M");
    let mut shell = DriverShell::spawn(command);
    shell.tell("clone");
    let child = [shell.answer(), shell.answer()]
        .iter()
        .find_map(|line| line.strip_prefix("child ")?.parse().ok())
        .expect("a child");
    // The parent waits, so commands reach the child.
    assert_eq!(shell.ask(&format!("alloc linear {}", 16 * MIB)), "error 2");
    assert_eq!(shell.ask(&format!("alloc linear {MIB}")), "ok 0");
    assert_eq!(Dir::of(&mount, child).number("memory.current"), MIB);
    shell.quit();
}
