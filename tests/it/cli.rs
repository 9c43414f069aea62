//! Tests the command line: `run`, `get`, `set`, `ls` and related commands.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use support::{Governed, Mount, c_program_by, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;

fn output(mut command: Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("gcgroupfs runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (
        status.code().expect("the process exits by itself"),
        text(stdout),
        text(stderr),
    )
}

#[test]
fn get_and_set_match_reads_and_writes_of_the_mount() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let (pid, dir) = (shell.pid(), Dir::of(&mount, shell.pid()));
    let get = |path: &str| output(mount.gcgroupfs(&["get", path]));
    let set = |path: &str, value: &str| output(mount.gcgroupfs(&["set", path, value]));

    assert_eq!(
        set(&format!("{pid}/memory.limit"), "6M"),
        (0, String::new(), String::new())
    );
    assert_eq!(dir.number("memory.limit"), 6 * MIB);
    assert_eq!(
        get(&format!("{pid}/memory.limit")),
        (0, format!("{}\n", 6 * MIB), String::new())
    );
    dir.gpu(0).write("compute.priority", 3);
    assert_eq!(get(&format!("{pid}/0/compute.priority")).1, "3\n");
    assert_eq!(get("gcgroup.procs").1, format!("{pid}\n"));

    for (path, value, why) in [
        (
            format!("{pid}/memory.limit"),
            "junk",
            "Invalid argument: expected bytes",
        ),
        (
            format!("{pid}/compute.priority"),
            "16",
            "Numerical result out of range",
        ),
        (format!("{pid}/no.such.file"), "1", "No such file or directory"),
    ] {
        let (status, stdout, stderr) = set(&path, value);
        assert_eq!((status, stdout.as_str()), (1, ""), "{path}");
        assert!(stderr.contains(&path) && stderr.contains(why), "{stderr}");
    }
    assert_eq!(
        dir.number("memory.limit"),
        6 * MIB,
        "a refused value changed the limit"
    );
    let (status, _, stderr) = get("999999999/memory.limit");
    assert_eq!(status, 1);
    assert!(stderr.contains("999999999"), "{stderr}");
}

#[test]
fn commands_work_without_fuse() {
    let mount = Mount::with(support::Config::default().arg("--no-fuse"));
    let mut shell = DriverShell::start(&mount);
    let pid = shell.pid();
    let limit = format!("{pid}/memory.limit");
    assert_eq!(output(mount.gcgroupfs(&["set", &limit, "1M"])).0, 0);
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "error 2");
    let (status, stdout, _) = output(mount.gcgroupfs(&["get", &format!("{pid}/memory.events")]));
    assert_eq!(status, 0);
    assert!(stdout.contains("oom 1"), "{stdout}");
}

#[test]
fn run_applies_settings_before_the_first_call() {
    let mount = Mount::new();
    let program = driver_shell();
    let mut command = mount.gcgroupfs(&["run", "--memory-limit", "5M", "--priority", "3", "--freeze", "--"]);
    command.arg(program);
    let mut shell = DriverShell::spawn(command);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask(&format!("alloc linear {}", 5 * MIB + 1)), "error 2");
    assert_eq!(shell.ask(&format!("alloc linear {}", 5 * MIB)), "ok 0");
    assert_eq!(dir.number("memory.limit"), 5 * MIB);
    assert_eq!(dir.number("compute.priority"), 3);
    assert_eq!(dir.number("compute.freeze"), 1);
    wait_until("the process is frozen and drained", || dir.is_frozen());
    shell.tell("spin 1 1");
    wait_until("the launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") >= 1
    });
    assert_eq!(dir.launches(), 0);
    dir.write("compute.freeze", 0);
    assert_eq!(shell.answer(), "ok");
}

#[test]
fn run_behaves_like_its_command() {
    let mount = Mount::new();
    for (words, status) in [
        (&["run", "--", "sh", "-c", "exit 7"][..], 7),
        (&["run", "true"], 0),
        (&["run", "--", "/no/such/program"], 127),
        (&["run", "--", "/etc/passwd"], 126),
        (&["run", "--memory-limit", "junk", "--", "true"], 2),
        (&["run", "--memory-limt", "1G", "--", "true"], 2),
        (&["run", "--", "--no-such-program"], 127),
        (&["run", "--priority", "16", "--", "true"], 2),
    ] {
        let (code, stdout, _) = output(mount.gcgroupfs(words));
        assert_eq!((code, stdout.as_str()), (status, ""), "{words:?}");
    }
    let mut command = mount.gcgroupfs(&["run", "--", "printf", "%s"]);
    command.arg(OsStr::from_bytes(b"a\xff"));
    assert_eq!(command.output().expect("gcgroupfs runs").stdout, b"a\xff");
    let (_, stdout, _) = output(mount.gcgroupfs(&["run", "--", "sh", "-c", "echo $LD_PRELOAD"]));
    assert!(stdout.trim_end().ends_with("/libgcgroup.so"), "{stdout}");
    let lonely = mount.root().join("gcgroupfs");
    support::copy_program(&support::artifacts().gcgroupfs(), &lonely);
    let mut command = Command::new(lonely);
    command.args(["run", "--", "true"]);
    let (status, _, stderr) = output(command);
    assert_eq!(status, 125, "{stderr}");
    assert!(stderr.contains("no preload library"), "{stderr}");
}

