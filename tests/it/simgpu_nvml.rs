//! Tests the simulated NVML: it counts initialisations, reports what living processes hold on each device,
//! and returns lists as NVML does.

use std::collections::BTreeMap;
use std::process::Command;

use nix::sys::signal::Signal;
use support::{Governed, artifacts, c_program, wait_until};
use tempfile::TempDir;

/// NVML result codes.
const SUCCESS: u64 = 0;
const UNINITIALIZED: u64 = 1;
const INVALID_ARGUMENT: u64 = 2;
const NOT_FOUND: u64 = 6;
const INSUFFICIENT_SIZE: u64 = 7;

/// Simulated GPUs without a daemon.
struct Machine {
    directory: TempDir,
}

impl Machine {
    fn new() -> Machine {
        Machine {
            directory: TempDir::new().unwrap(),
        }
    }

    fn spawn(&self, mut command: Command) -> Governed {
        command
            .env("LD_LIBRARY_PATH", artifacts().simgpu())
            .env("SIMGPU_DIR", self.directory.path())
            .env("SIMGPU_DEVICES", "2")
            .env_remove("LD_PRELOAD");
        Governed::spawn(command)
    }

    /// Starts `programs/nvml.c`, which queries NVML.
    fn nvml(&self) -> Nvml {
        let mut nvml = Nvml(self.spawn(Command::new(c_program("nvml.c", &[]))));
        assert_eq!(nvml.ask("init"), [SUCCESS]);
        nvml
    }

    fn load(&self, arguments: &[&str]) -> Governed {
        let mut command = Command::new(artifacts().load());
        command.args(arguments);
        let mut load = self.spawn(command);
        load.expect("ready");
        load
    }
}

struct Nvml(Governed);

/// Result of a list call: result code, reported count, and the entries: a number for each pid.
type List = (u64, u64, BTreeMap<i32, u64>);

impl Nvml {
    /// Sends a command whose answer consists of numbers.
    fn ask(&mut self, command: &str) -> Vec<u64> {
        let answer = self.0.ask(command);
        answer
            .split(' ')
            .map(|number| number.parse().unwrap_or_else(|_| panic!("{answer}")))
            .collect()
    }

    fn list(&mut self, command: &str) -> List {
        let answer = self.0.ask(command);
        let mut words = answer.split(' ');
        let mut number = || words.next().unwrap().parse().unwrap();
        let (result, count) = (number(), number());
        let pair = |word: &str| {
            let (pid, value) = word.split_once(':').unwrap();
            (pid.parse().unwrap(), value.parse().unwrap())
        };
        (result, count, words.map(pair).collect())
    }
}

#[test]
fn nvml_counts_initialisations() {
    let machine = Machine::new();
    let mut nvml = machine.nvml();
    assert_eq!(nvml.ask("init"), [SUCCESS]);
    assert_eq!(nvml.ask("shutdown"), [SUCCESS]);
    assert_eq!(nvml.ask("count"), [SUCCESS, 2]);
    assert_eq!(nvml.ask("shutdown"), [SUCCESS]);
    assert_eq!(nvml.ask("count"), [UNINITIALIZED, 0]);
    assert_eq!(nvml.ask("shutdown"), [UNINITIALIZED]);
}

#[test]
fn each_device_has_a_uuid_and_short_buffers_are_refused() {
    let machine = Machine::new();
    let mut nvml = machine.nvml();
    let (first, second) = (nvml.0.ask("uuid 0 41"), nvml.0.ask("uuid 1 41"));
    assert!(first.starts_with("0 GPU-") && second.starts_with("0 GPU-") && first != second);
    assert_eq!(nvml.0.ask("uuid 0 40"), format!("{INSUFFICIENT_SIZE} -"));
    assert_eq!(nvml.0.ask("uuid 2 41"), format!("{INVALID_ARGUMENT} -"));
}

