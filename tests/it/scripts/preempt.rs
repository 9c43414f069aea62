//! Tests `gc-preempt`.

use std::os::unix::process::ExitStatusExt;

use nix::sys::signal::Signal;
use support::{Config, Governed, Mount, artifacts, wait_until};

use super::{command, ok, run};

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
