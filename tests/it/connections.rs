//! Tests idle connections of many users, and that the daemon meanwhile serves another user.

use std::os::fd::OwnedFd;

use support::{
    Config, Governed, Mount, idle_connections, open_connection, program_for_all, raise_descriptors,
    wait_until,
};

use crate::driver::driver_shell;
use crate::rules::BOB;

/// First uid of a range without names on most machines.
const USERS: u32 = 1 << 30;

/// Opens 100 idle connections for each of 30 users, which leaves descriptors for the other tests.
fn crowd(mount: &Mount) -> Vec<OwnedFd> {
    const EACH: usize = 100;
    raise_descriptors();
    idle_connections(&mount.socket(), USERS..USERS + 30, EACH)
}

/// Asserts that another user's queries and registrations succeed.
#[track_caller]
fn assert_serves_another(mount: &Mount) {
    for _ in 0..5 {
        let output = mount.gcgroupfs_of(BOB, &["get", "devices"]).output();
        let output = output.expect("the command starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
    }
    let program = program_for_all(&driver_shell(), mount.root());
    let mut shells: Vec<_> = (0..5)
        .map(|_| {
            let mut command = mount.command_of(BOB, &program);
            command.env("GCGROUP_REQUIRED", "1");
            let mut shell = Governed::spawn(command);
            let banner = shell.expect("ready");
            assert!(banner.ends_with(" 0"), "{banner}: {}", shell.stderr());
            shell
        })
        .collect();
    let procs = mount.read("", "gcgroup.procs");
    for shell in &mut shells {
        let pid = shell.pid().to_string();
        assert!(
            procs.lines().any(|line| line == pid),
            "{pid} is missing in {procs}"
        );
    }
}

#[test]
fn idle_connections_of_many_users_keep_no_other_user_out() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let crowd = crowd(&mount);
    assert_serves_another(&mount);
    drop(crowd);
}

#[test]
fn daemon_with_few_descriptors_keeps_no_other_user_out() {
    let mount = Mount::with(Config::default().arg("--allow-other").descriptors(1024));
    let crowd = crowd(&mount);
    assert_serves_another(&mount);
    // Clients whose connections were closed for others connect again.
    let again = idle_connections(&mount.socket(), USERS..USERS + 30, 20);
    assert_serves_another(&mount);
    assert_eq!(mount.log().matches("no room").count(), 0, "{}", mount.log());
    drop((crowd, again));
    wait_until("the daemon has closed the clients' connections", || {
        let daemon = mount.daemon().expect("the daemon runs");
        let descriptors = std::fs::read_dir(format!("/proc/{daemon}/fd")).expect("proc(5)");
        descriptors.count() < 100
    });
    open_connection(&mount.socket()).expect("the daemon accepts a connection");
}
