//! Tests `gcgroupfs hold`: settings that hold as long as a process lives.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use support::{Config, Governed, Mount, wait_until};

/// Starts `gcgroupfs hold` without a command, and waits until the values are in force.
#[track_caller]
fn held(mount: &Mount, arguments: &[&str]) -> Governed {
    let mut command = mount.gcgroupfs(&["hold"]);
    command.args(arguments);
    let mut holder = Governed::spawn(command);
    holder.expect("held");
    holder
}

fn run(mut command: Command) -> Output {
    command.output().expect("the command starts")
}

fn hold(mount: &Mount, arguments: &[&str]) -> Output {
    let mut command = mount.gcgroupfs(&["hold"]);
    command.args(arguments);
    run(command)
}

fn explain(mount: &Mount, path: &str) -> String {
    let output = run(mount.gcgroupfs(&["explain", path]));
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn thaws(mount: &Mount, name: &str) {
    wait_until("the freeze has ended", || {
        mount.read(name, "compute.freeze") == "0"
    });
}

/// Waits until the process has registered with the daemon that was started again.
fn returns(mount: &Mount, process: &Governed) {
    wait_until("the process has registered again", || {
        mount.governs(process.pid())
    });
}

#[test]
fn command_runs_while_values_hold() {
    let mount = Mount::new();
    let mut process = mount.obedient();
    let pid = process.pid().to_string();
    mount.write(&pid, "memory.limit", "4G");
    let look = format!(
        "cd '{0}/{pid}'; cat compute.freeze compute.priority memory.limit; exit 7",
        mount.path().display()
    );
    let arguments = [
        "--freeze",
        "--priority=12",
        "--memory-limit=1G",
        &pid,
        "--",
        "sh",
        "-c",
        &look,
    ];
    let output = hold(&mount, &arguments);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(output.stdout, b"1\n12\n1073741824\n");
    thaws(&mount, &pid);
    // All end at once.
    assert_eq!(mount.read(&pid, "compute.priority"), "8");
    assert_eq!(mount.read(&pid, "memory.limit"), (4_u64 << 30).to_string());
    assert_eq!(process.ask("launch 1"), "launched 1");
}

#[test]
fn freeze_ends_with_a_killed_process_group() {
    let mount = Mount::new();
    let mut process = mount.obedient();
    let pid = process.pid().to_string();
    let mut command = mount.gcgroupfs(&["hold", "--freeze", &pid, "--", "sh", "-c"]);
    command.arg("sleep 1000 & echo started $$; wait").process_group(0);
    let mut holder = Governed::spawn(command);
    let started = holder.expect("started ");
    assert_eq!(started, format!("started {}", holder.pid()));
    assert_eq!(mount.read(&pid, "compute.freeze"), "1");
    killpg(Pid::from_raw(holder.pid()), Signal::SIGKILL).expect("the group is there");
    assert_eq!(holder.wait().signal(), Some(Signal::SIGKILL as i32));
    thaws(&mount, &pid);
    assert_eq!(process.ask("launch 1"), "launched 1");
}

#[test]
fn without_a_command_standard_input_ends_it() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    let device = format!("{pid}/0");
    let mut holder = held(&mount, &["--freeze", &device]);
    assert_eq!(mount.read(&device, "compute.freeze"), "1");
    assert_eq!(mount.read(&pid, "compute.freeze"), "0");
    holder.close_stdin();
    assert!(holder.wait().success());
    thaws(&mount, &device);
}

#[test]
fn several_holders_combine_and_are_explained() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    assert!(run(mount.gcgroupfs(&["mkdir", "team"])).status.success());
    mount.write("team", "gcgroup.procs", &pid);
    let one = held(&mount, &["--memory-limit", "2G", "--freeze", "team", &pid]);
    let two = held(&mount, &["--memory-limit", "1G", "team"]);
    assert_eq!(mount.read("team", "memory.limit"), (1_u64 << 30).to_string());
    assert_eq!(mount.read(&pid, "memory.limit"), (2_u64 << 30).to_string());
    let told = explain(&mount, &pid);
    for wanted in [
        format!("/team/memory.limit 1 GiB: held by pid {} of uid 0", two.pid()),
        format!("/team/memory.limit 2 GiB: held by pid {} of uid 0", one.pid()),
        format!("{pid}/compute.freeze 1: held by pid {} of uid 0", one.pid()),
    ] {
        assert!(told.contains(&wanted), "{wanted}: {told}");
    }
    drop(two);
    wait_until("the looser limit is in force", || {
        mount.read("team", "memory.limit") == (2_u64 << 30).to_string()
    });
    assert_eq!(mount.read("team", "compute.freeze"), "1");
    drop(one);
    thaws(&mount, "team");
    thaws(&mount, &pid);
    assert_eq!(mount.read("team", "memory.limit"), "max");
    assert!(!explain(&mount, &pid).contains("held by"));
}

