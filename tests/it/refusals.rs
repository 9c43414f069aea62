//! Tests that a refused request is explained, on the command line and by the scripts; that sizes may be
//! written as users do; and that paths are taken with the mount point and without.

use std::fs;
use std::process::{Command, Output};

use support::{Config, Governed, Mount, artifacts, repository, wait_until};

use crate::driver::DriverShell;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;
const GIB: u64 = 1 << 30;

/// Returns the exit status and all output.
fn run(mut command: Command) -> (i32, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program runs");
    let text = [stdout, stderr].concat();
    (
        status.code().expect("an exit status"),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[track_caller]
fn gcgroupfs(mount: &Mount, arguments: &[&str]) -> String {
    let (status, text) = run(mount.gcgroupfs(arguments));
    assert_eq!(status, 0, "{arguments:?}: {text}");
    text
}

/// Returns the error of a command that must be refused.
#[track_caller]
fn refused(command: Command) -> String {
    let name = format!("{command:?}");
    let (status, text) = run(command);
    assert_eq!(status, 1, "{name}: {text}");
    text.trim_end().to_owned()
}

#[test]
fn refused_write_says_what_is_allowed() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let pid = shell.pid();
    let deep: Vec<String> = (0..9).map(|depth| format!("d{depth}")).collect();
    for depth in 1..=8 {
        gcgroupfs(&mount, &["mkdir", &deep[..depth].join("/")]);
    }
    let (deep, limit) = (deep.join("/"), format!("{pid}/memory.limit"));
    gcgroupfs(&mount, &["set", "d0/memory.limit", "2G"]);
    for (arguments, errno, why) in [
        (&["set", &limit, "much"][..], "Invalid argument", "1.5GiB"),
        (
            &["set", &limit, "101%"],
            "Numerical result out of range",
            "from 0% to 100%",
        ),
        (
            &["set", &format!("{pid}/compute.priority"), "16"],
            "Numerical result out of range",
            "expected a number from 0 to 15, got \"16\"",
        ),
        (
            &["set", &format!("{pid}/memory.current"), "1"],
            "Permission denied",
            "the file is read-only",
        ),
        (
            &["get", &format!("{pid}/memory.reclaim")],
            "Permission denied",
            "can only be written",
        ),
        (
            &["set", &format!("{pid}/memory.swap.max"), "1G"],
            "Operation not supported",
            "gcgroupfs run --swap",
        ),
        (
            &["set", "999999999/memory.limit", "1G"],
            "No such file or directory",
            "gcgroupfs ls",
        ),
        (&["mkdir", &deep], "Too many links", "at most 8 deep"),
        (&["mkdir", "d0"], "File exists", "choose another name"),
        (&["mkdir", "7"], "Invalid argument", "only digits"),
        (&["rmdir", "d0"], "Device or resource busy", "move or end them"),
        (
            &["set", "d0/gcgroup.procs", "999999999"],
            "No such process",
            "no governed process has this pid",
        ),
    ] {
        let text = refused(mount.gcgroupfs(arguments));
        let path = arguments[1];
        let found = text.strip_prefix(&format!("gcgroupfs: {path}: {errno}: "));
        assert!(
            found.is_some_and(|found| found.contains(why)),
            "{arguments:?}: {text}"
        );
    }
}

#[test]
fn refusal_names_the_bound_of_root_and_the_owner() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let mut command = mount.command_of(ALICE, &artifacts().load());
    command.arg("obey");
    let mut load = Governed::spawn(command);
    load.expect("ready");
    let limit = format!("{}/memory.limit", load.pid());
    gcgroupfs(&mount, &["set", &limit, "1G"]);
    let text = refused(mount.gcgroupfs_of(ALICE, &["set", &limit, "2G"]));
    assert!(
        text.contains(
            "Operation not permitted: root has set 1073741824: the memory limit can only be lowered"
        ),
        "{text}"
    );
    let text = refused(mount.gcgroupfs_of(BOB, &["set", &limit, "1M"]));
    assert!(
        text.contains("Permission denied: only its owner (uid 1000) and root"),
        "{text}"
    );
    gcgroupfs(&mount, &["mkdir", "closed"]);
    fs::set_permissions(
        mount.path().join("closed"),
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )
    .expect("root changes the mode");
    let text = refused(mount.gcgroupfs_of(ALICE, &["get", "closed/memory.limit"]));
    assert!(text.contains("closed to you"), "{text}");
    let text = refused(mount.gcgroupfs_of(ALICE, &["mkdir", "hers"]));
    assert!(text.contains("whom the mode allows to write"), "{text}");
    assert_eq!(
        mount.read("", &limit),
        GIB.to_string(),
        "a refused value was stored"
    );
}

#[test]
fn gc_preempt_prints_the_reason_of_the_daemon_on_that_mount() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let pid = shell.pid().to_string();
    let program = artifacts().gcgroupfs();
    let path = program.parent().expect("a directory").display();
    // The script is given neither the socket nor another `gcgroupfs`.
    let preempt = |arguments: &[&str]| {
        let mut command = Command::new(repository().join("scripts/gc-preempt"));
        command
            .env("GCGROUP", mount.path())
            .env("PATH", format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"))
            .env_remove("GCGROUP_SOCKET")
            .args(arguments);
        run(command)
    };
    let (status, text) = preempt(&["-p", "16", &pid, "--", "true"]);
    assert_eq!(status, 125, "{text}");
    assert!(
        text.starts_with("gcgroupfs: ") && text.contains("a number from 0 to 15"),
        "{text}"
    );
    let prefixed = mount.path().join(&pid);
    let prefixed = prefixed.to_str().expect("text");
    assert_eq!(preempt(&[prefixed, "--", "true"]), (0, String::new()));
    wait_until("the process is thawed", || {
        mount.read(&pid, "compute.freeze") == "0"
    });
}

