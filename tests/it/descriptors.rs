//! Tests the hook's descriptors in programs that close them, replace them by their own files, have none free,
//! or change their root directory: the program's files are unchanged, freezes drain and limits hold.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::{Config, Governed, Mount, wait_until};
use tempfile::TempDir;

use crate::driver::{Dir, DriverShell, driver_shell};
use crate::small_stacks::small_driver;

const MIB: u64 = 1 << 20;

/// Returns the numbers of the hook's descriptors in a process. The program has no sockets, and the simulated
/// driver only one on which it listens.
fn hooks(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives");
    // Sockets of simulated drivers: the inode is the last number before the path.
    let sockets = fs::read_to_string("/proc/net/unix").expect("proc(5)");
    let drivers: Vec<&str> = sockets
        .lines()
        .filter_map(|line| {
            line.split_once(" /")?
                .0
                .split(' ')
                .next_back()
                .filter(|_| line.contains("/checkpoint."))
        })
        .collect();
    let is_hooks = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| {
            let target = target.to_string_lossy();
            let is_drivers = drivers.iter().any(|inode| target == format!("socket:[{inode}]"));
            (target.contains("gcgroup") || target.starts_with("socket:")) && !is_drivers
        })
    };
    let paths = entries.flatten().map(|entry| entry.path()).filter(is_hooks);
    let mut numbers: Vec<i32> = paths
        .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Asserts that a process is governed in every respect: charged, limited, frozen, thawed and counted.
#[track_caller]
fn is_governed(mount: &Mount, shell: &mut DriverShell) {
    let dir = Dir::of(mount, shell.pid());
    // The process may be registering now, and again later, because closefrom(3) closes one descriptor after
    // the other.
    dir.write_when_there("memory.limit", 3 * MIB);
    wait_until("the memory limit is enforced", || {
        let answer = shell.ask(&format!("alloc linear {}", 4 * MIB));
        if let Some(id) = answer.strip_prefix("ok ") {
            assert_eq!(shell.ask(&format!("free {id}")), "ok");
        }
        answer == "error 2"
    });
    // Until the daemon has received the last of the blocks that held the counts, it shows those of an earlier
    // block.
    let current = || {
        let text = fs::read_to_string(dir.path().join("memory.current")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let before = mount.truth().used(shell.pid(), 0);
    let answer = shell.ask(&format!("alloc linear {MIB}"));
    let id = answer
        .strip_prefix("ok ")
        .unwrap_or_else(|| panic!("{answer}"))
        .to_owned();
    wait_until("the allocation is charged", || current() == Some(before + MIB));
    assert_eq!(shell.ask(&format!("free {id}")), "ok");
    wait_until("the freed block is uncharged", || current() == Some(before));
    assert_eq!(shell.ask("spin 1000 20"), "ok");
    dir.write_when_there("compute.freeze", 1);
    wait_until("the process is frozen and drained", || {
        dir.exists() && dir.is_frozen()
    });
    let pid = shell.pid();
    let launches = || mount.truth().nr_launches(pid, 0);
    let before = launches();
    let held = dir.key("compute.stat", "nr_frozen");
    shell.tell("spin 1 1");
    wait_until("the launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") > held
    });
    assert_eq!(launches(), before);
    dir.write_when_there("compute.freeze", 0);
    assert_eq!(shell.answer(), "ok");
    dir.write_when_there("memory.limit", "max");
}

/// Starts a daemon that logs each registration.
fn logs_registrations() -> Mount {
    Mount::with(Config::default().arg("--log").arg("debug"))
}

/// Returns how often a daemon from [`logs_registrations`] has registered a process.
fn nr_registrations(mount: &Mount, pid: i32) -> usize {
    let (begin, end) = (format!(" {pid} ("), " joined");
    let log = mount.log();
    log.lines()
        .filter(|line| line.contains(&begin) && line.ends_with(end))
        .count()
}

/// Makes the program close all descriptors of the hook, and waits until the process has registered again.
#[track_caller]
fn close_all(mount: &Mount, shell: &mut DriverShell) {
    let pid = shell.pid();
    let before = nr_registrations(mount, pid);
    assert_eq!(shell.ask(&format!("closefrom {}", hooks(pid)[0])), "ok");
    wait_until("the process has registered again", || {
        nr_registrations(mount, pid) > before
    });
}

#[test]
fn closefrom_is_noticed_and_process_registers_again() {
    let mount = logs_registrations();
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask(&format!("alloc linear {MIB}")), "ok 0");
    for _ in 0..3 {
        close_all(&mount, &mut shell);
        is_governed(&mount, &mut shell);
    }
    shell.quit();
}

#[test]
fn closefrom_while_a_freeze_drains_leaves_it_drained() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let first = hooks(shell.pid())[0];
    assert_eq!(shell.ask("spin 10000 50"), "ok");
    dir.write("compute.freeze", 1);
    assert_eq!(shell.ask(&format!("closefrom {first}")), "ok");
    wait_until("the process is frozen and drained", || {
        dir.exists() && dir.is_frozen()
    });
    assert_eq!(mount.truth().nr_launches(shell.pid(), 0), 50);
    shell.tell("spin 1 1");
    wait_until("the launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") >= 1
    });
    dir.write_when_there("compute.freeze", 0);
    assert_eq!(shell.answer(), "ok");
}

