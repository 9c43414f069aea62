//! Tests `gcgroupfs explain`: what is in force and where it comes from, refusals, waits, and why a process is
//! not governed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::{Config, Governed, Mount, artifacts, c_program_by, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};
use crate::rules::{ALICE, BOB, Ruled};

const MIB: u64 = 1 << 20;

/// Returns whether it succeeded, and all output.
fn output(mut command: Command) -> (bool, String) {
    let output = command.output().expect("gcgroupfs runs");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[track_caller]
fn explain(mount: &Mount, name: impl ToString) -> String {
    let (done, text) = output(mount.gcgroupfs(&["explain", &name.to_string()]));
    assert!(done, "{text}");
    text
}

/// Returns the lines of a section, without indentation.
#[track_caller]
fn section<'a>(text: &'a str, title: &str) -> Vec<&'a str> {
    let mut lines = text.lines().skip_while(|line| *line != format!("{title}:"));
    assert!(lines.next().is_some(), "no section {title}: {text}");
    lines.take_while(|line| !line.is_empty()).map(str::trim).collect()
}

/// Splits a line into its time, as 10:31:05, and the rest.
#[track_caller]
fn timed(line: &str) -> &str {
    let (time, rest) = line.split_once(' ').expect("a time");
    let parts: Vec<&str> = time.split(':').collect();
    assert_eq!(parts.len(), 3, "{line}");
    assert!(
        parts
            .iter()
            .all(|part| part.len() == 2 && part.parse::<u32>().is_ok()),
        "{line}"
    );
    rest
}

const IN_FORCE: &str = "Limits and settings in force";
const REFUSALS: &str = "Last refusals";
const TODO: &str = "What can be done";

#[test]
fn refusal_names_the_limit_of_group_process_or_device() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let (pid, dir) = (shell.pid(), Dir::of(&mount, shell.pid()));
    fs::create_dir(mount.file("team", "")).expect("a new group");
    mount.write("team", "gcgroup.procs", &pid.to_string());
    assert_eq!(section(&explain(&mount, pid), REFUSALS), ["none"]);
    assert_eq!(shell.ask(&format!("alloc linear {}", 4 * MIB)), "ok 0");

    let mut refuse = |file: &str, expected: &str, todo: &str| {
        let path = file.rsplit_once('/').expect("a directory");
        mount.write(path.0, path.1, "6M");
        assert_eq!(shell.ask(&format!("alloc linear {}", 3 * MIB)), "error 2");
        wait_until("the refusal is noted", || {
            section(&explain(&mount, pid), REFUSALS)[0].contains(expected)
        });
        let text = explain(&mount, pid);
        let refused = timed(section(&text, REFUSALS)[0]);
        assert_eq!(
            refused,
            format!("refused 3 MiB on GPU 0: {expected} 6 MiB, used 4 MiB"),
            "{text}"
        );
        assert!(
            section(&text, TODO).iter().any(|line| line.starts_with(todo)),
            "{text}"
        );
        mount.write(path.0, path.1, "max");
    };
    refuse(
        "team/memory.limit",
        "/team limit",
        "gcgroupfs set team/memory.limit SIZE   (as root)",
    );
    refuse(
        &format!("{pid}/memory.limit"),
        "memory.limit of the process",
        &format!("gcgroupfs set {pid}/memory.limit SIZE"),
    );
    refuse(
        &format!("{pid}/0/memory.limit"),
        "memory.limit of the process on the GPU",
        &format!("gcgroupfs set {pid}/0/memory.limit SIZE"),
    );
    let text = explain(&mount, "team");
    assert_eq!(section(&text, REFUSALS).len(), 1, "{text}");
    assert!(
        section(&text, REFUSALS)[0].contains("/team limit 6 MiB, used 4 MiB"),
        "{text}"
    );

    // Only the last ones are kept.
    dir.write("memory.limit", "5M");
    for size in 10..20 {
        assert_eq!(shell.ask(&format!("alloc linear {}", size * MIB)), "error 2");
        wait_until("the refusal is noted", || {
            section(&explain(&mount, pid), REFUSALS)[0].contains(&format!("refused {size} MiB"))
        });
    }
    assert_eq!(section(&explain(&mount, pid), REFUSALS).len(), 8);
}

#[test]
fn memory_refused_by_the_driver_is_no_limit() {
    let mount = Mount::with(Config::default().env("SIMGPU_MEMORY", "16M"));
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask(&format!("alloc linear {}", 64 * MIB)), "error 2");
    wait_until("the refusal is noted", || {
        section(&explain(&mount, shell.pid()), REFUSALS)[0].contains("not by a limit")
    });
}

