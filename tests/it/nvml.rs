//! Tests NVML: in a limited process it reports the process's limit and the process alone; other processes get
//! NVML's own answers.

use std::collections::BTreeMap;
use std::process::Command;

use support::{Config, Governed, Mount, c_program, program_for_all, wait_until};

use crate::clients::python_client;
use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;

/// NVML result codes.
pub(crate) const SUCCESS: u64 = 0;
const UNINITIALIZED: u64 = 1;
const INVALID_ARGUMENT: u64 = 2;
const INSUFFICIENT_SIZE: u64 = 7;

const KINDS: [&str; 3] = ["Compute", "Graphics", "MPSCompute"];

/// A running `programs/nvml.c`, which opens the library and looks up its functions as `nvidia-smi` does.
pub(crate) struct Nvml(pub(crate) Governed);

impl Nvml {
    /// Starts the program ungoverned.
    #[track_caller]
    pub(crate) fn bare(mount: &Mount) -> Self {
        Self::spawn(mount.bare_command(program()))
    }

    #[track_caller]
    pub(crate) fn spawn(command: Command) -> Self {
        let mut nvml = Self(Governed::spawn(command));
        assert_eq!(nvml.ask("init"), [SUCCESS]);
        nvml
    }

    /// Starts the program, which is governed once it uses CUDA.
    #[track_caller]
    fn start(mount: &Mount) -> Self {
        Self::spawn(mount.command(program()))
    }

