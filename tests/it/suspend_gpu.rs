//! Tests that a suspended process resumes on another GPU: with its contents, charges, limits and gates; what
//! is refused; and that SIGKILL of the helper, of the process and of the daemon leaves a state that is
//! counted right.

use std::io;

use nix::sys::signal::{Signal, kill};
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::calls::Calls;
use crate::driver::{Dir, DriverShell};
use crate::suspend::{Reached, is_running, resume, stopped_helper, suspend};

const MIB: u64 = 1 << 20;
/// Size of a context in these tests.
const CONTEXT: u64 = 16 * MIB;

fn config() -> Config {
    Config::default()
        .env("SIMGPU_DEVICES", 2)
        .env("SIMGPU_CONTEXT_MEMORY", CONTEXT)
}

/// Starts a program with blocks of 32 MiB on GPU 0.
#[track_caller]
fn program(mount: &Mount, nr_blocks: u64) -> Governed {
    let mut program = mount.obedient();
    (0..nr_blocks).for_each(|_| alloc(&mut program));
    let pid = program.pid();
    wait_until("the context is charged", || {
        current(mount, pid) == [32 * MIB * nr_blocks + CONTEXT, 0]
    });
    program
}

#[track_caller]
fn alloc(program: &mut Governed) {
    let answer = program.ask(&format!("alloc linear {}", 32 * MIB));
    assert!(answer.starts_with("allocated "), "{answer}");
}

/// Returns `memory.current` on both GPUs.
fn current(mount: &Mount, directory: impl ToString) -> [u64; 2] {
    [0, 1].map(|gpu| mount.number(format!("{}/{gpu}", directory.to_string()), "memory.current", ""))
}

/// Waits until `memory.current` is this on both GPUs. What was measured last of a GPU holds until the next
/// sample.
#[track_caller]
fn counts(mount: &Mount, directory: impl ToString, expected: [u64; 2]) {
    let directory = directory.to_string();
    wait_until("the GPUs' memory is counted", || {
        current(mount, &directory) == expected
    });
}

