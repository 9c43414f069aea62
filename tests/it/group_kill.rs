//! Tests `gcgroup.kill` of processes and groups.

use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use support::{Config, Governed, Mount, c_program, copy_program, stop, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};

const ALICE: u32 = 1000;
const BOB: u32 = 1001;

fn mkdir(mount: &Mount, group: &str) {
    fs::create_dir(mount.path().join(group)).expect("root may make groups");
}

/// Starts a process in a group.
fn start_in(mount: &Mount, group: &str) -> DriverShell {
    let shell = DriverShell::start(mount);
    mount.write(group, "gcgroup.procs", &shell.pid().to_string());
    shell
}

fn is_unpopulated(mount: &Mount, group: &str) -> bool {
    mount.read(group, "gcgroup.events").contains("populated 0")
}

#[test]
fn killed_process_ends_and_others_live() {
    let mount = Mount::new();
    let (mut doomed, mut other) = (DriverShell::start(&mount), DriverShell::start(&mount));
    let dir = Dir::of(&mount, doomed.pid());
    for value in ["0", "2", "max", "1 1", ""] {
        assert!(
            mount.try_write(doomed.pid(), "gcgroup.kill", value).is_err(),
            "{value:?}"
        );
    }
    assert_eq!(doomed.ask("alloc linear 4096"), "ok 0", "nothing has changed");
    assert!(
        fs::read(dir.path().join("gcgroup.kill")).is_err(),
        "it is write-only"
    );
    dir.write("gcgroup.kill", 1);
    doomed.expect_killed();
    wait_until("its directory is gone", || !dir.exists());
    assert_eq!(other.ask("alloc linear 4096"), "ok 0");
}

#[test]
fn killed_group_ends_frozen_stopped_and_nested_processes() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    mkdir(&mount, "team/sub");
    let mut doomed = ["team", "team", "team/sub"].map(|group| start_in(&mount, group));
    let mut other = DriverShell::start(&mount);
    stop(nix::unistd::Pid::from_raw(doomed[0].pid()));
    let frozen = Dir::of(&mount, doomed[2].pid());
    frozen.freeze();
    doomed[2].tell("spin 1 1");
    wait_until("a launch waits at the gate", || {
        frozen.key("compute.stat", "nr_frozen") > 0
    });
    mount.write("team", "gcgroup.kill", "1");
    doomed.iter_mut().for_each(DriverShell::expect_killed);
    wait_until("the group is empty", || is_unpopulated(&mount, "team"));
    assert_eq!(other.ask("spin 1 1"), "ok");
    for group in ["team/sub", "team"] {
        fs::remove_dir(mount.path().join(group)).expect("the group is empty");
    }
}

#[test]
fn process_that_executes_another_program_is_killed() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let mut shell = start_in(&mount, "team");
    shell.tell("become /bin/cat");
    wait_until("the first program has left", || !mount.governs(shell.pid()));
    mount.write("team", "gcgroup.kill", "1");
    shell.expect_killed();
}

/// Returns field 22 of `/proc/PID/stat` and the time since boot, hundredths of a second.
fn started_and_now(pid: i32) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    let fields = stat.rsplit_once(") ").expect("a name in parentheses").1;
    let started = fields.split(' ').nth(19).and_then(|field| field.parse().ok());
    // Not /proc/uptime, which is the container's where lxcfs provides it.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .expect("a clock");
    (
        started.expect("a number"),
        u64::try_from(now.as_millis() / 10).expect("a number"),
    )
}

#[test]
fn process_that_registers_after_the_kill_ends_if_it_started_before() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let mut command = mount.command("/bin/sh");
    command
        .arg("-c")
        .arg("read line; exec \"$0\"")
        .arg(driver_shell());
    command.env("GCGROUP_GROUP", "team");
    let mut early = Governed::spawn(command);
    wait_until("the process is older than the unit of start times", || {
        let (started, now) = started_and_now(early.pid());
        now > started + 1
    });
    mount.write("team", "gcgroup.kill", "1");
    let mut command = mount.command(driver_shell());
    command.env("GCGROUP_GROUP", "team");
    let mut late = DriverShell::spawn(command);
    early.say("go");
    wait_until("the early process ends", || !early.is_running());
    assert_eq!(late.ask("alloc linear 4096"), "ok 0");
    wait_until("the group has the late process only", || {
        mount.read("team", "gcgroup.procs") == late.pid().to_string()
    });
}

#[test]
fn only_the_owner_and_root_may_kill() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    mkdir(&mount, "team");
    chown(mount.path().join("team"), Some(ALICE), Some(ALICE)).expect("root may change the owner");
    let mut shell = start_in(&mount, "team");
    let kill = |directory: &str| format!("echo 1 > {}/{directory}/gcgroup.kill", mount.path().display());
    let (is_done, said) = mount.sh_of(BOB, &kill("team"));
    assert!(!is_done, "{said}");
    let (is_done, said) = mount.sh_of(ALICE, &kill(&shell.pid().to_string()));
    assert!(!is_done, "root's process: {said}");
    assert_eq!(shell.ask("alloc linear 4096"), "ok 0");
    let mut hers = DriverShell::spawn(mount.command_of(ALICE, &driver_shell()));
    mount.write("team", "gcgroup.procs", &hers.pid().to_string());
    let (is_done, said) = mount.sh_of(ALICE, &kill("team"));
    assert!(is_done, "{said}");
    hers.expect_killed();
    assert_eq!(shell.ask("alloc linear 4096"), "ok 1", "kill(2) forbids it");
}

#[test]
fn process_that_has_become_roots_is_killed_by_root_only() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    mkdir(&mount, "team");
    chown(mount.path().join("team"), Some(ALICE), Some(ALICE)).expect("root may change the owner");
    let program = mount.root().join("become_root");
    copy_program(&c_program("become_root.c", &[]), &program);
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("the owner may change the mode");
    for keeps_connection in [false, true] {
        let mut shell = DriverShell::spawn(mount.command_of(ALICE, &driver_shell()));
        let pid = shell.pid();
        mount.write("team", "gcgroup.procs", &pid.to_string());
        if keeps_connection {
            assert_eq!(shell.ask("linger"), "ok");
        }
        assert_eq!(shell.ask(&format!("become {}", program.display())), "root");
        for (directory, file) in [
            (pid.to_string(), "compute.freeze"),
            (pid.to_string(), "gcgroup.kill"),
            ("team".to_owned(), "gcgroup.kill"),
        ] {
            let path = mount.path().join(&directory).join(file);
            let (is_done, said) = mount.sh_of(ALICE, &format!("echo 1 > {}", path.display()));
            assert_eq!(is_done, directory == "team", "{said}");
        }
        let refusal = format!("{pid} was not killed");
        wait_until("the refusal is logged", || mount.log().contains(&refusal));
        assert!(!mount.log().contains(&format!("{pid} was killed")));
        mount.write("team", "gcgroup.kill", "1");
        shell.expect_killed();
    }
}

#[test]
fn program_without_a_hook_is_not_killed() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let mut member = start_in(&mount, "team");
    let mut command: Command = mount.bare_command(driver_shell());
    command.env("GCGROUP_GROUP", "team");
    let mut bare = DriverShell::spawn(command);
    mount.write("team", "gcgroup.kill", "1");
    member.expect_killed();
    assert_eq!(bare.ask("alloc linear 4096"), "ok 0");
}
