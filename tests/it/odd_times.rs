//! Tests driver calls at unusual times and with zero arguments: each is answered as by the driver, and no
//! thread hangs.

use std::collections::{BTreeMap, HashSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use support::{Governed, Mount, artifacts, c_program, wait_until};

use crate::driver::Dir;
use crate::lookups::lines;

/// Returns every hooked function: the driver symbols that the preload library exports.
pub(crate) fn hooked() -> Vec<String> {
    let out = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(artifacts().preload())
        .output()
        .expect("nm runs");
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    let exported: HashSet<&str> = out
        .lines()
        .filter_map(|line| line.split(' ').next_back())
        .collect();
    let names = lines("tests/data/libcuda-13.5.symbols")
        .into_iter()
        .chain(lines("tests/data/libnvidia-ml-12.9.symbols"));
    let hooked: Vec<String> = names.filter(|name| exported.contains(name.as_str())).collect();
    assert!(hooked.len() > 150, "{hooked:?}");
    hooked
}

/// Returns what each function answers to arguments of zero.
fn zeros(mut command: Command, when: &str, names: &[String]) -> BTreeMap<String, String> {
    let mut child = command
        .arg(when)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut input = child.stdin.take().expect("piped");
    let text = names.join("\n");
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("the thread ends without a panic");
    writer
        .join()
        .expect("the thread ends without a panic")
        .expect("the program reads its input");
    assert!(output.status.success(), "{}", output.status);
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let answers = output.lines().filter_map(|line| line.split_once(' '));
    answers
        .map(|(name, answer)| (name.to_owned(), answer.to_owned()))
        .collect()
}

#[track_caller]
fn zeros_are_answered_alike(when: &str) {
    are_answered_alike(when, &hooked());
}

#[track_caller]
fn are_answered_alike(when: &str, names: &[String]) {
    let mount = Mount::new();
    let program = c_program("zeros.c", &["-ldl", "-pthread"]);
    let bare = zeros(mount.bare_command(&program), when, names);
    assert_eq!(bare.len(), names.len());
    assert!(
        bare.values().all(|answer| answer.parse::<i32>().is_ok()),
        "the driver crashed: {bare:?}"
    );
    let governed = zeros(mount.command(&program), when, names);
    for (name, answer) in &bare {
        assert_eq!(governed.get(name), Some(answer), "{name}, {when}");
    }
}

#[test]
fn every_function_answers_zeros_before_cu_init_as_the_driver() {
    zeros_are_answered_alike("before");
}

#[test]
fn every_function_answers_zeros_without_a_context_as_the_driver() {
    zeros_are_answered_alike("after");
}

#[test]
fn every_function_answers_zeros_in_a_context_as_the_driver() {
    zeros_are_answered_alike("context");
}

#[test]
fn every_function_answers_zeros_after_its_context_as_the_driver() {
    zeros_are_answered_alike("destroyed");
}

/// Tests that the hook has no cancellation point for pthread_cancel(3). The simulated driver has none,
/// either.
#[test]
fn no_hooked_function_ends_a_cancelled_thread() {
    let of_libcuda = |name: &String| !name.starts_with("nvml");
    are_answered_alike(
        "canceled",
        &hooked().into_iter().filter(of_libcuda).collect::<Vec<_>>(),
    );
}

const MIB: u64 = 1 << 20;

/// A running `odd_times.c`, governed or not.
struct Odd {
    program: Governed,
    pid: i32,
}

impl Odd {
    #[track_caller]
    fn start(command: impl FnOnce(std::path::PathBuf) -> Command) -> Self {
        let path = format!("-L{}", artifacts().simgpu().display());
        let mut program = Governed::spawn(command(c_program("odd_times.c", &["-pthread", &path, "-lcuda"])));
        let line = program.expect("ready ");
        assert!(line.ends_with(" 0"), "cuInit failed: {line}");
        let pid = program.pid();
        Self { program, pid }
    }

    #[track_caller]
    fn governed(mount: &Mount) -> Self {
        Self::start(|program| mount.command(program))
    }

    #[track_caller]
    fn bare(mount: &Mount) -> Self {
        Self::start(|program| mount.bare_command(program))
    }

    #[track_caller]
    fn ask(&mut self, line: &str) -> String {
        self.program.ask(line)
    }
}

/// Freezes the process and waits until it is drained.
#[track_caller]
fn freeze(dir: &Dir<'_>) {
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || dir.is_frozen());
}