/// Runs `gcgroupfs resume --wait --gpu`. Returns what it has written to standard error, if it failed.
fn resume_on(mount: &Mount, gpu: u32, name: impl ToString) -> Result<(), String> {
    let mut command = mount.gcgroupfs(&["resume", "--wait", "--gpu", &gpu.to_string(), &name.to_string()]);
    let output = command.output().expect("it runs");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn process_resumes_on_another_gpu_and_counts_there() {
    let mount = Mount::with(config());
    let mut program = program(&mount, 4);
    let pid = program.pid();
    let dir = Dir::of(&mount, pid);
    suspend(&mount, pid);
    assert_eq!(resume_on(&mount, 1, pid), Ok(()));
    counts(&mount, pid, [0, 128 * MIB + CONTEXT]);
    assert_eq!(dir.number("memory.swap.current"), 0);
    assert_eq!(
        [0, 1].map(|gpu| mount.truth().used(pid, gpu)),
        [0, 128 * MIB + CONTEXT]
    );
    assert_eq!(program.ask("verify"), "verified 4");
    // Limits and gates of GPU 1 hold, those of GPU 0 do not.
    dir.gpu(0).write("memory.limit", MIB);
    dir.gpu(0).write("compute.freeze", "1");
    alloc(&mut program);
    let limit = 168 * MIB + CONTEXT;
    dir.gpu(1).write("memory.limit", limit);
    let refused = program.ask(&format!("alloc linear {}", 32 * MIB));
    assert!(refused.starts_with("refused "), "{refused}");
    let before = dir.gpu(0).key("compute.stat", "usage_usec");
    assert_eq!(program.ask("launch 2 5000"), "launched 2");
    assert_eq!(program.ask("verify"), "verified 5");
    // Most of two kernels of 5 ms.
    wait_until("the GPU's time is charged", || {
        dir.gpu(1).key("compute.stat", "usage_usec") >= 5_000
    });
    assert_eq!(dir.gpu(0).key("compute.stat", "usage_usec"), before);
    let launched = mount.truth().nr_launches(pid, 1);
    dir.gpu(1).write("compute.freeze", "1");
    let waited = || {
        let text = dir.read("compute.pressure");
        let some = text.lines().next().and_then(|line| line.rsplit_once("total="));
        some.map(|(_, total)| total.to_owned())
    };
    let before = waited();
    program.say("launch 1");
    wait_until("it waits at the gate of GPU 1", || waited() != before);
    assert_eq!(mount.truth().nr_launches(pid, 1), launched);
    dir.gpu(1).write("compute.freeze", "0");
    assert_eq!(program.line().as_deref(), Some("launched 1"));
    // And back.
    dir.gpu(0).write("memory.limit", "max");
    dir.gpu(0).write("compute.freeze", "0");
    suspend(&mount, pid);
    assert_eq!(resume_on(&mount, 0, pid), Ok(()));
    counts(&mount, pid, [160 * MIB + CONTEXT, 0]);
    assert_eq!(program.ask("verify"), "verified 5");
    // What was requested for one resumption does not hold for the next.
    suspend(&mount, pid);
    resume(&mount, pid);
    counts(&mount, pid, [160 * MIB + CONTEXT, 0]);
    assert_eq!(program.ask("verify"), "verified 5");
}

#[test]
fn group_resumes_on_another_gpu_within_its_limit_there() {
    let mount = Mount::with(config().env("SIMGPU_CONTEXT_MEMORY", 0));
    std::fs::create_dir(mount.path().join("team")).expect("root may make groups");
    mount.write("team/0", "memory.limit", "128M");
    let mut first = mount.obedient();
    mount.write("team", "gcgroup.procs", &first.pid().to_string());
    (0..2).for_each(|_| alloc(&mut first));
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("CUDA_VISIBLE_DEVICES", "1");
    let mut second = Governed::spawn(command);
    second.expect("ready");
    mount.write("team", "gcgroup.procs", &second.pid().to_string());
    mount.write("team/1", "memory.limit", "100M");
    (0..2).for_each(|_| alloc(&mut second));
    counts(&mount, "team", [64 * MIB, 64 * MIB]);
    suspend(&mount, first.pid());
    mount.write(first.pid(), "gcgroup.suspend", "0 gpu=1");
    wait_until("it waits for the group's limit on GPU 1", || {
        mount
            .read(first.pid(), "gcgroup.events")
            .contains("suspend_step room")
    });
    counts(&mount, "team", [0, 64 * MIB]);
    assert_eq!(second.ask("free all"), "freed 2");
    wait_until("the process is resumed", || is_running(&mount, first.pid()));
    counts(&mount, "team", [0, 64 * MIB]);
    assert_eq!(first.ask("verify"), "verified 2");
    // The limit of GPU 1 holds for both, and that of GPU 0 is free again.
    let refused = second.ask(&format!("alloc linear {}", 64 * MIB));
    assert!(refused.starts_with("refused "), "{refused}");
    let mut third = mount.obedient();
    mount.write("team", "gcgroup.procs", &third.pid().to_string());
    (0..4).for_each(|_| alloc(&mut third));
    counts(&mount, "team", [128 * MIB, 64 * MIB]);
    assert_eq!(first.ask("free all"), "freed 2");
    (0..3).for_each(|_| alloc(&mut second));
}

#[test]
fn group_is_resumed_as_a_whole_on_one_gpu() {
    let mount = Mount::with(config());
    std::fs::create_dir(mount.path().join("team")).expect("root may make groups");
    let mut members = [program(&mount, 1), program(&mount, 2)];
    for member in &members {
        mount.write("team", "gcgroup.procs", &member.pid().to_string());
    }
    mount.write("team", "gcgroup.suspend", "1");
    wait_until("the group is suspended", || {
        mount.read("team", "gcgroup.events").contains("suspended 1\n")
    });
    assert_eq!(resume_on(&mount, 1, "team"), Ok(()));
    counts(&mount, "team", [0, 96 * MIB + 2 * CONTEXT]);
    for (member, blocks) in members.iter_mut().zip([1, 2]) {
        assert_eq!(member.ask("verify"), format!("verified {blocks}"));
    }
}

/// Asserts that a suspended process is refused on GPU 1, and resumes on its own.
#[track_caller]
fn is_refused(mount: &Mount, program: &mut Governed, reason: &str) {
    let pid = program.pid();
    suspend(mount, pid);
    let error = resume_on(mount, 1, pid).expect_err(reason);
    assert!(error.contains(reason), "{error}");
    assert_eq!(mount.read(pid, "gcgroup.suspend"), "1");
    resume(mount, pid);
    counts(mount, pid, [32 * MIB + CONTEXT, 0]);
    assert_eq!(program.ask("verify"), "verified 1");
}

#[test]
fn gpu_that_cannot_take_the_process_is_refused_and_nothing_changes() {
    let mount = Mount::with(config());
    let mut one = program(&mount, 1);
    let (pid, dir) = (one.pid(), Dir::of(&mount, one.pid()));
    let errno = |value: &str| mount.try_write(pid, "gcgroup.suspend", value).map_err(number);
    assert_eq!(errno("0 gpu=1"), Err(libc::EOPNOTSUPP), "it is not suspended");
    for (value, error) in [
        ("0 gpu=2", libc::ERANGE),
        ("0 gpu=x", libc::EINVAL),
        ("0 gpu=", libc::EINVAL),
        ("0 cpu=1", libc::EINVAL),
        ("1 gpu=1", libc::EINVAL),
    ] {
        assert_eq!(errno(value), Err(error), "{value}");
    }
    dir.gpu(1).write("memory.limit", "32M");
    is_refused(&mount, &mut one, "memory.limit of the process");
    dir.gpu(1).write("memory.limit", "max");
    std::fs::create_dir(mount.path().join("team")).expect("root may make groups");
    mount.write("team", "gcgroup.procs", &pid.to_string());
    mount.write("team/1", "memory.limit", "32M");
    is_refused(&mount, &mut one, "memory.limit of a group");
    mount.write("team/1", "memory.limit", "max");
    mount.write("team", "gcgroup.devices", "0");
    is_refused(&mount, &mut one, "gcgroup.devices");
    mount.write("team", "gcgroup.devices", "all");

    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask("alloc linear 4096"), "ok 0");
    assert_eq!(shell.ask("gpu 1"), "ok");
    assert_eq!(shell.ask("alloc linear 4096"), "ok 1");
    suspend(&mount, shell.pid());
    let error = resume_on(&mount, 1, shell.pid()).expect_err("it uses two");
    assert!(error.contains("several GPUs"), "{error}");
    resume(&mount, shell.pid());
}

