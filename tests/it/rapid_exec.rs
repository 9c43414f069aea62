//! Tests programs that execute one another under one pid faster than the daemon registers processes: each is
//! governed from its first use of the GPU.

use std::fs;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use gcgroup_abi::VERSION;
use gcgroup_abi::message::RegistrationReply;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv, send, socket,
};
use support::{Governed, Mount, artifacts, c_program, wait_until};

use crate::driver::{DriverShell, driver_shell};

const MIB: u64 = 1 << 20;

fn again() -> PathBuf {
    let path = format!("-L{}", artifacts().simgpu().display());
    c_program("again.c", &["-pthread", &path, "-lcuda"])
}

/// Mounts with a group `team` in which `file` has `value`; returns a command that runs `again` with these
/// arguments in the group.
fn grouped(file: &str, value: &str, arguments: [&str; 3]) -> (Mount, Command) {
    let mount = Mount::new();
    fs::create_dir(mount.path().join("team")).expect("the directory can be made");
    mount.write("team", file, value);
    let mut command = mount.command(again());
    command.env("GCGROUP_GROUP", "team").args(arguments);
    (mount, command)
}

/// Runs `again alloc` in a group of 64 MiB, with 65 MiB for each allocation, and asserts that each is
/// refused.
#[track_caller]
fn assert_each_is_refused(environment: &[(&str, &str)]) {
    const ROUNDS: usize = 100;
    let (rounds, bytes) = (ROUNDS.to_string(), (65 * MIB).to_string());
    let (mount, mut command) = grouped("memory.limit", "64M", ["alloc", &rounds, &bytes]);
    command.envs(environment.iter().copied());
    let mut again = Governed::spawn(command);
    for round in 0..ROUNDS {
        assert_eq!(again.line().as_deref(), Some("alloc 0 2 0 2"), "round {round}");
    }
    assert_eq!(again.line().as_deref(), Some("end"));
    assert_eq!(mount.number("team", "memory.peak", ""), 0);
}

#[test]
fn hundred_execs_are_each_refused_over_the_group_limit() {
    assert_each_is_refused(&[]);
}

#[test]
fn hundred_required_execs_are_each_refused_over_the_limit() {
    assert_each_is_refused(&[("GCGROUP_REQUIRED", "1")]);
}

#[test]
fn execs_in_a_frozen_group_run_no_kernel() {
    let (mount, command) = grouped("compute.freeze", "1", ["launch", "60", "5000"]);
    // The first process creates the simulated machine.
    let _outside = DriverShell::start(&mount);
    let truth = mount.truth();
    wait_until("the group is frozen", || {
        mount.number("team", "gcgroup.events", "frozen") == 1
    });
    let before = truth.busy_ns(0);
    let mut again = Governed::spawn(command);
    assert_eq!(again.line().as_deref(), Some("end"));
    assert!(again.wait().success());
    assert_eq!(truth.busy_ns(0), before);
}

/// Listens at `path`: hangs up on the first hook, answers the next three with a request to try again, and
/// then gives the path to the daemon at `real`.
fn put_off(path: &Path, real: &Path) -> impl FnOnce() + use<> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    let address = UnixAddr::new(path).expect("the path fits");
    bind(listener.as_raw_fd(), &address).expect("the path is free");
    listen(&listener, Backlog::MAXCONN).expect("the socket can listen");
    let (path, real) = (path.to_owned(), real.to_owned());
    move || {
        for attempt in 0..4 {
            let client = accept(listener.as_raw_fd()).expect("a hook connects");
            // SAFETY: accept(2) has just returned it, and no other owner exists.
            let client = unsafe { OwnedFd::from_raw_fd(client) };
            let mut hello = [0; 1024];
            recv(client.as_raw_fd(), &mut hello, MsgFlags::empty()).expect("the client sends hello");
            let status = libc::EAGAIN.cast_unsigned();
            let reply = RegistrationReply {
                abi: VERSION,
                status,
                bars_cuda: false,
            }
            .to_bytes();
            if attempt == 3 {
                fs::remove_file(&path).expect("the socket can be removed");
                symlink(&real, &path).expect("the path is free");
            }
            if attempt > 0 {
                send(client.as_raw_fd(), &reply, MsgFlags::MSG_NOSIGNAL)
                    .expect("the client waits for the answer");
            }
        }
    }
}

#[test]
fn hook_that_is_put_off_tries_again_before_the_first_call() {
    let (mount, _) = grouped("memory.limit", "64M", ["", "", ""]);
    let path = mount.root().join("put-off.sock");
    let daemon = std::thread::spawn(put_off(&path, &mount.socket()));
    let mut command = mount.command(driver_shell());
    command.env("GCGROUP_GROUP", "team").env("GCGROUP_SOCKET", &path);
    let mut shell = DriverShell::spawn(command);
    assert_eq!(shell.ask(&format!("alloc linear {}", 65 * MIB)), "error 2");
    daemon.join().expect("the thread ends without a panic");
}
