//! Tests groups, which are directories that users create: membership, sums over members, and settings that
//! hold for all members.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use support::{Config, DEADLINE, Mount, stop, wait_until};

use crate::driver::{Dir, DriverShell};

const MIB: u64 = 1 << 20;

#[track_caller]
fn mkdir(mount: &Mount, path: &str) {
    fs::create_dir(mount.path().join(path)).unwrap_or_else(|error| panic!("mkdir {path}: {error}"));
}

#[track_caller]
fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result
        .unwrap_err()
        .raw_os_error()
        .expect("the error has a number")
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("the directory is readable");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort_unstable();
    names
}

/// Starts a governed process that has allocated `bytes`.
#[track_caller]
fn holding(mount: &Mount, bytes: u64) -> DriverShell {
    let mut shell = DriverShell::start(mount);
    assert_eq!(shell.ask(&format!("alloc linear {bytes}")), "ok 0");
    shell
}

#[track_caller]
fn join(mount: &Mount, group: &str, shell: &DriverShell) {
    mount.write(group, "gcgroup.procs", &shell.pid().to_string());
}

#[test]
fn mkdir_and_rmdir_make_and_remove_groups() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    mkdir(&mount, "team");
    mkdir(&mount, "team/a");
    let path = |name: &str| mount.path().join(name);
    let pid = shell.pid();
    for (name, expected) in [
        ("team", libc::EEXIST),
        ("4242", libc::EINVAL),
        ("team/1", libc::EINVAL),
        ("devices", libc::EEXIST),
        ("team/memory.limit", libc::EEXIST),
        ("team/devices", libc::EINVAL),
        (&format!("{pid}/x"), libc::EPERM),
        ("team/0/x", libc::EPERM),
        (&format!("team/{}", "x".repeat(256)), libc::ENAMETOOLONG),
        ("nowhere/a", libc::ENOENT),
    ] {
        assert_eq!(errno(fs::create_dir(path(name))), expected, "mkdir {name}");
    }
    for (name, expected) in [
        ("team", libc::EBUSY),
        ("team/0", libc::EPERM),
        (&pid.to_string(), libc::EPERM),
        (&format!("{pid}/0"), libc::EPERM),
        ("nowhere", libc::ENOENT),
    ] {
        assert_eq!(errno(fs::remove_dir(path(name))), expected, "rmdir {name}");
    }
    assert_eq!(
        errno(fs::rename(path("team/a"), path("b"))),
        libc::EPERM,
        "rename"
    );
    let inside = names(&path("team"));
    for name in ["0", "a", "gcgroup.procs", "memory.limit", "compute.freeze"] {
        assert!(inside.iter().any(|there| there == name), "{name} in {inside:?}");
    }
    assert!(names(&path("team/0")).iter().any(|name| name == "memory.limit"));
    assert!(!names(&path("team/0")).iter().any(|name| name == "gcgroup.procs"));
    let deep = "team/a/c/d/e/f/g/h";
    fs::create_dir_all(path(deep)).expect("eight levels");
    assert_eq!(errno(fs::create_dir(path(&format!("{deep}/i")))), libc::EMLINK);

    // A file that is open while its group is removed behaves like any removed file.
    let mut open = File::open(path(&format!("{deep}/memory.limit"))).expect("the file opens");
    let mut events = File::open(path(&format!("{deep}/gcgroup.events"))).expect("the file opens");
    let mut text = String::new();
    events.read_to_string(&mut text).expect("the file is readable");
    assert_eq!(text, "populated 0\nfrozen 0\nsuspended 0\n");
    fs::remove_dir(path(deep)).expect("the group is empty");
    assert_eq!(errno(open.read_to_string(&mut text)), libc::ENODEV);
    assert!(changes(&events), "removing the group did not wake the poller");
    assert!(!path(deep).exists());
    mkdir(&mount, deep);
    assert_eq!(mount.read(deep, "memory.limit"), "max");
}

/// Waits for a change of an events file.
fn changes(events: &File) -> bool {
    let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
    let timeout = PollTimeout::try_from(DEADLINE).expect("the value fits");
    poll(&mut fds, timeout).expect("poll(2) succeeds") == 1
}