fn number(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

#[test]
fn drivers_and_gpus_that_cannot_exchange_are_refused() {
    for (name, value, reason) in [
        ("SIMGPU_DRIVER", "12.8", "older than 580"),
        ("SIMGPU_QUIRKS", "two-chips", "another model"),
    ] {
        let mount = Mount::with(config().env(name, value));
        let mut one = program(&mount, 1);
        is_refused(&mount, &mut one, reason);
    }
}

#[test]
fn refusal_of_the_driver_leaves_the_process_suspended() {
    let mount = Mount::with(config());
    let mut one = Calls::start(&mount);
    let (pid, dir) = (one.pid(), Dir::of(&mount, one.pid()));
    one.ok(&format!("cuMemAlloc_v2 &block {MIB}"));
    one.ok("cuIpcGetMemHandle &handle $block");
    suspend(&mount, pid);
    let moved = dir.number("memory.swap.current");
    let error = resume_on(&mount, 1, pid).expect_err("the driver refuses");
    assert!(error.contains("step restore"), "{error}");
    counts(&mount, pid, [0, 0]);
    assert_eq!(dir.number("memory.swap.current"), moved);
    resume(&mount, pid);
    counts(&mount, pid, [moved, 0]);
    one.ok("cuMemFree_v2 $block");
}

const STEPS: [(&str, &str); 2] = [
    ("restore", "cuCheckpointProcessRestore"),
    ("unlock", "cuCheckpointProcessUnlock"),
];

#[track_caller]
fn reach(step: &str, function: &str) -> Reached {
    let mount = Mount::with(config().env("SIMGPU_FAULTS", format!("{function}=stop")));
    let program = program(&mount, 2);
    let pid = program.pid();
    suspend(&mount, pid);
    mount.write(pid, "gcgroup.suspend", "0 gpu=1");
    Reached::wait(mount, program, step)
}

/// Asserts that the process has been resumed on GPU 1.
#[track_caller]
fn is_on_the_other(reached: &mut Reached) {
    let (mount, pid) = (&reached.mount, reached.program.pid());
    wait_until("the process is resumed on GPU 1", || {
        is_running(mount, pid) && current(mount, pid) == [0, 64 * MIB + CONTEXT]
    });
    assert_eq!(
        [0, 1].map(|gpu| mount.truth().used(pid, gpu)),
        [0, 64 * MIB + CONTEXT]
    );
    assert_eq!(Dir::of(mount, pid).number("memory.swap.current"), 0);
    assert_eq!(reached.program.ask("verify"), "verified 2");
}

#[test]
fn killed_helper_is_replaced_when_the_request_is_repeated() {
    for (step, function) in STEPS {
        let mut reached = reach(step, function);
        let (mount, pid) = (&reached.mount, reached.program.pid());
        kill(reached.helper, Signal::SIGKILL).expect("the helper lives");
        wait_until("the failure is reported", || {
            mount
                .read(pid, "gcgroup.events")
                .contains(&format!("suspend_error {step}"))
        });
        assert!(mount.read(pid, "gcgroup.events").contains("frozen 1\n"), "{step}");
        // What waits for the library is still counted as suspended, and can only go on.
        let again = if step == "restore" { "0 gpu=1" } else { "0" };
        mount.write(pid, "gcgroup.suspend", again);
        reached.continue_next_helper();
        is_on_the_other(&mut reached);
    }
}

#[test]
fn killed_process_leaves_nothing_on_either_gpu() {
    for (step, function) in STEPS {
        let mut reached = reach(step, function);
        let pid = reached.program.pid();
        reached.program.signal(Signal::SIGKILL);
        reached.program.wait();
        let mount = &reached.mount;
        wait_until("its directory is gone", || !Dir::of(mount, pid).exists());
        kill(reached.helper, Signal::SIGCONT).expect("the helper lives");
        assert_eq!(mount.number("", "memory.current", ""), 0, "{step}");
        assert_eq!([0, 1].map(|gpu| mount.truth().used_by_all(gpu)), [0, 0], "{step}");
    }
}

#[test]
fn next_daemon_completes_a_resumption_on_another_gpu() {
    for is_after in [false, true] {
        for (step, function) in STEPS {
            let mut reached = reach(step, function);
            let pid = reached.program.pid();
            reached.mount.kill9();
            match is_after {
                // The call is made after the daemon's end, or not at all.
                true => kill(reached.helper, Signal::SIGCONT).expect("the helper lives"),
                false => kill(reached.helper, Signal::SIGKILL).expect("the helper lives"),
            }
            reached.mount.restart();
            let mount = &reached.mount;
            wait_until("the process is resumed", || {
                // The next daemon's helper may be stopped at the same call.
                if let Some(next) = stopped_helper(mount) {
                    kill(next, Signal::SIGCONT).expect("the helper lives");
                }
                let is_there = Dir::of(mount, pid).exists() && is_running(mount, pid);
                is_there && current(mount, pid) == [0, 64 * MIB + CONTEXT]
            });
            is_on_the_other(&mut reached);
        }
    }
}
