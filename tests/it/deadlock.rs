//! Tests that a process that waits for another one is not held for ever by gates that do not know of the
//! dependency.

use std::fs;

use support::{Config, Mount, wait_until};

use crate::contended::{batch, goes_on, program, share_word, wait_for_ratio};
use crate::simgpu::Program;

/// Synchronisation call, submitted now and awaited later.
const SYNC: &str = "cu.cuCtxSynchronize()";

#[track_caller]
fn end(program: &mut Program) {
    assert_eq!(
        program.0.line().as_deref(),
        Some("0"),
        "the synchronisation failed"
    );
}

/// Shares an event with another process, under the same name.
#[track_caller]
fn share_event(name: &str, from: &mut Program, to: &mut Program) {
    from.run(&format!("{name} = got(c_uint64, 'cuEventCreate', 2 | 4)"));
    let handle = from.ask(&format!("exported('cuIpcGetEventHandle', {name})"));
    to.run(&format!("{name} = opened('cuIpcOpenEventHandle', {handle})"));
}

/// Mounts with a large share for waiting processes and a short patience, so that each blocked step of the
/// low-priority process takes little time, on either GPU.
fn impatient(config: Config) -> Mount {
    let settings = tempfile::NamedTempFile::new().expect("a file");
    let text = "[compute]\nstarvation_percent = 10\npatience_usec = 25_000\n";
    fs::write(settings.path(), text).expect("the file is writable");
    let path = settings.path().to_str().expect("the path is UTF-8");
    Mount::with(config.arg("--config").arg(path))
}

#[test]
fn processes_waiting_for_each_others_events_progress() {
    let mount = Mount::new();
    let _busy = batch(&mount, 0, 4);
    let (mut one, mut other) = (program(&mount, 0), program(&mount, 15));
    share_event("ours", &mut one, &mut other);
    share_event("theirs", &mut other, &mut one);
    for _ in 0..20 {
        one.calls(
            0,
            "cu.cuStreamWaitEvent(0, theirs, 0)\nlaunch(spin, 200)\ncu.cuEventRecord(ours, 0)",
        );
        other.calls(
            0,
            "cu.cuStreamWaitEvent(0, ours, 0)\nlaunch(spin, 200)\ncu.cuEventRecord(theirs, 0)",
        );
    }
    one.0.say(SYNC);
    other.0.say(SYNC);
    end(&mut one);
    end(&mut other);
}

#[test]
fn work_spinning_for_a_lower_prioritys_flag_progresses() {
    let mount = impatient(Config::default());
    let _busy = batch(&mount, 0, 4);
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4096).expect("the file can grow");
    let (mut one, mut other) = (program(&mount, 0), program(&mount, 15));
    share_word(&mut one, file.path());
    share_word(&mut other, file.path());
    for round in 1..=10 {
        // Waits for a value of at least `round`; each round has its own number.
        one.calls(
            0,
            &format!("cu.cuStreamWaitValue32_v2(0, flag, {round}, 0)\nlaunch(spin, 200)"),
        );
        one.0.say(SYNC);
        other.run("for _ in range(20): ok(launch(spin, 200))");
        other.calls(0, &format!("cu.cuStreamWriteValue32_v2(0, flag, {round}, 0)"));
        end(&mut one);
    }
    other.calls(0, SYNC);
}

#[test]
fn thread_driving_two_mutually_waiting_gpus_progresses() {
    let config = Config::default().env("SIMGPU_DEVICES", 2);
    let mount = impatient(config);
    let _busy = [batch(&mount, 0, 4), batch(&mount, 1, 4)];
    // Each program begins on the GPU where the other one ends.
    let mut programs = [program(&mount, 0), program(&mount, 15)];
    for (program, order) in programs.iter_mut().zip(["(0, 1)", "(1, 0)"]) {
        program.run(&format!(
            "contexts = [context, start(1)]
             spins = [spin, kernel('gcgroup_spin')]
             def use(gpu): ok(cu.cuCtxSetCurrent(contexts[gpu]))
             def made(gpu): use(gpu); return got(c_uint64, 'cuEventCreate', 2)
             events = [made(0), made(1)]
             def step(gpu): use(gpu); ok(cu.cuStreamWaitEvent(0, events[1 - gpu], 0)); \
                 ok(launch(spins[gpu], 200)); ok(cu.cuEventRecord(events[gpu], 0))
             def go(rounds): [step(gpu) for _ in range(rounds) for gpu in {order}]
             def end(): [ok(use(gpu) or cu.cuCtxSynchronize()) for gpu in (0, 1)]"
        ));
        program.0.say("go(20) or end()");
    }
    for program in &mut programs {
        assert_eq!(program.0.line().as_deref(), Some("None"));
    }
}