#[test]
fn group_sums_follow_moving_members() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    for group in ["team", "team/a", "team/b"] {
        mkdir(&mount, group);
    }
    let (one, mut other) = (holding(&mount, 3 * MIB), holding(&mount, 5 * MIB));
    join(&mount, "team/a", &one);
    join(&mount, "team/b", &other);
    let current = |group: &str| mount.number(group, "memory.current", "") / MIB;
    let all = || ["team", "team/0", "team/1", "team/a", "team/b"].map(current);
    assert_eq!(all(), [8, 8, 0, 3, 5]);
    assert_eq!(mount.read("team/a", "gcgroup.procs"), one.pid().to_string());
    assert_eq!(mount.read("team", "gcgroup.procs"), "");
    assert_eq!(mount.number("team", "gcgroup.events", "populated"), 1);
    assert_eq!(
        mount.read("", "gcgroup.procs").lines().count(),
        2,
        "the root does not list all processes"
    );

    assert_eq!(other.ask("spin 10 20"), "ok");
    assert_eq!(other.ask("sync"), "ok");
    let launches = |group: &str| mount.number(group, "compute.stat", "nr_launches");
    assert_eq!(["team", "team/b"].map(launches), [20, 20]);
    join(&mount, "team/a", &other);
    assert_eq!(all(), [8, 8, 0, 8, 0]);
    assert_eq!(["team", "team/a", "team/b"].map(launches), [20, 0, 20]);
    assert_eq!(mount.number("team/b", "gcgroup.events", "populated"), 0);
    assert_eq!(errno(fs::remove_dir(mount.path().join("team/a"))), libc::EBUSY);
    fs::remove_dir(mount.path().join("team/b")).expect("the group is empty");

    mount.write("", "gcgroup.procs", &one.pid().to_string());
    assert_eq!(current("team"), 5);
    for (text, expected) in [("0", libc::ESRCH), ("4194305", libc::ESRCH), ("me", libc::EINVAL)] {
        assert_eq!(
            errno(mount.try_write("team", "gcgroup.procs", text)),
            expected,
            "{text}"
        );
    }
    let bystander = std::process::id().to_string();
    assert_eq!(
        errno(mount.try_write("team", "gcgroup.procs", &bystander)),
        libc::ESRCH
    );

    // A process that ends leaves the group; its counts stay in the group's totals.
    let events = File::open(mount.file("team", "gcgroup.events")).expect("the file opens");
    let mut text = String::new();
    (&events).read_to_string(&mut text).expect("the file is readable");
    other.kill9();
    assert!(changes(&events));
    wait_until("the group has no members", || {
        mount.number("team", "gcgroup.events", "populated") == 0
    });
    assert_eq!((current("team"), launches("team")), (0, 20));
    assert_eq!(mount.number("team", "memory.peak", ""), 8 * MIB);
    // A reader that has seen the change can remove the group at the first attempt.
    for group in ["team/a", "team"] {
        fs::remove_dir(mount.path().join(group)).unwrap_or_else(|error| panic!("{group}: {error}"));
    }
}

#[test]
fn group_freeze_holds_members_and_descendants() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    mkdir(&mount, "team/a");
    let mut shells = [DriverShell::start(&mount), DriverShell::start(&mount)];
    let mut outside = DriverShell::start(&mount);
    join(&mount, "team", &shells[0]);
    join(&mount, "team/a", &shells[1]);
    for shell in &mut shells {
        assert_eq!(shell.ask("spin 5000 20"), "ok");
        assert_eq!(shell.ask("mark"), "ok");
    }
    mount.write("team", "compute.freeze", "1");
    wait_until("the group is frozen and drained", || {
        mount.number("team", "gcgroup.events", "frozen") == 1
    });
    for shell in &mut shells {
        assert_eq!(
            shell.ask("marked"),
            "ok",
            "the group is frozen before its work has drained"
        );
        shell.tell("spin 10 1");
    }
    wait_until("a launch of each member waits at the gate", || {
        mount.number("team", "compute.stat", "nr_frozen") >= 2
    });
    assert_eq!(mount.number("team/a", "gcgroup.events", "frozen"), 1);
    assert_eq!(outside.ask("spin 10 1"), "ok");
    // A process that joins is frozen, and one that leaves is thawed.
    let dir = Dir::of(&mount, outside.pid());
    join(&mount, "team/a", &outside);
    wait_until("the joining process is frozen and drained", || dir.is_frozen());
    mount.write("", "gcgroup.procs", &shells[1].pid().to_string());
    assert_eq!(shells[1].answer(), "ok");
    mount.write("team", "compute.freeze", "0");
    assert_eq!(shells[0].answer(), "ok");
    assert_eq!(outside.ask("spin 10 1"), "ok");
    assert_eq!(mount.number("team", "gcgroup.events", "frozen"), 0);
}

#[test]
fn group_is_inherited_by_children_and_kept_over_exec() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let mut parent = DriverShell::start(&mount);
    join(&mount, "team", &parent);
    mount.write("team", "compute.priority", "3");
    parent.exec_at(&mount);
    let members = || mount.read("team", "gcgroup.procs");
    assert_eq!(members(), parent.pid().to_string());
    assert_eq!(Dir::of(&mount, parent.pid()).number("compute.priority"), 3);
    parent.tell("fork");
    let child = [parent.answer(), parent.answer()]
        .iter()
        .find_map(|line| line.strip_prefix("child ")?.parse::<i32>().ok())
        .expect("a child");
    // The parent waits, so commands reach the child.
    parent.tell("exec");
    assert_eq!(parent.answer(), format!("ready {child} 0"));
    let mut pids = [parent.pid(), child];
    pids.sort_unstable();
    assert_eq!(members(), format!("{}\n{}", pids[0], pids[1]));
    assert_eq!(Dir::of(&mount, child).number("compute.priority"), 3);
    parent.quit();
    wait_until("both processes have left the group", || members().is_empty());
}

