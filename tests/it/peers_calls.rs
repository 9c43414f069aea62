//! Regression tests for faults found in similar tools, concerning the cost and the side effects of a call.

use std::process::Command;

use support::{Config, Governed, Mount, artifacts, c_program, instructions, system_calls, wait_until};

use crate::calls::Calls;
use crate::driver::{Dir, DriverShell, driver_shell};

/// Returns a governed run of `calls` pairs of `cuMemAlloc` and `cuMemFree` beside `live` live blocks, on a
/// driver whose functions do nothing.
fn pairs(mount: &Mount, calls: u32, live: u32) -> Command {
    let mut command = mount.command(artifacts().load());
    command.args(["overhead", "--call", "alloc-free", "--rounds", "1"]);
    command.args(["--calls", &calls.to_string(), "--live", &live.to_string()]);
    command
}

const FEW: u32 = 200;
const MANY: u32 = 2_200;

#[test]
fn allocation_needs_no_daemon_and_no_system_call() {
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1));
    let [few, many] = [FEW, MANY].map(|calls| system_calls(&pairs(&mount, calls, 10)));
    // Two thousand more pairs; the other system calls of two runs may differ slightly.
    assert!(many < few + 100, "{few} and {many} system calls");
}

#[test]
fn allocation_cost_is_independent_of_live_blocks() {
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1));
    let [few, many] = [10, 2_000].map(|live| {
        let [less, more] = [FEW, MANY].map(|calls| instructions(&pairs(&mount, calls, live)));
        (more - less) / u64::from(MANY - FEW)
    });
    // Visiting every live block would take at least one instruction each. The count includes the helper
    // thread.
    assert!(many < few + 1500, "{few} and {many} instructions a pair");
}

#[test]
fn programs_umask_and_signals_are_unchanged() {
    let mount = Mount::new();
    let status = |from: Command| {
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask 027; trap '' USR1; exec \"$0\""])
            .arg(driver_shell());
        for (name, value) in from.get_envs() {
            value.map(|value| command.env(name, value));
        }
        let mut shell = DriverShell::spawn(command);
        let pid = shell.pid();
        let is_governed = mount.governs(pid);
        assert_eq!(shell.ask("alloc linear 4096"), "ok 0");
        assert_eq!(shell.ask("spin 1 2"), "ok");
        if is_governed {
            let dir = Dir::of(&mount, pid);
            dir.write("compute.freeze", 1);
            wait_until("the process is frozen and drained", || dir.is_frozen());
            dir.write("compute.freeze", 0);
        }
        assert_eq!(shell.ask("spin 1 2"), "ok");
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
        let names = ["Umask", "SigBlk", "SigIgn", "SigCgt"];
        let lines = text
            .lines()
            .filter(|line| names.iter().any(|name| line.starts_with(name)));
        (is_governed, lines.map(str::to_owned).collect::<Vec<_>>())
    };
    let (is_governed, governed) = status(mount.command(driver_shell()));
    assert!(is_governed);
    let (is_governed, bare) = status(mount.bare_command(driver_shell()));
    assert!(!is_governed);
    assert_eq!(bare.len(), 4, "{bare:?}");
    assert_eq!(bare[0], "Umask:\t0027");
    assert_eq!(governed, bare);
}

#[test]
fn rtld_next_look_up_starts_behind_its_caller() {
    let mount = Mount::new();
    let simgpu = format!("-L{}", artifacts().simgpu().display());
    let part = |which: &str| c_program("next.c", &["-shared", "-fPIC", which]);
    let (first, second) = (part("-DFIRST"), part("-DSECOND"));
    let [first, second] = [first, second].map(|library| library.display().to_string());
    let program = c_program(
        "next.c",
        &["-Wl,--no-as-needed", &first, &second, &simgpu, "-lcuda", "-ldl"],
    );
    for command in [mount.bare_command(&program), mount.command(&program)] {
        let governed = command
            .get_envs()
            .any(|(name, value)| name == "LD_PRELOAD" && value.is_some());
        let mut next = Governed::spawn(command);
        // A name of the program, not of the driver: the function of the first library found that of the
        // second one, twice.
        next.expect("cuPlain 1 2 2");
        for how in ["default", "next", "handle", "getproc"] {
            next.expect(&format!("{how} found found same 0"));
        }
        assert!(next.wait().success(), "governed: {governed}");
    }
}

#[test]
fn calls_with_null_arguments_are_answered_as_by_the_driver() {
    let mount = Mount::new();
    let (mut governed, mut bare) = (Calls::start(&mount), Calls::start_bare(&mount));
    let dir = Dir::of(&mount, governed.pid());
    dir.write("memory.limit", 64 << 20);
    for call in [
        "cuMemGetInfo_v2 0 0",
        "cuMemGetInfo_v2 &free 0",
        "cuMemGetInfo_v2 0 &total",
        "cuDeviceTotalMem_v2 0 0",
        "cuMemAlloc_v2 0 4096",
        "cuMemAlloc_v2 &pointer 0",
        "cuMemAllocPitch_v2 0 0 64 64 4",
        "cuArrayCreate_v2 0 0",
        "cuMemCreate 0 0 0 0",
        "cuMemFree_v2 0",
    ] {
        assert_eq!(governed.call(call), bare.call(call), "{call}");
        assert_eq!(dir.number("memory.current"), 0, "{call}");
    }
}

#[test]
fn program_ends_unchanged_whatever_fails() {
    let ends = |mut command: Command, also: &mut dyn FnMut(i32)| {
        // Without a daemon, a context is expected to take 256 MiB.
        command.env("GCGROUP_MEMORY_LIMIT", "300M");
        let mut shell = DriverShell::spawn(command);
        also(shell.pid());
        let answers = ["spin 1 1", "spin 1 1", "sync", "alloc linear 4096", "free 0"];
        let answers = answers.map(|command| shell.ask(command));
        (answers, shell.terminate())
    };
    let nothing = &mut |_| ();
    let expected = {
        let mount = Mount::new();
        ends(mount.bare_command(driver_shell()), nothing)
    };
    assert_eq!(expected.0[0], "ok");
    for (name, value) in [
        ("GCGROUP_SOCKET", "/no/such/socket"),
        ("GCGROUP_SOCKET", "/dev/null"),
        ("GCGROUP_SOCKET", ""),
        ("GCGROUP_GROUP", "../../etc"),
        ("GCGROUP_THAW", "nonsense"),
        ("GCGROUP_RECLAIM", "\u{1}"),
    ] {
        let mount = Mount::new();
        let mut command = mount.command(driver_shell());
        command.env(name, value);
        assert_eq!(ends(command, nothing), expected, "{name}={value}");
    }
    let mut mount = Mount::new();
    let command = mount.command(driver_shell());
    assert_eq!(
        ends(command, &mut |_| mount.kill9()),
        expected,
        "the program ends differently without its daemon"
    );
}