/// Waits until at least `count` submissions have been held at a closed gate.
#[track_caller]
fn held(dir: &Dir<'_>, count: u64) {
    wait_until("a launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") >= count
    });
}

#[test]
fn only_the_thread_cancelled_at_a_frozen_gate_ends() {
    let mount = Mount::new();
    let mut odd = Odd::governed(&mount);
    let dir = Dir::of(&mount, odd.pid);
    freeze(&dir);
    assert_eq!(odd.ask("thread"), "started");
    held(&dir, 1);
    assert_eq!(odd.ask("cancel"), "sent");
    assert!(dir.is_frozen());
    dir.write("compute.freeze", 0);
    assert_eq!(odd.ask("join"), "canceled");
    assert_eq!(odd.ask("launch 3"), "0");
    freeze(&dir);
}

#[test]
fn only_the_cancelled_thread_with_refused_allocation_ends() {
    let mount = Mount::new();
    let mut odd = Odd::governed(&mount);
    let dir = Dir::of(&mount, odd.pid);
    dir.write("memory.limit", MIB);
    assert_eq!(odd.ask(&format!("condemned {}", 2 * MIB)), "canceled 2");
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.key("memory.events", "oom"), 1);
    assert_eq!(odd.ask(&format!("alloc {MIB}")), "0");
}

/// Tests that a thread is cancelled only in the program's own functions, whatever the driver does in its
/// functions.
#[test]
fn cancelled_thread_that_keeps_calling_ends_in_no_call() {
    let mount = Mount::new();
    let mut odd = Odd::governed(&mount);
    assert_eq!(odd.ask("doomed 200"), "canceled 0");
    assert_eq!(Dir::of(&mount, odd.pid).number("memory.current"), 0);
    assert_eq!(odd.ask("launch 3"), "0");
}

#[test]
fn jump_out_of_a_launch_keeps_charges_and_gates() {
    let mount = Mount::new();
    let mut odd = Odd::governed(&mount);
    let dir = Dir::of(&mount, odd.pid);
    assert_eq!(odd.ask(&format!("alloc {MIB}")), "0");
    freeze(&dir);
    odd.program.say("jump");
    held(&dir, 1);
    odd.program.signal(Signal::SIGUSR1);
    assert_eq!(odd.program.line().as_deref(), Some("jumped"));
    assert_eq!(odd.ask(&format!("alloc {MIB}")), "0");
    assert_eq!(dir.number("memory.current"), 2 * MIB);
    let before = dir.launches();
    odd.program.say("launch 1");
    held(&dir, 2);
    assert!(dir.is_frozen() && dir.launches() == before);
    dir.write("compute.freeze", 0);
    assert_eq!(odd.program.line().as_deref(), Some("0"));
    assert_eq!(dir.launches(), before + 1);
}

/// Tests siglongjmp(3) out of a driver call: the driver holds no lock while it waits, so a program may do
/// that.
#[test]
fn jump_out_of_a_driver_wait_leaves_all_usable() {
    let mount = Mount::new();
    for is_governed in [false, true] {
        let mut odd = match is_governed {
            true => Odd::governed(&mount),
            false => Odd::bare(&mount),
        };
        for _ in 0..3 {
            assert_eq!(odd.ask("wait 1000000"), "waits");
            wait_until("the program sleeps in the driver", || is_asleep(odd.pid));
            odd.program.signal(Signal::SIGUSR1);
            assert_eq!(odd.program.line().as_deref(), Some("jumped"));
            assert_eq!(odd.ask("launch 3"), "0");
            assert_eq!(odd.ask("once"), "0", "the call on another thread failed");
            assert_eq!(odd.ask(&format!("alloc {MIB}")), "0");
            assert_eq!(odd.ask("free"), "0");
            assert_eq!(odd.ask("sync"), "0");
        }
        if is_governed {
            let dir = Dir::of(&mount, odd.pid);
            assert_eq!(dir.number("memory.current"), 0);
            freeze(&dir);
            dir.write("compute.freeze", 0);
        }
        assert_eq!(odd.ask("destroy"), "0");
    }
}

