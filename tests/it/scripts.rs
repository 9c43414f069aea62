//! Tests the scripts on a real mount.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use nix::sys::signal::Signal;
use support::{Config, Governed, Mount, artifacts, c_program, repository, wait_until};

fn command(mount: &Mount, script: &str) -> Command {
    let mut command = Command::new(repository().join("scripts").join(script));
    let programs = artifacts().gcgroupfs();
    let programs = programs.parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    command.env("GCGROUP", mount.path()).env("PATH", path);
    command
}

#[track_caller]
fn run(mount: &Mount, script: &str, arguments: &[&str]) -> Output {
    command(mount, script).args(arguments).output().unwrap()
}

#[track_caller]
fn ok(mount: &Mount, script: &str, arguments: &[&str]) -> String {
    let output = run(mount, script, arguments);
    assert!(output.status.success(), "{script} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn scripts_print_their_usage() {
    let mount = Mount::new();
    for script in ["gc-preempt", "gc-autopreempt"] {
        let usage = format!("usage: {script} ");
        for asked in ["-h", "--help"] {
            assert!(ok(&mount, script, &[asked]).starts_with(&usage), "{script}");
        }
        let wrong = run(&mount, script, &[]);
        assert_eq!(wrong.status.code(), Some(2), "{script}");
        assert!(
            String::from_utf8_lossy(&wrong.stderr).starts_with(&usage),
            "{script}"
        );
    }
}

#[test]
fn scripts_report_refusals_of_the_daemon() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    for arguments in [["x", &pid], [&pid, "x"]] {
        let output = run(&mount, "gc-autopreempt", &arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn scripts_without_gcgroupfs_in_the_path_fail() {
    let mount = Mount::new();
    let (watched, process) = (mount.obedient(), mount.obedient());
    let pids = [watched.pid().to_string(), process.pid().to_string()];
    for script in ["gc-autopreempt", "gc-preempt"] {
        let mut command = command(&mount, script);
        let output = command.env("PATH", "/nonexistent").args(&pids).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            format!("{script}: gcgroupfs is not in the path\n")
        );
    }
}

#[test]
fn scripts_without_a_daemon_say_so_in_one_line() {
    let mut mount = Mount::new();
    mount.stop();
    for (script, arguments) in [
        ("gc-autopreempt", &["1", "2"][..]),
        ("gc-preempt", &["1", "--", "true"]),
        ("gc-preempt", &["--suspend", "1", "--", "true"]),
    ] {
        let mut command = command(&mount, script);
        command.env("GCGROUP_SOCKET", mount.socket());
        let output = command.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{script}");
        assert!(
            said.contains("no daemon at ") && said.lines().count() == 1,
            "{script}: {said}"
        );
    }
}

#[test]
fn gc_preempt_freezes_only_while_the_command_runs() {
    let mount = Mount::new();
    let (process, frozen) = (mount.obedient(), mount.obedient());
    let (pid, other) = (process.pid().to_string(), frozen.pid().to_string());
    mount.write(&other, "compute.freeze", "1");
    let look = format!(
        "cat {0}/{pid}/compute.freeze {0}/{other}/compute.freeze; exit 7",
        mount.path().display()
    );
    let output = run(&mount, "gc-preempt", &[&pid, &other, "--", "sh", "-c", &look]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(output.stdout, b"1\n1\n");
    wait_until("the process is thawed", || {
        mount.read(&pid, "compute.freeze") == "0"
    });
    assert_eq!(
        mount.read(&other, "compute.freeze"),
        "1",
        "the script thawed a process that was frozen before"
    );
}

#[test]
fn gc_preempt_thaws_when_it_is_ended() {
    let mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGKILL,
    ] {
        let mut preempt = command(&mount, "gc-preempt");
        preempt.args([&pid, "--", "sh", "-c", "echo started $$; exec sleep 1000"]);
        let mut preempt = Governed::spawn(preempt);
        let started = preempt.expect("started ");
        let pid_of_command = started.trim_start_matches("started ").parse();
        assert_eq!(
            pid_of_command,
            Ok(preempt.pid()),
            "the command has the script's pid"
        );
        assert_eq!(mount.read(&pid, "compute.freeze"), "1");
        preempt.signal(signal);
        assert_eq!(preempt.wait().signal(), Some(signal as i32), "{signal}");
        wait_until("the process is thawed", || {
            mount.read(&pid, "compute.freeze") == "0"
        });
    }
}

#[test]
fn gc_preempt_thaws_when_the_daemon_is_back() {
    let mut mount = Mount::new();
    let process = mount.obedient();
    let pid = process.pid().to_string();
    let mut preempt = command(&mount, "gc-preempt");
    preempt.args([&pid, "--", "sh", "-c", "echo started; exec sleep 1000"]);
    let mut preempt = Governed::spawn(preempt);
    preempt.expect("started");
    mount.kill9();
    preempt.signal(Signal::SIGTERM);
    mount.restart();
    assert!(!preempt.wait().success());
    wait_until("the process has registered again", || {
        mount.governs(process.pid())
    });
    wait_until("the process is thawed", || {
        mount.read(&pid, "compute.freeze") == "0"
    });
}

#[test]
fn gc_preempt_can_lower_priority_instead() {
    let mount = Mount::new();
    let (process, least) = (mount.obedient(), mount.obedient());
    let (pid, other) = (process.pid().to_string(), least.pid().to_string());
    mount.write(&pid, "compute.priority", "3");
    mount.write(&other, "compute.priority", "15");
    let look = format!(
        "cat {0}/{pid}/compute.priority {0}/{other}/compute.priority {0}/{pid}/compute.freeze",
        mount.path().display()
    );
    let arguments = ["-p", "12", &pid, &other, "--", "sh", "-c", &look];
    assert_eq!(ok(&mount, "gc-preempt", &arguments), "12\n15\n0\n");
    wait_until("the priority is as before", || {
        mount.read(&pid, "compute.priority") == "3"
    });
    assert_eq!(mount.read(&other, "compute.priority"), "15");
    for bad in ["x", "16"] {
        let output = run(&mount, "gc-preempt", &["-p", bad, &pid, "--", "echo", "ran"]);
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert_eq!(mount.read(&pid, "compute.priority"), "3");
    }
}

#[test]
fn gc_preempt_swaps_out_before_command_and_in_afterwards() {
    let mount = Mount::with(Config::default().env("SIMGPU_MEMORY", "128M"));
    let mut batch = mount.command(artifacts().load());
    batch.arg("obey").env("GCGROUP_SWAP", "max");
    let mut batch = Governed::spawn(batch);
    batch.expect("ready");
    for _ in 0..3 {
        let answer = batch.ask("alloc linear 33554432");
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    let fixed = mount.obedient();
    let (pid, other) = (batch.pid().to_string(), fixed.pid().to_string());
    // The command needs most of the GPU, and meanwhile checks what the job holds.
    let mut preempt = command(&mount, "gc-preempt");
    let load = artifacts().load();
    let script = format!(
        "echo alloc linear 100663296 | '{}' obey && cat {1}/{pid}/memory.current {1}/{pid}/memory.swap.current",
        load.display(),
        mount.path().display()
    );
    preempt.args(["--reclaim", &pid, &other, "--", "sh", "-c", &script]);
    for (name, value) in mount.bare_command("sh").get_envs() {
        value.map(|value| preempt.env(name, value));
    }
    let output = preempt.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("allocated 1 linear 100663296"), "{said}");
    assert!(said.ends_with("\n0\n100663296\n"), "{said}");
    wait_until("the process is thawed", || {
        mount.read(&pid, "compute.freeze") == "0"
    });
    assert_eq!(batch.ask("verify"), "verified 3");
    assert_eq!(mount.number(&pid, "memory.swap.current", ""), 0);
    assert_eq!(mount.number(&pid, "memory.current", ""), 96 << 20);
    assert_eq!(mount.read(&other, "compute.freeze"), "0");
}

#[test]
fn gc_preempt_runs_no_command_beside_a_process_that_cannot_be_suspended() {
    let mount = Mount::with(Config::default().env("SIMGPU_FAULTS", "cuCheckpointProcessLock=801"));
    let mut job = mount.obedient();
    assert!(job.ask("alloc linear 4096").starts_with("allocated "));
    let mut preempt = command(&mount, "gc-preempt");
    preempt.args(["--suspend", &job.pid().to_string(), "--", "echo", "it runs"]);
    let output = preempt.output().expect("the script starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(stderr.contains("suspend_error lock"), "{stderr}");
}

#[test]
fn preemption_works_through_the_socket_alone() {
    let mount = Mount::with(Config::default().arg("--no-fuse"));
    let (mut watched, batch) = (mount.obedient(), mount.obedient());
    let file = format!("{}/compute.freeze", batch.pid());
    let frozen = || {
        mount
            .gcgroupfs(&["get", &file])
            .output()
            .expect("the command starts")
            .stdout
    };
    let through_socket = |script: &str| {
        let mut command = command(&mount, script);
        command
            .env("GCGROUP", "/nonexistent")
            .env("GCGROUP_SOCKET", mount.socket());
        command
    };
    for option in [None, Some("--reclaim")] {
        let mut preempt = through_socket("gc-preempt");
        preempt.args(option).arg(batch.pid().to_string());
        let output = preempt
            .args(["--", "gcgroupfs", "get", &file])
            .output()
            .expect("the script starts");
        assert_eq!(output.stdout, b"1\n", "{output:?}");
        wait_until("the batch process is thawed", || frozen() == b"0\n");
    }
    let mut script = through_socket("gc-autopreempt");
    script
        .arg("-v")
        .args([&watched, &batch].map(|process| process.pid().to_string()));
    let mut script = Governed::spawn(script);
    watched.say("launch 1 100000000");
    script.expect("busy: ");
    wait_until("the batch process is frozen", || frozen() == b"1\n");
    script.signal(Signal::SIGTERM);
    script.wait();
    wait_until("the batch process is thawed", || frozen() == b"0\n");
}

#[test]
fn missing_fuse_is_reported_at_once() {
    let hide = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$@\"";
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut mount = Command::new(artifacts().gcgroupfs());
    mount
        .arg("mount")
        .arg(directory.path())
        .arg("--socket")
        .arg(directory.path().join("run/gcgroup.sock"));
    let demo = Command::new(repository().join("scripts/demo.sh"));
    for (command, says) in [(mount, "--no-fuse"), (demo, "demo.sh: the daemon has ended")] {
        let mut hidden = Command::new("unshare");
        hidden.args(["--mount", "--propagation", "private", "sh", "-c", hide, "sh"]);
        hidden.arg(command.get_program()).args(command.get_args());
        hidden.env("GCGROUP_BUILT", artifacts().dist());
        let output = hidden.output().expect("unshare runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for text in [says, "/dev/fuse cannot be opened"] {
            assert!(stderr.contains(text), "{stderr}");
        }
    }
}

/// Starts `gc-autopreempt -v` for the first process over the others.
#[track_caller]
fn autopreempt(mount: &Mount, watched: &Governed, others: &[&str]) -> Governed {
    let mut script = command(mount, "gc-autopreempt");
    script.arg("-v").arg(watched.pid().to_string()).args(others);
    Governed::spawn(script)
}

#[test]
fn gc_autopreempt_freezes_while_the_other_is_busy() {
    let mount = Mount::new();
    let (mut watched, mut batch, held) = (mount.obedient(), mount.obedient(), mount.obedient());
    let (pid, frozen) = (batch.pid().to_string(), held.pid().to_string());
    mount.write(&frozen, "compute.freeze", "1");
    let mut script = autopreempt(&mount, &watched, &[&pid, &frozen]);
    // Independent of the script's polling interval.
    let mut work_until = |what: &str, done: &mut dyn FnMut() -> bool| {
        wait_until(what, || {
            assert_eq!(watched.ask("launch 1 50000"), "launched 1");
            assert_eq!(watched.ask("sync"), "synchronised");
            done()
        });
    };
    for _ in 0..3 {
        work_until("the script reports that the watched process is busy", &mut || {
            script.line_now().is_some_and(|line| line.starts_with("busy: "))
        });
        work_until("the batch process is frozen and drained", &mut || {
            mount.number(&pid, "gcgroup.events", "frozen") == 1
        });
        script.expect("idle: ");
        wait_until("the batch process is thawed", || {
            mount.read(&pid, "compute.freeze") == "0"
        });
        assert_eq!(batch.ask("launch 1"), "launched 1");
        assert_eq!(
            mount.read(&frozen, "compute.freeze"),
            "1",
            "the script thawed a process that was frozen before"
        );
    }
}

#[test]
fn gc_autopreempt_thaws_when_the_watched_or_the_script_ends() {
    let mount = Mount::new();
    let batch = mount.obedient();
    let pid = batch.pid().to_string();
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGKILL];
    for to_script in signals.map(Some).into_iter().chain([None]) {
        let mut watched = mount.obedient();
        let mut script = autopreempt(&mount, &watched, &[&pid]);
        watched.say("launch 1 100000000");
        script.expect("busy: ");
        wait_until("the batch process is frozen and drained", || {
            mount.number(&pid, "gcgroup.events", "frozen") == 1
        });
        match to_script {
            Some(signal) => script.signal(signal),
            None => watched.signal(Signal::SIGKILL),
        }
        assert_eq!(script.wait().success(), to_script.is_none(), "{to_script:?}");
        wait_until("the batch process is thawed", || {
            mount.read(&pid, "compute.freeze") == "0"
        });
        drop(watched);
    }
}

/// The signal comes before the shell knows the pid of the process that holds the freeze.
#[test]
fn gc_autopreempt_thaws_when_it_ends_while_it_starts_to_freeze() {
    let mount = Mount::new();
    let slow = c_program("slow_fork.c", &["-shared", "-fPIC", "-ldl"]);
    let mut batch = mount.obedient();
    let pid = batch.pid().to_string();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut watched = mount.obedient();
        watched.say("launch 1 100000000");
        let mut script = command(&mount, "gc-autopreempt");
        script
            .arg(watched.pid().to_string())
            .arg(&pid)
            .env("LD_PRELOAD", &slow);
        let mut script = Governed::spawn(script);
        wait_until("the batch process is frozen", || {
            mount.number(&pid, "gcgroup.events", "frozen") == 1
        });
        script.signal(signal);
        assert_eq!(script.wait().code(), Some(128 + signal as i32));
        assert_eq!(batch.ask("launch 1"), "launched 1");
    }
}

#[test]
fn gc_autopreempt_freezes_no_process_it_cannot_thaw() {
    let mount = Mount::new();
    let (mut watched, batch) = (mount.obedient(), mount.obedient());
    watched.ask("launch 1 100000000");
    let (pid, other) = (watched.pid().to_string(), batch.pid().to_string());
    for arguments in [
        vec!["-l", "x", &pid, &other],
        vec!["-l", "-1", &pid, &other],
        vec!["-l", "", &pid, &other],
        vec!["-x", &pid, &other],
        vec![&pid],
        vec![],
    ] {
        assert_eq!(
            run(&mount, "gc-autopreempt", &arguments).status.code(),
            Some(2),
            "{arguments:?}"
        );
        assert_eq!(mount.read(&other, "compute.freeze"), "0");
    }
}

#[test]
fn gc_autopreempt_goes_on_with_a_restarted_daemon() {
    let mut mount = Mount::new();
    let (mut watched, batch) = (mount.obedient(), mount.obedient());
    let pid = batch.pid().to_string();
    let mut script = autopreempt(&mount, &watched, &[&pid]);
    watched.say("launch 1 100000000");
    script.expect("busy: ");
    wait_until("the batch process is frozen and drained", || {
        mount.number(&pid, "gcgroup.events", "frozen") == 1
    });
    mount.kill9();
    script.signal(Signal::SIGTERM);
    mount.restart();
    wait_until("the batch process has registered again", || {
        mount.governs(batch.pid())
    });
    wait_until("the batch process is thawed", || {
        mount.read(&pid, "compute.freeze") == "0"
    });
}

#[test]
fn contention_benchmark_runs_and_reports_each_arm() {
    let output = Command::new(repository().join("scripts/bench-contention.sh"))
        .env("DIST", artifacts().dist())
        .args(["--sim", "--repetitions", "1", "--scale", "0.05"])
        .args(["single", "shares", "unread", "quota", "freeze"])
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&output.stderr);
    // Whether the budgets are met does not matter here.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{table}");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["failed"], serde_json::json!([]), "{table}");
    assert_eq!(told["skipped"], serde_json::json!([]), "{table}");
    let rows = told["rows"].as_array().unwrap();
    for name in [
        "single 5 ms kernels: p99, alone",
        "single 5 ms kernels: p99 over alone, strict 2:10",
        "single 5 ms kernels: idle time kept, freeze by script",
        "shares at p and p+4",
        "usage_usec over completed work, unread: kernels of 1 ms",
        "compute.max 25 %: share",
        "thaw to first launch, p99",
    ] {
        let row = rows.iter().find(|row| row["name"] == name);
        let median = &row.unwrap_or_else(|| panic!("{name}: {table}"))["median"];
        // Null: infinite, because one side got no time in so short a run on a busy machine.
        assert!(
            median.as_f64().is_none_or(|median| median >= 0.0),
            "{name}: {table}"
        );
        assert!(table.contains(name), "{name}: {table}");
    }
}