#[test]
fn restart_of_the_daemon_ends_no_hold() {
    let mut mount = Mount::new();
    let (mut process, other) = (mount.obedient(), mount.obedient());
    let (pid, out) = (process.pid().to_string(), other.pid().to_string());
    assert!(run(mount.gcgroupfs(&["mkdir", "team"])).status.success());
    mount.write("team", "gcgroup.procs", &pid);
    let holder = held(&mount, &["--freeze", "team", &out]);
    let short = held(&mount, &["--priority=13", &out]);
    for _ in 0..2 {
        mount.kill9();
        mount.restart();
        returns(&mount, &process);
        returns(&mount, &other);
        assert_eq!(mount.read("team", "compute.freeze"), "1");
        assert_eq!(mount.read(&out, "compute.freeze"), "1");
        assert_eq!(mount.read(&out, "compute.priority"), "13");
        wait_until("all are drained", || {
            [&pid, &out]
                .iter()
                .all(|pid| mount.number(pid, "gcgroup.events", "frozen") == 1)
        });
    }
    drop(short);
    wait_until("the priority has ended", || {
        mount.read(&out, "compute.priority") == "8"
    });
    drop(holder);
    thaws(&mount, "team");
    thaws(&mount, &out);
    assert_eq!(process.ask("launch 1"), "launched 1");
}

#[test]
fn holder_that_ends_without_a_daemon_holds_nothing_afterwards() {
    let mut mount = Mount::with(Config::default().arg("--on-daemon-loss").arg("hold"));
    let mut process = mount.obedient();
    let pid = process.pid().to_string();
    assert!(run(mount.gcgroupfs(&["mkdir", "team"])).status.success());
    let mut holder = held(&mount, &["--freeze", &pid, "team"]);
    wait_until("the process is drained", || {
        mount.number(&pid, "gcgroup.events", "frozen") == 1
    });
    mount.kill9();
    holder.signal(Signal::SIGKILL);
    holder.wait();
    mount.restart();
    assert_eq!(mount.read("team", "compute.freeze"), "0");
    returns(&mount, &process);
    assert_eq!(mount.read(&pid, "compute.freeze"), "0");
    assert_eq!(process.ask("launch 1"), "launched 1");
}

#[test]
fn refused_hold_changes_nothing_and_runs_nothing() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    for (arguments, why) in [
        (&["--freeze", "--memory-limit=much", &pid][..], "1.5GiB"),
        (&["--priority=16", &pid], "a number from 0 to 15"),
        (&["--freeze", &pid, "999999999"], "gcgroupfs ls"),
        (&["--freeze", &pid, "team/memory.limit"], "gcgroupfs ls"),
        (&["--freeze", &pid, &format!("{pid}/memory.limit")], "is a file"),
    ] {
        let mut all = arguments.to_vec();
        all.extend(["--", "echo", "ran"]);
        let output = hold(&mount, &all);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {said}");
        assert!(
            output.stdout.is_empty() && said.contains(why),
            "{arguments:?}: {said}"
        );
        assert_eq!(mount.read(&pid, "compute.freeze"), "0", "{arguments:?}");
    }
    let output = hold(&mount, &["--freeze", &pid, "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    thaws(&mount, &pid);
}

#[test]
fn users_hold_only_what_is_theirs() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let process = mount.obedient();
    let pid = process.pid().to_string();
    let mut command = mount.gcgroupfs(&["hold", "--freeze", &pid, "--", "echo", "ran"]);
    command.uid(65534).gid(65534);
    let output = run(command);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(mount.read(&pid, "compute.freeze"), "0");
}