    /// Starts a governed program with a limit on the first device.
    #[track_caller]
    pub(crate) fn limited(mount: &Mount, limit: u64) -> (Self, Dir<'_>) {
        let mut nvml = Self::start(mount);
        assert_eq!(nvml.ask("cuda"), [SUCCESS]);
        let dir = Dir::of(mount, nvml.0.pid());
        dir.gpu(0).write("memory.limit", limit);
        (nvml, dir)
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> Vec<u64> {
        let answer = self.0.ask(command);
        let number = |number: &str| number.parse().unwrap_or_else(|_| panic!("{command}: {answer}"));
        answer.split(' ').map(number).collect()
    }

    /// Sends a list command. Returns its result, the reported count, and the entries: a number for each pid.
    #[track_caller]
    pub(crate) fn list(&mut self, command: &str) -> (u64, u64, BTreeMap<i32, u64>) {
        let answer = self.0.ask(command);
        let mut words = answer.split(' ');
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        let (result, count) = (number(), number());
        let pair = |word: &str| {
            let (pid, value) = word.split_once(':').expect("a pair");
            (pid.parse().expect("a pid"), value.parse().expect("a number"))
        };
        (result, count, words.map(pair).collect())
    }

    /// Returns the compute processes of a device.
    #[track_caller]
    pub(crate) fn computing(&mut self, device: u32) -> BTreeMap<i32, u64> {
        let (result, count, list) = self.list(&format!("processes {device} Compute 3 16"));
        assert_eq!((result, count), (SUCCESS, list.len() as u64));
        list
    }
}

pub(crate) fn program() -> std::path::PathBuf {
    c_program("nvml.c", &[])
}

#[test]
fn nvml_memory_shows_limit_and_charge() {
    let mount = Mount::with(Config::default().env("SIMGPU_MEMORY", "1G"));
    let (mut nvml, dir) = Nvml::limited(&mount, 512 * MIB);
    assert_eq!(nvml.ask(&format!("alloc 0 {}", 96 * MIB)), [SUCCESS]);
    let current = dir.gpu(0).number("memory.current");
    assert!(current >= 96 * MIB);
    let told = [SUCCESS, 512 * MIB, 512 * MIB - current, current];
    assert_eq!(nvml.ask("memory 0 1"), told);
    assert_eq!(nvml.ask("memory 0 2"), told);

    // An unmanaged process takes most of the GPU: no governed process uses this memory, but it is not free
    // either.
    let mut other = DriverShell::start_bare(&mount);
    assert_eq!(other.ask(&format!("alloc linear {}", 700 * MIB)), "ok 0");
    let card = Nvml::bare(&mount).ask("memory 0 1");
    assert!(card[2] < 400 * MIB);
    for version in 1..=2 {
        let told = nvml.ask(&format!("memory 0 {version}"));
        assert_eq!(told, [SUCCESS, 512 * MIB, card[2], current]);
    }

    // Allocations stay under a lower limit, and nothing is free.
    dir.gpu(0).write("memory.limit", 32 * MIB);
    for version in 1..=2 {
        let told = nvml.ask(&format!("memory 0 {version}"));
        assert_eq!(told, [SUCCESS, 32 * MIB, 0, 32 * MIB]);
    }
    dir.gpu(0).write("memory.limit", "max");
    assert_eq!(nvml.ask("memory 0 1"), card);
}

#[test]
fn limit_above_gpu_memory_shows_gpu_memory() {
    let mount = Mount::with(Config::default().env("SIMGPU_MEMORY", "1G"));
    let (mut nvml, _dir) = Nvml::limited(&mount, 4096 * MIB);
    assert_eq!(nvml.ask("memory 0 1")[1], 1024 * MIB);
}

#[test]
fn limited_process_sees_only_itself_in_every_list() {
    let mount = Mount::new();
    let mut others = [DriverShell::start(&mount), DriverShell::start_bare(&mount)];
    for other in &mut others {
        assert_eq!(other.ask(&format!("alloc linear {}", 8 * MIB)), "ok 0");
    }
    let (mut nvml, dir) = Nvml::limited(&mount, 512 * MIB);
    let pid = nvml.0.pid();
    assert_eq!(nvml.ask(&format!("alloc 0 {}", 96 * MIB)), [SUCCESS]);
    let own = BTreeMap::from([(pid, dir.gpu(0).number("memory.current"))]);

    for list in [
        "processes 0 Compute 1",
        "processes 0 Compute 2",
        "processes 0 Compute 3",
        "details 0",
    ] {
        for room in [1, 2, 16] {
            let told = nvml.list(&format!("{list} {room}"));
            assert_eq!(told, (SUCCESS, 1, own.clone()), "{list} {room}");
        }
        let short = nvml.list(&format!("{list} 0"));
        assert_eq!(short, (INSUFFICIENT_SIZE, 1, BTreeMap::new()), "{list}");
    }
    for kind in &KINDS[1..] {
        for version in 1..=3 {
            let told = nvml.list(&format!("processes 0 {kind} {version} 0"));
            assert_eq!(told, (SUCCESS, 0, BTreeMap::new()), "{kind} {version}");
        }
    }
    assert_eq!(nvml.ask("nulls 0"), [INVALID_ARGUMENT; 3]);
    assert_eq!(
        nvml.list("processes 7 Compute 3 4").0,
        INVALID_ARGUMENT,
        "the answer for a device that does not exist"
    );

    dir.gpu(0).write("memory.limit", "max");
    assert_eq!(
        nvml.computing(0).len(),
        3,
        "the unlimited process does not see all others"
    );
    dir.write("memory.limit", 512 * MIB);
    assert_eq!(
        nvml.computing(0),
        own,
        "the limit on the whole process hides no others"
    );
}

#[test]
fn nvml_numbering_is_independent_of_visible_devices() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 3));
    let mut command = mount.command(program());
    command.env("CUDA_VISIBLE_DEVICES", "2,0");
    let mut nvml = Nvml::spawn(command);
    assert_eq!(nvml.ask("cuda"), [SUCCESS]);
    let dir = Dir::of(&mount, nvml.0.pid());
    for (device, mib) in [(0, 16), (1, 8)] {
        assert_eq!(nvml.ask(&format!("alloc {device} {}", mib * MIB)), [SUCCESS]);
    }
    dir.gpu(2).write("memory.limit", 64 * MIB);
    dir.gpu(1).write("memory.limit", 32 * MIB);
    let current = dir.gpu(2).number("memory.current");
    assert!(current >= 16 * MIB);
    assert_eq!(
        nvml.ask("memory 2 1"),
        [SUCCESS, 64 * MIB, 64 * MIB - current, current]
    );
    assert_eq!(nvml.ask("memory 1 1"), [SUCCESS, 32 * MIB, 32 * MIB, 0]);
    assert!(nvml.ask("memory 0 1")[1] > 64 * MIB);

    // A limit on the whole process leaves the same remainder on each device.
    dir.write("memory.limit", 48 * MIB);
    let all = dir.number("memory.current");
    for device in 0..3 {
        let current = dir.gpu(device).number("memory.current");
        let limit = if device == 1 { 32 } else { 48 } * MIB;
        let free = (limit - current).min(48 * MIB - all);
        for version in 1..=2 {
            let told = nvml.ask(&format!("memory {device} {version}"));
            assert_eq!(told, [SUCCESS, limit, free, current], "{device}");
        }
        assert_eq!(nvml.computing(device).len(), usize::from(current > 0), "{device}");
    }
}