#[test]
fn sizes_are_taken_as_users_write_them() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_MEMORY", 8 * GIB),
    );
    let shell = DriverShell::start(&mount);
    gcgroupfs(&mount, &["mkdir", "team"]);
    let pid = shell.pid();
    for directory in [pid.to_string(), format!("{pid}/1"), "team".to_owned()] {
        // Of a process or a group, the memory of both GPUs.
        let half = if directory.ends_with("/1") {
            4 * GIB
        } else {
            8 * GIB
        };
        for (text, bytes) in [
            ("8GB", 8 * GIB),
            ("8GiB", 8 * GIB),
            ("8G", 8 * GIB),
            ("1.5G", 3 * GIB / 2),
            ("50%", half),
            ("12.5%", half / 4),
        ] {
            for file in ["memory.limit", "memory.visible"] {
                mount.write(&directory, file, "1K");
                mount.write(&directory, file, text);
                let found = mount.read(&directory, file);
                assert_eq!(found, bytes.to_string(), "{directory} {file} {text}");
                mount.write(&directory, file, "1K");
                gcgroupfs(&mount, &["set", &format!("{directory}/{file}"), text]);
                assert_eq!(mount.read(&directory, file), found, "{directory} {file} {text}");
            }
        }
        mount.write(&directory, "compute.max", "50%");
        assert_eq!(mount.read(&directory, "compute.max"), "50000 100000");
        mount.write(&directory, "compute.max", "25% 20000");
        assert_eq!(mount.read(&directory, "compute.max"), "5000 20000");
        mount.write(&directory, "memory.limit", "max");
        let limit = format!("{directory}/memory.limit");
        gcgroupfs(&mount, &["set", "--wait", &limit, "50%"]);
        assert_eq!(mount.read(&directory, "memory.limit"), half.to_string());
    }
    mount.write("team", "memory.swap.max", "50%");
    assert_eq!(mount.read("team", "memory.swap.max"), (8 * GIB).to_string());
    let text = refused(mount.gcgroupfs(&["set", "team/memory.reclaim", "50%"]));
    assert!(text.contains("--swap"), "{text}");
}

#[test]
fn paths_are_taken_with_and_without_mount_point() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let pid = shell.pid();
    let point = mount.path();
    let link = mount.root().join("link");
    std::os::unix::fs::symlink(&point, &link).expect("a new link");
    for (prefix, has_socket) in [
        (String::new(), true),
        ("/".to_owned(), true),
        ("/gcgroup/".to_owned(), true),
        (format!("{}/", point.display()), false),
        (format!("{}/", point.display()), true),
        (format!("{}/", link.display()), false),
    ] {
        let run = |arguments: &[&str]| {
            let mut command = mount.gcgroupfs(arguments);
            if !has_socket {
                // The path leads to the daemon.
                command.env_remove("GCGROUP_SOCKET");
            }
            let (status, text) = run(command);
            assert_eq!(status, 0, "{prefix} {has_socket} {arguments:?}: {text}");
            text
        };
        let of = |name: &str| format!("{prefix}{name}");
        run(&["mkdir", &of("team")]);
        run(&["set", &of("team/memory.limit"), "1G"]);
        assert_eq!(run(&["get", &of("team/memory.limit")]), format!("{GIB}\n"));
        run(&["set", "--wait", &of(&format!("{pid}/memory.limit")), "1G"]);
        run(&["freeze", "--wait", &of(&pid.to_string()), &of("team")]);
        run(&["wait", &of(&format!("{pid}/gcgroup.events")), "frozen=1"]);
        run(&["thaw", &of(&pid.to_string()), &of("team")]);
        run(&["rmdir", &of("team")]);
    }
    let (status, text) = run(mount.gcgroupfs(&["freeze", &point.display().to_string()]));
    assert_eq!(status, 2, "{text}");
}

#[test]
fn default_mount_point_is_stripped_without_a_mount() {
    let mount = Mount::with(Config::default().arg("--no-fuse"));
    gcgroupfs(&mount, &["mkdir", "/gcgroup/team"]);
    assert_eq!(gcgroupfs(&mount, &["get", "/gcgroup/team/memory.limit"]), "max\n");
    gcgroupfs(&mount, &["wait", "/gcgroup/team/memory.limit", "=max"]);
}

#[test]
fn processes_of_the_daemon_are_named_gcgroupfs() {
    for arguments in [&[][..], &["--supervise"]] {
        let config = arguments
            .iter()
            .fold(Config::default(), |config, argument| config.arg(argument));
        let mount = Mount::with(config);
        let first = mount.daemon().expect("a daemon").as_raw();
        let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap_or_default();
        let pids = children
            .split_ascii_whitespace()
            .map(str::to_owned)
            .chain([first.to_string()]);
        for pid in pids {
            // A helper sets its name after its start, and may have ended meanwhile.
            wait_until("the process has its name", || {
                let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                matches!(comm.trim_end(), "gcgroupfs" | "")
            });
        }
    }
}