/// Returns whether the main thread sleeps in futex(2).
fn is_asleep(pid: i32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
    call.is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_futex)))
}

#[test]
fn thread_ending_in_a_driver_call_leaves_nothing() {
    let mount = Mount::new();
    let calls = [
        ("alloc", "cuMemAlloc_v2"),
        ("free", "cuMemFree_v2"),
        ("launch", "cuLaunchKernel"),
        ("sync", "cuCtxSynchronize"),
    ];
    for (what, call) in calls {
        let mut odd = Odd::start(|program| {
            let mut command = mount.command(program);
            command.env("SIMGPU_FAULTS", format!("{call}=cancel"));
            command
        });
        let dir = Dir::of(&mount, odd.pid);
        for _ in 0..3 {
            assert_eq!(odd.ask(&format!("ended {what}")), "canceled -1", "{what}");
        }
        let held = if what == "free" { 3 * 4096 } else { 0 };
        assert_eq!(dir.number("memory.current"), held, "{what}");
        assert_eq!(odd.ask(&format!("alloc {MIB}")), "0", "{what}");
        assert_eq!(odd.ask("once"), "0", "{what}");
        assert_eq!(dir.number("memory.current"), held + MIB, "{what}");
        freeze(&dir);
        odd.program.say("launch 1");
        self::held(&dir, 1);
        dir.write("compute.freeze", 0);
        assert_eq!(odd.program.line().as_deref(), Some("0"), "{what}");
        assert_eq!(odd.ask("free"), "0", "{what}");
    }
}

#[test]
fn call_in_signal_handler_is_answered_and_leaves_nothing() {
    let mount = Mount::new();
    let (mut odd, mut bare) = (Odd::governed(&mount), Odd::bare(&mount));
    let dir = Dir::of(&mount, odd.pid);
    assert_eq!(odd.ask("handler 4096"), bare.ask("handler 4096"));
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.launches(), 1);
}

#[test]
fn call_in_host_function_is_answered_as_by_the_driver() {
    let mount = Mount::new();
    let (mut odd, mut bare) = (Odd::governed(&mount), Odd::bare(&mount));
    assert_eq!(odd.ask("callback 4096"), bare.ask("callback 4096"));
    let dir = Dir::of(&mount, odd.pid);
    freeze(&dir);
    assert_eq!(odd.ask("callback 4096"), bare.ask("callback 4096"), "frozen");
}

#[test]
fn started_child_program_does_not_affect_its_parent() {
    let mount = Mount::new();
    let mut odd = Odd::governed(&mount);
    let dir = Dir::of(&mount, odd.pid);
    assert_eq!(odd.ask(&format!("alloc {MIB}")), "0");
    assert_eq!(odd.ask("launch 2"), "0");
    let path = format!("-L{}", artifacts().simgpu().display());
    let other = c_program("ways.c", &["-DLINKED", &path, "-lcuda", "-ldl"]);
    for how in ["vfork", "spawn"] {
        assert_eq!(
            odd.ask(&format!("{how} {} linked 3", other.display())),
            "0",
            "{how}"
        );
        assert_eq!(dir.number("memory.current"), MIB, "{how}");
        assert_eq!(dir.launches(), 2, "{how}");
        assert_eq!(odd.ask("free"), "0", "{how}");
        assert_eq!(dir.number("memory.current"), 0, "{how}");
        assert_eq!(odd.ask(&format!("alloc {MIB}")), "0", "{how}");
    }
    freeze(&dir);
    assert_eq!(
        odd.ask(&format!("vfork {} linked 3", other.display())),
        "0",
        "while frozen"
    );
}