#[test]
fn unlimited_process_gets_nvmls_answers() {
    let mount = Mount::new();
    let mut shells = [DriverShell::start(&mount), DriverShell::start(&mount)];
    for shell in &mut shells {
        assert_eq!(shell.ask(&format!("alloc linear {}", 8 * MIB)), "ok 0");
    }
    Dir::of(&mount, shells[0].pid()).write("memory.limit", 512 * MIB);
    let mut bare = Nvml::bare(&mount);
    let mut watching = Nvml::start(&mount);
    for command in ["memory 0 1", "memory 0 2"] {
        assert_eq!(watching.ask(command), bare.ask(command));
    }
    for list in [
        "processes 0 Compute 1 16",
        "processes 0 Compute 3 1",
        "details 0 16",
        "details 0 0",
    ] {
        assert_eq!(watching.list(list), bare.list(list), "{list}");
    }
    assert_eq!(watching.computing(0).len(), 2);
    assert!(
        !Dir::of(&mount, watching.0.pid()).exists(),
        "a program that only monitors is governed"
    );

    let mut command = mount.command(program());
    command.env("GCGROUP_SOCKET", "/nonexistent/gcgroup.sock");
    let mut alone = Nvml::spawn(command);
    assert_eq!(alone.ask("cuda"), [SUCCESS]);
    assert_eq!(alone.ask(&format!("alloc 0 {}", 8 * MIB)), [SUCCESS]);
    for command in ["memory 0 1", "memory 0 2"] {
        assert_eq!(
            alone.ask(command),
            bare.ask(command),
            "the answers without a daemon"
        );
    }
    assert_eq!(alone.computing(0), bare.computing(0));
    assert_eq!(alone.computing(0).len(), 3);
    assert_eq!(watching.ask("shutdown"), [SUCCESS]);
    assert_eq!(watching.ask("memory 0 1")[0], UNINITIALIZED);
}

#[test]
fn initial_limit_shows_before_cuda_and_without_daemon() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask(&format!("alloc linear {}", 8 * MIB)), "ok 0");
    for socket in [mount.socket(), "/nonexistent/gcgroup.sock".into()] {
        let mut command = mount.command(program());
        command
            .env("GCGROUP_MEMORY_LIMIT", "512M")
            .env("GCGROUP_SOCKET", socket);
        let mut nvml = Nvml::spawn(command);
        assert_eq!(nvml.ask("memory 0 2"), [SUCCESS, 512 * MIB, 512 * MIB, 0]);
        assert!(nvml.computing(0).is_empty());
        assert_eq!(nvml.ask("cuda"), [SUCCESS]);
        assert_eq!(nvml.ask(&format!("alloc 0 {}", 16 * MIB)), [SUCCESS]);
        assert_eq!(nvml.ask("memory 0 1")[1], 512 * MIB);
        let pid = nvml.0.pid();
        assert_eq!(nvml.computing(0).into_keys().collect::<Vec<_>>(), [pid]);
    }
}