#[test]
fn ls_lists_governed_processes() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    shell.ask(&format!("alloc linear {}", 3 * MIB));
    Dir::of(&mount, shell.pid()).write("memory.limit", 8 * MIB);
    shell.ask("spin 1 4");
    let (status, stdout, stderr) = output(mount.gcgroupfs(&["ls"]));
    assert_eq!((status, stderr.as_str()), (0, ""));
    let mut lines = stdout.lines();
    assert!(
        lines
            .next()
            .is_some_and(|head| head.trim_start().starts_with("PID")),
        "{stdout}"
    );
    let row = lines
        .find(|line| line.trim_start().starts_with(&shell.pid().to_string()))
        .expect("a row");
    for cell in ["root", "3M", "8M", "4"] {
        assert!(
            row.split_whitespace().any(|word| word.starts_with(cell)),
            "no cell {cell} in {row}"
        );
    }
    let (_, json, _) = output(mount.gcgroupfs(&["ls", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(json.to_string().contains(&shell.pid().to_string()));
}

#[test]
fn limit_given_to_run_holds_without_a_daemon() {
    let mut mount = Mount::new();
    mount.stop();
    // The context is expected to take 256 MiB.
    let mut command = mount.gcgroupfs(&["run", "--best-effort", "--memory-limit", "262M", "--"]);
    command.arg(driver_shell());
    let mut shell = DriverShell::spawn(command);
    assert_eq!(shell.ask(&format!("alloc linear {}", 6 * MIB + 1)), "error 2");
    assert_eq!(shell.ask(&format!("alloc linear {}", 6 * MIB)), "ok 0");
    let (status, _, stderr) = output(mount.gcgroupfs(&["ls"]));
    assert_eq!(status, 1);
    assert!(stderr.contains("no daemon"), "{stderr}");
}

#[test]
fn required_daemon_missing_makes_cuda_fail() {
    let mut mount = Mount::new();
    mount.stop();
    let mut command = mount.command(driver_shell());
    command.env("GCGROUP_REQUIRED", "1");
    let banner = Governed::spawn(command).expect("ready");
    assert!(!banner.ends_with(" 0"), "cuInit succeeded: {banner}");
}

#[test]
fn required_switch_has_the_usual_spellings() {
    let mut mount = Mount::new();
    mount.stop();
    for (value, answer) in [
        ("true", 802),
        ("YES", 802),
        ("on", 802),
        ("ja", 802),
        ("off", 0),
        ("", 0),
    ] {
        let mut command = mount.command(driver_shell());
        command.env("GCGROUP_REQUIRED", value);
        let banner = Governed::spawn(command).expect("ready");
        assert!(banner.ends_with(&format!(" {answer}")), "{value:?}: {banner}");
    }
}

#[test]
fn value_that_is_not_understood_is_named_and_refuses_required_cuda() {
    let mount = Mount::new();
    let long = "x".repeat(140);
    fs::create_dir(mount.path().join(&long)).expect("root may create a group");
    let values: [(&str, &[u8]); 7] = [
        ("GCGROUP_GROUP", long.as_bytes()),
        ("GCGROUP_GROUP", b"te\xffm"),
        ("GCGROUP_MEMORY_LIMIT", b"8 G"),
        ("GCGROUP_SWAP", b"much"),
        ("GCGROUP_PRIORITY", b"16"),
        ("GCGROUP_FREEZE", b"2"),
        ("GCGROUP_RECLAIM", b"youngest"),
    ];
    for (name, value) in values {
        for (required, answer) in [("1", " 802"), ("0", " 0")] {
            let mut command = mount.command(driver_shell());
            command
                .env(name, OsStr::from_bytes(value))
                .env("GCGROUP_REQUIRED", required);
            let mut program = Governed::spawn(command);
            let banner = program.expect("ready");
            assert!(banner.ends_with(answer), "{name} {required}: {banner}");
            wait_until("the variable is named", || program.stderr().contains(name));
        }
    }
}

#[test]
fn program_that_cannot_load_the_library_is_not_started_with_a_setting() {
    let mount = Mount::new();
    let directory = tempfile::tempdir().expect("a directory");
    let program = c_program_by("musl-gcc", "inert.c", &["-static"]);
    let script = directory.path().join("script");
    fs::write(&script, format!("#!/usr/bin/env {}\n", program.display())).expect("the file is writable");
    fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("the owner may change the mode");
    for words in [
        vec![program.as_path()],
        vec![&script],
        vec![Path::new("nice"), &program],
    ] {
        for (options, wanted) in [
            (&["--memory-limit", "1M"][..], true),
            (&["--memory-limit", "1M", "--best-effort"], false),
        ] {
            let mut command = mount.gcgroupfs(&["run"]);
            command.args(options).arg("--").args(&words);
            let (status, _, stderr) = output(command);
            assert_eq!(status == 125, wanted, "{words:?}: {stderr}");
            assert!(stderr.contains("statically linked"), "{stderr}");
        }
    }
}

#[test]
fn second_daemon_is_refused_and_first_keeps_serving() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let other = tempfile::tempdir().expect("a directory");
    let mut command = mount.gcgroupfs(&["mount"]);
    command.arg(other.path()).arg("--state-dir").arg(other.path());
    let (status, _, stderr) = output(command);
    assert_ne!(status, 0);
    assert!(!stderr.is_empty());
    assert!(Dir::of(&mount, shell.pid()).exists());
}