#[test]
fn forked_child_gets_drivers_answer_and_parent_continues() {
    let mount = Mount::new();
    let (mut odd, mut bare) = (Odd::governed(&mount), Odd::bare(&mount));
    let dir = Dir::of(&mount, odd.pid);
    assert_eq!(odd.ask(&format!("alloc {MIB}")), "0");
    for frozen in [false, true] {
        if frozen {
            freeze(&dir);
        }
        assert_eq!(odd.ask("child"), bare.ask("child"), "frozen: {frozen}");
        assert_eq!(dir.number("memory.current"), MIB);
    }
    dir.write("compute.freeze", 0);
    assert_eq!(odd.ask("free"), "0");
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(odd.ask("once"), "0");
}

#[test]
fn destroyed_context_is_uncharged_and_delays_no_freeze() {
    let mount = Mount::new();
    let (mut odd, mut bare) = (Odd::governed(&mount), Odd::bare(&mount));
    let dir = Dir::of(&mount, odd.pid);
    let alloc = format!("alloc {MIB}");
    for command in [
        &alloc, "launch 5", "destroy", &alloc, "launch 1", "free", "once", "sync",
    ] {
        assert_eq!(odd.ask(command), bare.ask(command), "{command}");
    }
    assert_eq!(dir.number("memory.current"), 0);
    freeze(&dir);
    assert_eq!(
        odd.ask("launch 1"),
        bare.ask("launch 1"),
        "a launch without a context waits at the gate"
    );
}

#[test]
fn every_way_to_exit_works_while_threads_submit() {
    let mount = Mount::new();
    for how in ["return", "exit", "_exit", "quick", "abort", "exec"] {
        let mut bare = Odd::bare(&mount);
        bare.program.say(&format!("leave {how}"));
        if how == "exec" {
            bare.program.expect("ready ");
            bare.program.close_stdin();
        }
        let expected = (rest(&mut bare), bare.program.wait());
        for frozen in [false, true] {
            let mut odd = Odd::governed(&mount);
            let dir = Dir::of(&mount, odd.pid);
            if frozen {
                freeze(&dir);
            }
            odd.program.say(&format!("leave {how}"));
            if how == "exec" {
                odd.program.expect("ready ");
                // A freeze belongs to the process, whichever program it executes.
                dir.write("compute.freeze", 0);
                odd.program.close_stdin();
            } else if frozen {
                // A signal handler that launches is held like any other caller.
                wait_until("a launch waits at the gate, or the process has exited", || {
                    let stat = std::fs::read_to_string(dir.path().join("compute.stat"));
                    stat.is_ok_and(|stat| !stat.contains("nr_frozen 0")) || !odd.program.is_running()
                });
                let _ = std::fs::write(dir.path().join("compute.freeze"), "0");
            }
            assert_eq!(
                (rest(&mut odd), odd.program.wait()),
                expected,
                "{how}, frozen: {frozen}"
            );
        }
    }
}

/// Returns the remaining output.
fn rest(odd: &mut Odd) -> Vec<String> {
    std::iter::from_fn(|| odd.program.line()).collect()
}

#[test]
fn asynchronously_cancelled_thread_ends_in_the_start_of_the_driver() {
    let mount = Mount::new();
    let simgpu = format!("-L{}", artifacts().simgpu().display());
    let program = c_program("cancelled.c", &[&simgpu, "-lcuda", "-lpthread"]);
    for step in 0..30_u32 {
        let mut command = mount.command(&program);
        let out = command.arg((step * step * 20).to_string()).output();
        let out = out.expect("the program runs");
        assert!(out.status.success(), "{step}: {out:?}");
    }
}