#[test]
fn frozen_process_delays_no_other_and_resumes_when_thawed() {
    let mount = Mount::new();
    let jobs = [batch(&mount, 0, 0), batch(&mount, 0, 8), batch(&mount, 0, 15)];
    let pids = jobs.each_ref().map(support::Governed::pid);
    for frozen in pids {
        mount.write(frozen, "compute.freeze", "1");
        wait_until("the process is frozen and drained", || {
            mount.number(frozen, "gcgroup.events", "frozen") == 1
        });
        let stopped = mount.truth().usage_usec(frozen, 0);
        for pid in pids.into_iter().filter(|pid| *pid != frozen) {
            goes_on(&mount, pid, 0, 5_000);
        }
        assert_eq!(
            mount.truth().usage_usec(frozen, 0),
            stopped,
            "the frozen process used the GPU"
        );
        mount.write(frozen, "compute.freeze", "0");
        goes_on(&mount, frozen, 0, 5_000);
    }
}

#[test]
fn killing_the_busy_highest_priority_frees_the_gpu() {
    let mount = Mount::new();
    let (first, second, last) = (batch(&mount, 0, 0), batch(&mount, 0, 8), batch(&mount, 0, 15));
    goes_on(&mount, first.pid(), 0, 20_000);
    let killed = first.pid();
    // Sends SIGKILL and waits for the process.
    drop(first);
    wait_until("the killed process is no longer governed", || {
        !mount.governs(killed)
    });
    goes_on(&mount, second.pid(), 0, 200_000);
    drop(second);
    goes_on(&mount, last.pid(), 0, 200_000);
}

#[test]
fn gates_open_after_daemon_kill_and_close_with_successor() {
    let mut mount = Mount::with(Config::default().arg("--grace").arg("200"));
    let (first, last) = (batch(&mount, 0, 0), batch(&mount, 0, 15));
    let pids = [first.pid(), last.pid()];
    wait_for_ratio(&mount, pids, |ratio| ratio > 4.0);
    mount.kill9();
    wait_for_ratio(&mount, pids, |ratio| ratio < 2.0);
    mount.restart();
    wait_until("both processes have registered again", || {
        pids.iter().all(|pid| mount.governs(*pid))
    });
    wait_for_ratio(&mount, pids, |ratio| ratio > 4.0);
}

/// Tests that markers do not use the default stream, on which they would synchronise with all blocking
/// streams.
#[test]
fn dependent_streams_progress_while_measured_or_frozen() {
    let mount = Mount::new();
    let mut program = program(&mount, 8);
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4096).expect("the file can grow");
    share_word(&mut program, file.path());
    program.run("first, second = [got(c_uint64, 'cuStreamCreate', 0) for _ in range(2)]");
    let looks: [&dyn Fn(i32); 2] = [&|pid| drop(mount.read(pid, "gcgroup.stat")), &|pid| {
        mount.write(pid, "compute.freeze", "1");
        mount.read(pid, "gcgroup.events");
        mount.write(pid, "compute.freeze", "0");
    }];
    for (round, look) in (1..).zip(looks) {
        program.calls(
            0,
            &format!("cu.cuStreamWaitValue32_v2(first, flag, {round}, 0)\nlaunch(spin, 200, stream=first)"),
        );
        look(program.pid());
        program.calls(
            0,
            "launch(spin, 200, stream=second)\ncu.cuStreamSynchronize(second)",
        );
        program.calls(
            0,
            &format!("cu.cuStreamWriteValue32_v2(second, flag, {round}, 0)\ncu.cuCtxSynchronize()"),
        );
    }
}

#[test]
fn per_thread_streams_run_beside_each_other_while_tracked() {
    let mount = Mount::new();
    let (mut program, _other) = (program(&mount, 2), program(&mount, 10));
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4096).expect("the file can grow");
    share_word(&mut program, file.path());
    // Stream 1 is the legacy default stream, 2 that of the thread.
    program.run(
        "from threading import Thread
         behind = lambda: [ok(cu.cuCtxSetCurrent(context)), ok(cu.cuStreamWaitValue32_v2(2, flag, 1, 0)), ok(launch(spin, 20, stream=2))]
         thread = Thread(target=behind)
         thread.start()
         thread.join()",
    );
    // Markers are set behind the work that waits meanwhile.
    program.run("for _ in range(500): ok(launch(spin, 20, stream=2)), ok(cu.cuStreamSynchronize(2))");
    program.calls(
        0,
        "cu.cuStreamWriteValue32_v2(2, flag, 1, 0)\ncu.cuCtxSynchronize()",
    );
}
