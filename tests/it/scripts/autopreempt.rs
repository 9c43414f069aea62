//! Tests `gc-autopreempt`.

use nix::sys::signal::Signal;
use support::{Governed, Mount, c_program, wait_until};

use super::{command, run};

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