#[test]
fn file_over_hooks_descriptor_keeps_content_and_governance() {
    let mount = Mount::new();
    let directory = TempDir::new().expect("a directory");
    let text = "the program's own\n".repeat(1000);
    for position in 0..4 {
        let mut shell = DriverShell::start(&mount);
        let number = hooks(shell.pid())[position];
        let path = directory.path().join(position.to_string());
        fs::write(&path, &text).expect("a file");
        assert_eq!(shell.ask(&format!("over {number} {}", path.display())), "ok");
        is_governed(&mount, &mut shell);
        let link = fs::read_link(format!("/proc/{}/fd/{number}", shell.pid())).expect("the file is open");
        assert_eq!(link, path, "the program's descriptor was closed");
        assert_eq!(fs::read_to_string(&path).expect("the file exists"), text);
        shell.quit();
    }
}

#[test]
fn files_over_all_descriptors_keep_their_content() {
    let mut mount = logs_registrations();
    let directory = TempDir::new().expect("a directory");
    let mut shell = DriverShell::start(&mount);
    let numbers = hooks(shell.pid());
    assert_eq!(
        numbers.len(),
        4,
        "the hook's descriptors are the block, the connection and a pipe: {numbers:?}"
    );
    let path = |number: i32| directory.path().join(number.to_string());
    for number in &numbers {
        fs::write(path(*number), "own").expect("a file");
        assert_eq!(
            shell.ask(&format!("over {number} {}", path(*number).display())),
            "ok"
        );
    }
    is_governed(&mount, &mut shell);
    assert!(
        nr_registrations(&mount, shell.pid()) > 1,
        "the process did not register again"
    );
    mount.kill9();
    mount.restart();
    wait_until("the process has registered with the next daemon", || {
        mount.governs(shell.pid())
    });
    is_governed(&mount, &mut shell);
    for number in numbers {
        let link = fs::read_link(format!("/proc/{}/fd/{number}", shell.pid())).expect("the file is open");
        assert_eq!(link, path(number));
        assert_eq!(fs::read(path(number)).expect("the file exists"), b"own");
    }
}

/// Returns a command that runs a shell that may have so many descriptors.
fn limited(mount: &Mount, limit: u32, arguments: &str) -> Command {
    let mut command = mount.command("sh");
    command
        .args(["-c", &format!("ulimit -Sn {limit} && exec \"$0\" {arguments}")])
        .arg(driver_shell());
    command
}

#[test]
fn process_with_few_descriptors_is_governed() {
    let mount = logs_registrations();
    for limit in [32, 64, 100, 200] {
        let mut shell = DriverShell::spawn(limited(&mount, limit, ""));
        is_governed(&mount, &mut shell);
        close_all(&mount, &mut shell);
        is_governed(&mount, &mut shell);
        shell.quit();
    }
}

/// Number of descriptors that the simulated driver needs.
const DRIVERS: u32 = 3;

#[test]
fn process_without_descriptors_reports_and_registers_later() {
    let mount = Mount::new();
    let mut shell = DriverShell::spawn(limited(&mount, 32, &DRIVERS.to_string()));
    assert!(!mount.governs(shell.pid()));
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "ok 0");
    let line = "gcgroup: no file descriptor is free: not governed until one is\n";
    wait_until("the hook reports that no descriptor is free", || {
        shell.stderr() == line
    });
    assert_eq!(shell.ask("unfill 8"), "ok");
    wait_until("the process is governed", || mount.governs(shell.pid()));
    wait_until("the estimate for the context is replaced", || {
        Dir::of(&mount, shell.pid()).number("memory.current") == 2 * MIB
    });
    is_governed(&mount, &mut shell);
    assert_eq!(shell.stderr(), line, "the message was repeated");
}

/// Loading the library needs a descriptor, too. This driver opens no file.
#[test]
fn first_call_without_free_descriptors_is_reported_or_refused() {
    let (mount, driver) = (Mount::new(), small_driver());
    // This driver has no devices.
    for (required, answer) in [("0", " 100"), ("1", " 802")] {
        let mut command = limited(&mount, 32, "0");
        command
            .env("LD_LIBRARY_PATH", driver.path())
            .env("GCGROUP_REQUIRED", required);
        let mut program = Governed::spawn(command);
        let line = program.expect("ready ");
        assert!(line.ends_with(answer), "{line}, {}", program.stderr());
        assert!(!mount.governs(program.pid()));
        wait_until("the library reports that no descriptor is free", || {
            program.stderr().contains("Too many open files")
        });
    }
}

#[test]
fn required_process_without_any_descriptor_is_refused() {
    let mount = Mount::new();
    // One descriptor is free, for loading the library.
    let mut command = limited(&mount, 32, "1");
    command.env("GCGROUP_REQUIRED", "1");
    let mut program = Governed::spawn(command);
    assert!(
        program.expect("ready ").ends_with(" 802"),
        "cuInit did not return CUDA_ERROR_SYSTEM_NOT_READY"
    );
    assert!(
        program.stderr().contains("no file descriptor is free"),
        "{}",
        program.stderr()
    );
}

#[test]
fn process_after_chroot_is_governed_and_reports_lost_daemon() {
    let mut mount = Mount::new();
    let root = TempDir::new().expect("a directory");
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask(&format!("chroot {}", root.path().display())), "ok");
    is_governed(&mount, &mut shell);
    Dir::of(&mount, shell.pid()).write("memory.limit", 2 * MIB);
    mount.kill9();
    wait_until("the hook reports that no daemon answers", || {
        shell.stderr().contains("no daemon answers at")
    });
    assert_eq!(
        shell.ask(&format!("alloc linear {}", 4 * MIB)),
        "error 2",
        "the last limit was lost"
    );
    assert_eq!(shell.ask("spin 1 1"), "ok");
}