#[test]
fn demonstration_runs_and_leaves_nothing() {
    demonstrate(&[], Path::new(""));
}

#[test]
fn demonstration_finds_driver_in_library_path() {
    demonstrate(&["--gpu"], &artifacts().simgpu());
}

/// Runs the demonstration with these libraries in the search path.
fn demonstrate(arguments: &[&str], libraries: &Path) {
    let temporary = tempfile::tempdir().unwrap();
    let gpu = tempfile::tempdir().unwrap();
    let output = Command::new(repository().join("scripts/demo.sh"))
        .args(arguments)
        .env("GCGROUP_BUILT", artifacts().dist())
        .env("TMPDIR", temporary.path())
        .env("LD_LIBRARY_PATH", libraries)
        .env("SIMGPU_DIR", gpu.path())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}\n{log}");
    for told in [
        "frozen 1",
        "refused CUDA_ERROR_OUT_OF_MEMORY",
        "allocated 1 linear 268435456",
    ] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
    assert_eq!(temporary.path().read_dir().unwrap().count(), 0, "{shown}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let left = |line: &str| {
        line.split(' ')
            .nth(1)
            .is_some_and(|at| Path::new(at).starts_with(temporary.path()))
    };
    assert!(!mounts.lines().any(left), "{mounts}");
}
