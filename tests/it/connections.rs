//! Tests idle connections of many users, and that the daemon meanwhile serves another user.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use gcgroup_abi::message::{Operation, Request};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, send};
use support::{
    Config, Governed, Mount, ask_for_devices, become_user, idle_connections, open_connection,
    program_for_all, raise_descriptors, stop, wait_until,
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
fn packets_in_a_closed_connection_are_not_read() {
    let mount = Mount::new();
    stop(mount.daemon().expect("the daemon runs"));
    let connection = open_connection(&mount.socket()).expect("the queue has room");
    let request = Request {
        operation: Operation::Make,
        offset: 0,
        name: "ghost",
        value: b"",
    };
    let packet: Vec<u8> = request.to_bytes();
    send(connection.as_raw_fd(), &packet, MsgFlags::empty()).expect("the queue has room");
    drop(connection);
    kill(mount.daemon().expect("the daemon runs"), Signal::SIGCONT).expect("the daemon runs");
    let connection = open_connection(&mount.socket()).expect("the daemon accepts a connection");
    ask_for_devices(&connection).expect("the daemon answers");
    assert!(!mount.path().join("ghost").exists());
}

#[test]
fn users_that_connect_and_close_endlessly_keep_no_other_user_out() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for uid in USERS..USERS + 5 {
            let (socket, is_over) = (mount.socket(), &is_over);
            scope.spawn(move || {
                become_user(uid);
                while !is_over.load(Relaxed) {
                    let Ok(connection) = open_connection(&socket) else {
                        continue;
                    };
                    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                    while send(connection.as_raw_fd(), b"junk", flags).is_ok() {}
                }
            });
        }
        let served = catch_unwind(|| assert_serves_another(&mount));
        is_over.store(true, Relaxed);
        served.unwrap_or_else(|failure| resume_unwind(failure));
    });
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