#[test]
fn groups_limit_shows_before_cuda() {
    const ALICE: u32 = 1000;
    let config = Config::default().arg("--allow-other");
    let mount = Mount::with(config.env("SIMGPU_MEMORY", "1G"));
    let made = mount.gcgroupfs(&["mkdir", "team"]).status();
    assert!(made.expect("the command runs").success());
    mount.write("team", "memory.limit", "512M");
    let mut command = mount.command(driver_shell());
    command.env("GCGROUP_GROUP", "team");
    let mut holder = DriverShell::spawn(command);
    assert_eq!(holder.ask(&format!("alloc linear {}", 96 * MIB)), "ok 0");
    let mut other = DriverShell::start_bare(&mount);
    assert_eq!(other.ask(&format!("alloc linear {}", 8 * MIB)), "ok 0");

    let mut command = mount.command(program());
    command.env("GCGROUP_GROUP", "team");
    let mut nvml = Nvml::spawn(command);
    for version in 1..=2 {
        let told = nvml.ask(&format!("memory 0 {version}"));
        let used = mount.number("team", "memory.current", "");
        assert_eq!(told, [SUCCESS, 512 * MIB, 512 * MIB - used, used]);
        assert!(used >= 96 * MIB);
    }
    assert!(nvml.computing(0).is_empty(), "the process sees others");
    assert!(
        !Dir::of(&mount, nvml.0.pid()).exists(),
        "a program that only monitors is governed"
    );
    mount.write("team", "memory.limit", "256M");
    wait_until("NVML shows the new limit", || {
        nvml.ask("memory 0 1")[1] == 256 * MIB
    });
    assert_eq!(nvml.ask("cuda"), [SUCCESS]);
    assert_eq!(nvml.ask("memory 0 1")[1], 256 * MIB);

    // A job's children are in its group without its variables.
    let mut command = mount.gcgroupfs(&["run", "--memory-limit", "128M", "--", "env"]);
    command.args(["-u", "GCGROUP_GROUP", "-u", "GCGROUP_MEMORY_LIMIT"]);
    command.arg(program());
    let mut child = Nvml::spawn(command);
    assert_eq!(child.ask("memory 0 1"), [SUCCESS, 128 * MIB, 128 * MIB, 0]);
    // A query is no registration that was given up: a freeze of the job need not wait for this process.
    let job = format!("job-{}", child.0.pid());
    mount.write(&job, "compute.freeze", "1");
    assert_eq!(mount.number(&job, "gcgroup.events", "frozen"), 1);

    // A group that the user may not enter bounds nothing, nor does one that does not exist.
    let program = program_for_all(&program(), mount.root());
    let card = Nvml::bare(&mount).ask("memory 0 1");
    for group in ["team", "none"] {
        let mut command = mount.command_of(ALICE, &program);
        command.env("GCGROUP_GROUP", group);
        assert_eq!(Nvml::spawn(command).ask("memory 0 1"), card, "{group}");
    }
}

#[test]
fn process_in_pid_namespace_sees_its_own_pid() {
    let mount = Mount::new();
    let mut other = DriverShell::start(&mount);
    assert_eq!(other.ask(&format!("alloc linear {}", 8 * MIB)), "ok 0");
    let mut command = mount.command("/usr/bin/unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(program());
    let mut nvml = Nvml::spawn(command);
    assert_eq!(nvml.ask("cuda"), [SUCCESS]);
    assert_eq!(nvml.ask(&format!("alloc 0 {}", 16 * MIB)), [SUCCESS]);
    let outside = crate::driver::governed_pids(&mount)
        .into_iter()
        .find(|pid| *pid != other.pid())
        .expect("the process is governed");
    assert_ne!(outside, 1);
    let dir = Dir::of(&mount, outside);
    dir.write("memory.limit", 512 * MIB);
    let current = dir.gpu(0).number("memory.current");
    assert_eq!(nvml.computing(0), BTreeMap::from([(1, current)]));
}

#[test]
fn nvidia_ml_py_shows_limit_only_to_limited_process() {
    let mount = Mount::new();
    let mut monitor = python_client(&mount, "nvml_client.py", &[]);
    let mut limited = python_client(&mount, "nvml_client.py", &["cuda"]);
    let all = monitor.ask("");
    assert_eq!(limited.ask(""), all, "the answers before any limit");
    let dir = Dir::of(&mount, limited.pid());
    dir.write("memory.limit", 512 * MIB);
    let current = dir.number("memory.current");
    assert!(current >= 64 * MIB);
    let own = format!("{} {current} {}:{current}", 512 * MIB, limited.pid());
    assert_eq!(limited.ask(""), own);
    assert_eq!(monitor.ask(""), all);
    assert!(
        !Dir::of(&mount, monitor.pid()).exists(),
        "a program that only monitors is governed"
    );
}