#[test]
fn member_without_freeze_acknowledgement_is_named() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let [quick, stopped] = [(); 2].map(|()| DriverShell::start(&mount));
    join(&mount, "team", &quick);
    join(&mount, "team", &stopped);
    let pid = Pid::from_raw(stopped.pid());
    stop(pid);
    mount.write("team", "compute.freeze", "1");
    let draining = format!("populated 1\nfrozen 0\nsuspended 0\ndraining {}", stopped.pid());
    wait_until("the other member has acknowledged the freeze", || {
        mount.read("team", "gcgroup.events") == draining
    });
    let mut freeze = mount.gcgroupfs(&["freeze", "--wait", "--timeout", "0.01", "team"]);
    let output = freeze.output().expect("the command runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = format!(
        "team: still busy: process {} has not acknowledged it",
        stopped.pid()
    );
    assert!(said.contains(&expected), "{said}");
    kill(pid, Signal::SIGCONT).expect("the process lives");
    wait_until("both members have acknowledged the freeze", || {
        mount.read("team", "gcgroup.events") == "populated 1\nfrozen 1\nsuspended 0"
    });
    mount.write("team", "compute.freeze", "0");
    quick.quit();
    stopped.quit();
}

#[test]
fn groups_survive_daemon_kill() {
    let mut mount = Mount::new();
    for group in ["team", "team/a", "gone"] {
        mkdir(&mount, group);
    }
    let shell = holding(&mount, 3 * MIB);
    join(&mount, "team/a", &shell);
    mount.write("team", "memory.limit", "1G");
    mount.write("team/a/0", "compute.freeze", "1");
    Dir::of(&mount, shell.pid()).write("memory.limit", 1);
    fs::remove_dir(mount.path().join("gone")).expect("the group is empty");
    mount.kill9();
    mount.restart();
    assert_eq!(mount.read("team", "memory.limit"), (1 << 30).to_string());
    assert!(!mount.path().join("gone").exists());
    wait_until("the process has registered in its group again", || {
        mount.read("team/a", "gcgroup.procs") == shell.pid().to_string()
    });
    assert_eq!(mount.number("team", "memory.current", ""), 3 * MIB);
    wait_until("the group is frozen and drained on the device", || {
        mount.number("team/a/0", "gcgroup.events", "frozen") == 1
    });
    assert_eq!(Dir::of(&mount, shell.pid()).key("memory.events", "over_limit"), 1);
    assert_eq!(mount.number("team", "memory.events", "over_limit"), 1);
}

#[test]
fn process_ending_before_it_registers_again_keeps_no_group() {
    let mut mount = Mount::new();
    mkdir(&mount, "team");
    let shell = DriverShell::start(&mount);
    join(&mount, "team", &shell);
    // The stopped process cannot register again.
    stop(Pid::from_raw(shell.pid()));
    mount.kill9();
    mount.restart();
    let team = mount.path().join("team");
    assert_eq!(mount.number("team", "gcgroup.events", "populated"), 1);
    let refused = fs::remove_dir(&team).expect_err("the group has a member");
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
    shell.kill9();
    // A process that registers afterwards is served only after that end was noticed.
    let _other = DriverShell::start(&mount);
    assert_eq!(mount.number("team", "gcgroup.events", "populated"), 0);
    fs::remove_dir(&team).expect("the group is empty");
}

/// The parent knows of the end from the kernel, not from the daemon.
#[test]
fn rmdir_succeeds_once_the_members_are_reaped() {
    let mount = Mount::new();
    let team = mount.path().join("team");
    for round in 0..20 {
        mkdir(&mount, "team");
        let members: Vec<_> = (0..3).map(|_| DriverShell::start(&mount)).collect();
        members.iter().for_each(|member| join(&mount, "team", member));
        let pids = members.iter().map(|member| Pid::from_raw(member.pid()));
        for pid in pids.clone() {
            kill(pid, Signal::SIGKILL).expect("the process is a child");
        }
        for pid in pids {
            waitpid(pid, None).expect("the process is a child");
        }
        let removed = fs::remove_dir(&team);
        assert!(removed.is_ok(), "round {round}: {removed:?}");
    }
}

#[test]
fn command_line_accepts_groups() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let shell = DriverShell::start(&mount);
    join(&mount, "team", &shell);
    let run = |arguments: &[&str]| {
        let output = mount.gcgroupfs(arguments).output().expect("the command runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    };
    run(&["set", "team/memory.limit", "6G"]);
    assert_eq!(run(&["get", "team/memory.limit"]), format!("{}\n", 6_u64 << 30));
    run(&["freeze", "--wait", "/team/"]);
    run(&["wait", "team/gcgroup.events", "frozen=1", "populated=1"]);
    run(&["thaw", "team"]);
    run(&["set", "--wait", "team/compute.freeze", "1"]);
    let table = run(&["ls"]);
    for row in table.lines().skip(1) {
        assert!(row.contains(" /team ") && row.contains(" yes "), "{table}");
    }
    assert_eq!(table.lines().count(), 3, "the group and its process: {table}");
    let refused = mount
        .gcgroupfs(&["freeze", "nowhere"])
        .output()
        .expect("the command runs");
    assert!(!refused.status.success());
    assert_eq!(
        File::open(mount.path().join("nowhere")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}
