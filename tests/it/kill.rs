//! Tests SIGKILL of processes and of the daemon at arbitrary moments.

use std::os::fd::AsFd as _;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use support::{Config, DEADLINE, Mount, wait_until};

use crate::driver::{Dir, DriverShell, governed_pids};

const MIB: u64 = 1 << 20;

#[test]
fn two_hundred_kills_under_churn_leak_nothing() {
    let mount = Mount::with(Config::default().env("SIMGPU_MEMORY", "4G"));
    let mut witness = DriverShell::start_bare(&mount);
    let before = witness.ask("meminfo");
    for round in 0..200_u64 {
        let mut shell = DriverShell::start(&mount);
        // The replies to a varying number of commands are not awaited, so the kill hits an arbitrary one.
        for i in 0..(round % 7) * 5 {
            shell.tell(&format!("alloc linear {}", (i + 1) * 65536));
            shell.tell(&format!("free {}", i / 2));
            shell.tell("alloc async 100000");
            shell.tell("spin 5 2");
        }
        shell.kill9();
    }
    wait_until("the killed processes' directories are removed", || {
        governed_pids(&mount).is_empty()
    });
    assert_eq!(mount.number("", "memory.current", ""), 0);
    assert_eq!(
        witness.ask("meminfo"),
        before,
        "the killed processes left memory on the device"
    );
    let exited = std::fs::read_to_string(mount.path().join("exited")).expect("the file is readable");
    assert_eq!(exited.lines().count(), 64, "exited does not list 64 processes");
}

#[test]
fn restarted_daemon_restores_processes_and_settings() {
    let mut mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let mut shells: Vec<_> = (0..5).map(|_| DriverShell::start(&mount)).collect();
    for (shell, n) in shells.iter_mut().zip(1..) {
        assert_eq!(shell.ask(&format!("alloc linear {}", n * MIB)), "ok 0");
        shell.ask("spin 5 7");
        let dir = Dir::of(&mount, shell.pid());
        dir.write("memory.limit", n * 10 * MIB);
        dir.gpu(1).write("memory.limit", n * 3 * MIB);
        dir.write("compute.priority", n);
    }
    let first = shells[0].pid();
    let frozen = Dir::of(&mount, first);
    frozen.freeze();
    for round in 1..=3 {
        mount.kill9();
        // The processes are unaffected: the limit still holds, and allocations and launches succeed.
        assert_eq!(shells[1].ask(&format!("alloc linear {}", 19 * MIB)), "error 2");
        assert_eq!(shells[1].ask("alloc linear 4096"), format!("ok {round}"));
        assert_eq!(shells[1].ask("spin 5 1"), "ok");
        mount.restart();
        wait_until("every process has registered again", || {
            governed_pids(&mount).len() == shells.len()
        });
        for (shell, n) in shells.iter().zip(1..) {
            let dir = Dir::of(&mount, shell.pid());
            assert_eq!(dir.number("memory.limit"), n * 10 * MIB);
            assert_eq!(dir.gpu(1).number("memory.limit"), n * 3 * MIB);
            assert_eq!(dir.number("compute.priority"), n);
            assert!(dir.number("memory.current") >= n * MIB);
            assert!(dir.launches() >= 7);
        }
        wait_until("the first process is frozen and drained again", || {
            Dir::of(&mount, first).is_frozen()
        });
        assert_eq!(shells[1].ask(&format!("free {round}")), "ok");
    }
    Dir::of(&mount, first).write("compute.freeze", 0);
    assert_eq!(shells[0].ask("spin 5 1"), "ok");
}

#[test]
fn setting_written_just_before_daemon_kill_is_kept() {
    let mut mount = Mount::new();
    let shell = DriverShell::start(&mount);
    for n in 1..=10_u64 {
        Dir::of(&mount, shell.pid()).write("memory.limit", n * MIB);
        mount.kill9();
        mount.restart();
        wait_until("the process has registered again", || {
            Dir::of(&mount, shell.pid()).exists()
        });
        assert_eq!(Dir::of(&mount, shell.pid()).number("memory.limit"), n * MIB);
    }
}

#[test]
fn process_ending_without_daemon_is_absent_afterwards() {
    let mut mount = Mount::new();
    let stays = DriverShell::start(&mount);
    let dies = DriverShell::start(&mount);
    mount.kill9();
    let pid = dies.pid();
    dies.kill9();
    mount.restart();
    wait_until("the surviving process has registered again", || {
        Dir::of(&mount, stays.pid()).exists()
    });
    assert!(!Dir::of(&mount, pid).exists());
}

#[test]
fn process_started_without_daemon_is_governed_later() {
    let mut mount = Mount::new();
    mount.kill9();
    let mut shell = DriverShell::start(&mount);
    // Without a daemon, whole pages of 2 MiB are charged.
    assert_eq!(shell.ask(&format!("alloc linear {}", 4 * MIB)), "ok 0");
    mount.restart();
    wait_until("the process is registered", || {
        Dir::of(&mount, shell.pid()).exists()
    });
    wait_until("the estimate for the context is replaced", || {
        Dir::of(&mount, shell.pid()).number("memory.current") == 4 * MIB
    });
}

#[test]
fn open_files_fail_after_daemon_kill_and_reopen_works() {
    let mut mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let path = Dir::of(&mount, shell.pid()).path();
    for _ in 0..3 {
        let (file, directory) = (path.join("memory.current"), std::fs::File::open(&path));
        let open = std::fs::File::open(&file).expect("the file opens");
        let events = std::fs::File::open(path.join("gcgroup.events")).expect("the file opens");
        let mut text = [0; 64];
        nix::sys::uio::pread(&events, &mut text, 0).expect("the file is readable");
        std::thread::scope(|scope| {
            let asleep = scope.spawn(|| {
                let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
                poll(&mut fds, PollTimeout::try_from(DEADLINE).expect("the value fits"))
                    .expect("poll(2) succeeds")
            });
            mount.kill9();
            assert_eq!(
                asleep.join().expect("the thread ends without a panic"),
                1,
                "the end of the daemon did not wake the poller"
            );
        });
        for file in [&open, &events] {
            let errno = nix::sys::uio::pread(file, &mut text, 0).expect_err("no daemon answers");
            assert!(matches!(errno, Errno::ENOTCONN | Errno::ECONNABORTED), "{errno}");
        }
        assert!(std::fs::read_to_string(&file).is_err());
        mount.restart();
        wait_until("the process has registered again", || {
            Dir::of(&mount, shell.pid()).exists()
        });
        assert!(
            nix::sys::uio::pread(&open, &mut text, 0).is_err(),
            "a file of the old mount is readable"
        );
        assert_eq!(mount.read(shell.pid(), "memory.current"), "0");
        drop(directory);
    }
}