#[test]
fn origins_are_writer_rule_and_start() {
    let ruled = Ruled::new(
        "[[rule]]\nname = \"small\"\nmatch.uid = 1000\ngroup.name = \"users/alice\"\n\
         group.memory.limit = \"1G\"\nprocess.compute.priority = 9\n",
    );
    let mount = &ruled.mount;
    let mut command = mount.command_of(ALICE, &driver_shell());
    command.env("GCGROUP_MEMORY_LIMIT", "512M");
    let shell = DriverShell::spawn(command);
    let pid = shell.pid();
    let text = explain(mount, pid);
    assert!(
        text.starts_with(&format!("process {pid} (driver_shell"))
            && text.contains("of uid 1000, in group /users/alice\n"),
        "{text}"
    );
    let found = section(&text, IN_FORCE);
    for expected in [
        format!("{pid}/memory.limit 512 MiB (used 0 B): asked for by the program when it started"),
        "/users/alice/memory.limit 1 GiB (used 0 B): rule 1, line 1 of the configuration (small)".to_owned(),
        format!("{pid}/compute.priority 9: rule 1, line 1 of the configuration (small)"),
    ] {
        assert!(
            found
                .iter()
                .any(|line| line.contains(&expected) && timed(line) == expected),
            "{expected}: {text}"
        );
    }
    // The mount tells the thread that wrote.
    mount.write(pid, "memory.limit", "256M");
    mount.write(format!("{pid}/0"), "compute.priority", "12");
    let (done, said) = output(mount.gcgroupfs_of(ALICE, &["set", &format!("{pid}/compute.max"), "50%"]));
    assert!(done, "{said}");
    let text = explain(mount, pid);
    let me = nix::unistd::gettid();
    for expected in [
        format!("{pid}/memory.limit 256 MiB (used 0 B): written by uid 0, pid {me}"),
        format!("{pid}/0/compute.priority 12: written by uid 0, pid {me}"),
        format!("{pid}/compute.priority 9: rule 1,"),
        format!("{pid}/compute.max 50000 100000: written by uid 1000, pid "),
    ] {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    // The group's value holds for a process that has none, not for this one.
    mount.write("users/alice", "compute.priority", "10");
    let text = explain(mount, pid);
    assert!(!text.contains("compute.priority 10"), "{text}");
    assert!(explain(mount, "users/alice").contains("/users/alice/compute.priority 10"));
}

#[test]
fn settings_of_an_earlier_daemon_are_told_apart() {
    let mut mount = Mount::new();
    let shell = DriverShell::start(&mount);
    mount.write(shell.pid(), "memory.limit", "256M");
    mount.restart();
    wait_until("the process is back", || mount.governs(shell.pid()));
    let expected = "memory.limit 256 MiB (used 0 B): set before the daemon was started";
    let text = explain(&mount, shell.pid());
    assert!(text.contains(expected), "{text}");
}

#[test]
fn waits_name_freeze_and_its_remedy() {
    let mount = Mount::with(Config::default().arg("--no-fuse"));
    let mut shell = DriverShell::start(&mount);
    let pid = shell.pid().to_string();
    let run = |arguments: &[&str]| {
        let (done, text) = output(mount.gcgroupfs(arguments));
        assert!(done, "{text}");
    };
    run(&["mkdir", "team"]);
    run(&["set", "team/gcgroup.procs", &pid]);
    assert_eq!(section(&explain(&mount, &pid), "Waits"), ["none"]);
    run(&["freeze", "team"]);
    shell.tell("spin 1 1");
    let expected = "frozen on GPU 0 by /team/compute.freeze; 1 thread waits; submitted work has completed";
    wait_until("the launch waits", || {
        section(&explain(&mount, &pid), "Waits") == [expected]
    });
    let text = explain(&mount, "/gcgroup/team");
    assert!(
        section(&text, "Waits")[0].starts_with("frozen by /team/compute.freeze"),
        "{text}"
    );
    assert_eq!(
        section(&text, TODO),
        ["gcgroupfs set team/compute.freeze 0   (as root)"]
    );
    run(&["thaw", "team"]);
    assert_eq!(shell.answer(), "ok");
}

#[test]
fn closed_group_is_neither_explained_nor_named() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let shell = DriverShell::spawn(mount.command_of(ALICE, &driver_shell()));
    let pid = shell.pid().to_string();
    let team = mount.file("secret", "");
    fs::create_dir(&team).expect("a new group");
    mount.write("secret", "memory.limit", "1G");
    mount.write("secret", "gcgroup.procs", &pid);
    let of_bob = |name: &str| output(mount.gcgroupfs_of(BOB, &["explain", name]));
    assert!(of_bob(&pid).1.contains("in group /secret"));
    fs::set_permissions(&team, fs::Permissions::from_mode(0o700)).expect("root changes the mode");
    let (done, text) = of_bob(&pid);
    assert!(
        done && text.contains("(hidden group)/memory.limit 1 GiB"),
        "{text}"
    );
    assert!(!text.contains("secret"), "{text}");
    let (done, text) = of_bob("secret");
    assert!(!done && text.contains("closed to you"), "{text}");
}