#[test]
fn memory_is_the_sum_of_living_processes() {
    let machine = Machine::new();
    let mut nvml = machine.nvml();
    let empty = nvml.ask("memory 0 1");
    assert_eq!((empty[0], empty[3], empty[2]), (SUCCESS, 0, empty[1]));

    let mut process = machine.load(&["obey"]);
    let before = nvml.ask("memory 0 1")[3];
    assert!(before > 0, "the context uses no memory");
    assert_eq!(process.ask("alloc linear 64M"), "allocated 1 linear 67108864");
    let after = nvml.ask("memory 0 1");
    assert_eq!(after[3] - before, 64 << 20);
    assert_eq!(after[2] + after[3], after[1]);
    assert_eq!(nvml.ask("memory 0 2"), after);
    assert_eq!(nvml.ask("memory 1 1")[3], 0);

    process.signal(Signal::SIGKILL);
    wait_until("the killed process's memory is released", || {
        nvml.ask("memory 0 1") == empty
    });
    assert_eq!(
        nvml.list("processes 0 Compute 3 0"),
        (SUCCESS, 0, BTreeMap::new())
    );
}

#[test]
fn every_process_list_version_agrees_and_checks_room() {
    let machine = Machine::new();
    let mut nvml = machine.nvml();
    let mut processes = [machine.load(&["obey"]), machine.load(&["obey"])];
    assert_eq!(
        processes[0].ask("alloc linear 32M"),
        "allocated 1 linear 33554432"
    );
    let used = nvml.ask("memory 0 1")[3];

    let (result, count, held) = nvml.list("processes 0 Compute 3 8");
    assert_eq!((result, count), (SUCCESS, 2));
    assert_eq!(held.keys().copied().collect::<Vec<_>>(), {
        let mut pids = processes.each_ref().map(Governed::pid);
        pids.sort_unstable();
        pids
    });
    assert_eq!(held.values().sum::<u64>(), used);
    assert_eq!(held[&processes[0].pid()] - held[&processes[1].pid()], 32 << 20);

    for list in [
        "processes 0 Compute 1",
        "processes 0 Compute 2",
        "processes 0 Compute 3",
        "details 0",
    ] {
        assert_eq!(
            nvml.list(&format!("{list} 8")),
            (SUCCESS, 2, held.clone()),
            "{list}"
        );
        for room in [0, 1] {
            let short = nvml.list(&format!("{list} {room}"));
            assert_eq!(short, (INSUFFICIENT_SIZE, 2, BTreeMap::new()), "{list} {room}");
        }
        assert_eq!(
            nvml.list(&format!("{list} 2")),
            (SUCCESS, 2, held.clone()),
            "{list}"
        );
    }
    for kind in ["Graphics", "MPSCompute"] {
        for version in 1..=3 {
            let list = nvml.list(&format!("processes 0 {kind} {version} 0"));
            assert_eq!(list, (SUCCESS, 0, BTreeMap::new()), "{kind} {version}");
        }
    }
    assert_eq!(
        nvml.list("processes 1 Compute 3 8"),
        (SUCCESS, 0, BTreeMap::new())
    );
}

#[test]
fn utilisation_belongs_to_the_working_process() {
    let machine = Machine::new();
    let mut nvml = machine.nvml();
    let _idle = machine.load(&["obey"]);
    assert_eq!(nvml.ask("rates 0"), [SUCCESS, 0]);
    assert_eq!(nvml.list("samples 0 8").0, NOT_FOUND);

    let busy = machine.load(&["throughput", "--duration", "3600"]);
    wait_until("the device is busy", || nvml.ask("rates 0")[1] > 0);
    let (result, count, shares) = nvml.list("samples 0 8");
    assert_eq!((result, count), (SUCCESS, 1));
    let share = shares[&busy.pid()];
    assert!((1..=100).contains(&share), "{share} percent");
    assert_eq!(nvml.list("samples 0 0"), (INSUFFICIENT_SIZE, 1, BTreeMap::new()));
    assert_eq!(nvml.ask("rates 1"), [SUCCESS, 0]);

    busy.signal(Signal::SIGKILL);
    wait_until("the device is idle", || nvml.ask("rates 0") == [SUCCESS, 0]);
}