/// Returns why a process is not governed.
#[track_caller]
fn why(mount: &Mount, pid: i32) -> String {
    let text = explain(mount, pid);
    assert!(text.contains("not governed"), "{text}");
    assert!(!section(&text, TODO).is_empty(), "{text}");
    section(&text, "Why").join("\n")
}

/// Starts `sh`, which waits for input.
fn waiting(mut command: Command) -> Governed {
    command.args(["-c", "echo ready; read -r line"]);
    let mut program = Governed::spawn(command);
    program.expect("ready");
    program
}

#[test]
fn ungoverned_process_has_a_reason() {
    let mount = Mount::new();
    let bare = DriverShell::start_bare(&mount);
    assert!(why(&mount, bare.pid()).contains("neither gcgroupfs run nor /etc/ld.so.preload"));

    let idle = waiting(mount.command("/bin/sh"));
    assert!(why(&mount, idle.pid()).contains("it has not used a GPU yet"));

    let mut command = mount.command("/bin/sh");
    command.args(["-c", "env -i sh -c 'echo $$; read -r line'; true"]);
    let mut parent = Governed::spawn(command);
    let child = parent.line().expect("a pid").parse().expect("a pid");
    let reason = why(&mount, child);
    let expected = format!("LD_PRELOAD was removed between process {} (sh)", parent.pid());
    assert!(reason.contains(&expected), "{reason}");

    let mut program = Command::new(c_program_by("musl-gcc", "waits.c", &["-static"]));
    program.env("LD_PRELOAD", artifacts().preload());
    let mut program = Governed::spawn(program);
    program.expect("ready");
    assert!(why(&mount, program.pid()).contains("static program"));

    // No daemon of this machine sees it.
    let (done, text) = output(mount.gcgroupfs(&["explain", "999999999"]));
    assert!(!done && text.contains("no such process or group"), "{text}");
    let (done, text) = output(mount.gcgroupfs(&["explain", "nowhere"]));
    assert!(!done && text.contains("no such process or group"), "{text}");
}

/// Copies the libraries to a directory and returns the path of the preloaded one.
fn libraries(directory: &Path) -> std::path::PathBuf {
    for library in [artifacts().preload(), artifacts().hook()] {
        let name = library.file_name().expect("a name");
        fs::copy(&library, directory.join(name)).expect("a copy");
    }
    directory.join("libgcgroup.so")
}

#[test]
fn unreadable_hook_and_absent_daemon_are_reasons() {
    let mut mount = Mount::with(Config::default().arg("--allow-other"));
    let directory = mount.root().join("copies");
    fs::create_dir(&directory).expect("a directory");
    let preload = libraries(&directory);
    let hook = directory.join("libgcgroup_hook.so");
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o600)).expect("root changes the mode");
    let mut command = mount.command_of(ALICE, &driver_shell());
    command.env("LD_PRELOAD", &preload);
    let blocked = DriverShell::spawn(command);
    let reason = why(&mount, blocked.pid());
    let expected = format!("the hook is missing or it may not read it: {}", hook.display());
    assert!(reason.contains(&expected), "{reason}");
    let (done, text) = output(mount.gcgroupfs_of(BOB, &["explain", &blocked.pid().to_string()]));
    assert!(done && text.contains("only its user and root may"), "{text}");

    let other = {
        let mut command = mount.command(driver_shell());
        command.env("GCGROUP_SOCKET", "/nowhere/socket");
        DriverShell::spawn(command)
    };
    assert!(why(&mount, other.pid()).contains("it registers at /nowhere/socket"));

    mount.kill9();
    let late = DriverShell::start(&mount);
    let reason = why(&mount, late.pid());
    assert!(reason.contains("the daemon is absent"), "{reason}");
    assert!(reason.contains("no daemon answers at"), "{reason}");
}
