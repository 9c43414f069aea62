//! Tests hosts on which memory of some NUMA nodes cannot be used by the device: the next location is used,
//! and each failed one is tried once.

use std::fs;
use std::path::{Path, PathBuf};

use simgpu::Held;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::calls::Calls;
use crate::driver::Dir;

const MIB: u64 = 1 << 20;

fn mount(driver: &str) -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_DRIVER", driver)
            .without_turns(),
    )
}

/// A host's NUMA nodes, as lists of the kernel.
struct Nodes {
    online: &'static str,
    with_processors: &'static str,
}

/// Two nodes with memory, of which the second has no processors.
const UNLIKE: Nodes = Nodes {
    online: "0-1",
    with_processors: "0",
};
const ALIKE: Nodes = Nodes {
    online: "0-1",
    with_processors: "0-1",
};

impl Nodes {
    fn write(&self, mount: &Mount) -> PathBuf {
        let directory = mount.simgpu_dir().join("nodes");
        fs::create_dir_all(&directory).unwrap();
        for (file, list) in [
            ("online", self.online),
            ("has_memory", self.online),
            ("has_cpu", self.with_processors),
        ] {
            fs::write(directory.join(file), format!("{list}\n")).unwrap();
        }
        directory
    }
}

struct Program {
    program: Governed,
    log: PathBuf,
}

impl Program {
    /// Starts a program with two movable blocks of 8 MiB on such a host.
    #[track_caller]
    fn start(mount: &Mount, nodes: &Nodes, locations: &str) -> Self {
        Self::start_with(mount, nodes, locations, &[])
    }

    #[track_caller]
    fn start_with(mount: &Mount, nodes: &Nodes, locations: &str, more: &[(&str, &str)]) -> Self {
        let log = mount.simgpu_dir().join("log");
        let _ = fs::remove_file(&log);
        let mut command = mount.command(artifacts().load());
        command
            .arg("obey")
            .env("GCGROUP_SWAP", "max")
            .env("GCGROUP_LOG", &log)
            .env("GCGROUP_NODES", nodes.write(mount))
            .env("SIMGPU_HOST_LOCATIONS", locations)
            .envs(more.iter().copied());
        let mut program = Governed::spawn(command);
        program.expect("ready");
        for _ in 0..2 {
            let answer = program.ask(&format!("alloc linear {}", 8 * MIB));
            assert!(answer.starts_with("allocated "), "{locations}: {answer}");
        }
        Self { program, log }
    }

    /// Moves one block out and in again.
    #[track_caller]
    fn moves(&mut self, mount: &Mount, what: &str) {
        let dir = Dir::of(mount, self.program.pid());
        let failed = dir.key("memory.events", "swap_fail");
        dir.write("memory.limit", 8 * MIB);
        wait_until(&format!("one block is on the host: {what}"), || {
            dir.number("memory.current") == 8 * MIB
        });
        let held = mount.truth().held(self.program.pid(), 0, Held::HostPhysical);
        assert_eq!(held, 8 * MIB, "{what}");
        assert_eq!(self.program.ask("verify"), "verified 2", "{what}");
        dir.write("memory.limit", "max");
        wait_until(&format!("the block is on the device: {what}"), || {
            dir.number("memory.swap.current") == 0
        });
        assert_eq!(self.program.ask("verify"), "verified 2", "{what}");
        assert_eq!(dir.key("memory.events", "swap_fail"), failed, "{what}");
    }

    /// Returns the lines of the log about locations.
    fn told(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains("host memory of"));
        lines
            .map(|line| line.split(' ').skip(3).collect::<Vec<_>>().join(" "))
            .collect()
    }
}

#[test]
fn next_location_is_used_whatever_the_error() {
    let mount = mount("13.5");
    for code in [1, 2, 101, 800, 801, 999] {
        let locations = format!("numa:0={code},numa:1=ok");
        let mut program = Program::start(&mount, &ALIKE, &locations);
        program.moves(&mount, &locations);
        program.moves(&mount, &locations);
        let told = format!("host memory of node 0 cannot be used on device 0: error {code}; next is node 1");
        assert_eq!(program.told(), [told]);
        let locations = format!("numa:0={code},numa:1={code}");
        let mut program = Program::start(&mount, &ALIKE, &locations);
        program.moves(&mount, &locations);
        assert_eq!(program.told().len(), 2, "{locations}");
        assert!(program.told()[1].ends_with("next is any node"), "{locations}");
    }
}

#[test]
fn refused_locations_are_tried_and_reported_once() {
    let mount = mount("13.5");
    let trace = mount.simgpu_dir().join("trace");
    let trace_name = trace.to_str().unwrap();
    let mut program = Program::start_with(
        &mount,
        &ALIKE,
        "numa:0=2,numa:1=2,host=2",
        &[("SIMGPU_TRACE", trace_name)],
    );
    let dir = Dir::of(&mount, program.program.pid());
    dir.write("memory.limit", 8 * MIB);
    wait_until("the failed move is counted", || {
        dir.key("memory.events", "swap_fail") == 2
    });
    let refused = || created(&trace, 2);
    // Each of three locations twice.
    assert_eq!(refused(), 6);
    // Two more attempts.
    for number in 3..5 {
        dir.write("memory.reclaim", 8 * MIB);
        wait_until("the failed request is counted", || {
            dir.key("memory.events", "swap_fail") == number
        });
    }
    assert_eq!(refused(), 6);
    assert_eq!(program.told().len(), 3);
    assert!(program.told()[2].ends_with("memory can move only while the program is frozen"));
    assert_eq!(program.program.ask("verify"), "verified 2");
}

/// Returns the number of cuMemCreate calls with that result.
fn created(trace: &Path, result: u32) -> usize {
    let text = fs::read_to_string(trace).unwrap();
    let end = format!(" cuMemCreate {result}");
    text.lines().filter(|line| line.ends_with(&end)).count()
}

#[test]
fn location_that_fails_later_is_left_after_three_attempts() {
    let mount = mount("13.5");
    // The first two pieces are those of the program, the third the trial; then every other one is a trial.
    let faults = "cuMemCreate=2@4,cuMemCreate=2@6,cuMemCreate=2@8";
    let mut program = Program::start_with(&mount, &ALIKE, "numa:1=ok", &[("SIMGPU_FAULTS", faults)]);
    let dir = Dir::of(&mount, program.program.pid());
    dir.write("memory.limit", 8 * MIB);
    wait_until("one block is on the host", || {
        dir.number("memory.current") == 8 * MIB
    });
    let told = program.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("host memory of node 0 ") && told[0].ends_with("next is node 1"));
    assert_eq!(dir.key("memory.events", "swap_fail"), 2);
    dir.write("memory.limit", "max");
    wait_until("the block is on the device", || {
        dir.number("memory.swap.current") == 0
    });
    program.moves(&mount, "after a failure");
}

/// Tests a process whose container has no more host memory for a time.
#[test]
fn host_memory_that_was_used_up_is_tried_again() {
    let mount = mount("13.5");
    // Of two blocks, the first finds memory.
    let faults: Vec<_> = (5..17).map(|call| format!("cuMemCreate=2@{call}")).collect();
    let faults = [("SIMGPU_FAULTS", &*faults.join(","))];
    let mut program = Program::start_with(&mount, &ALIKE, "numa:1=ok", &faults);
    let dir = Dir::of(&mount, program.program.pid());
    dir.write("memory.limit", 1);
    wait_until("both blocks are on the host", || {
        dir.number("memory.current") == 0
    });
    assert!(dir.key("memory.events", "swap_fail") >= 1);
    assert_eq!(program.told().len(), 3, "each location is reported once");
    assert_eq!(program.program.ask("verify"), "verified 2");
}

#[test]
fn driver_that_may_crash_is_not_asked_for_nodes() {
    let mount = mount("12.8");
    let crash = "numa:*=crash";
    let mut program = Program::start(&mount, &UNLIKE, crash);
    program.moves(&mount, crash);
    assert_eq!(program.told(), [] as [&str; 0]);
    let text = fs::read_to_string(&program.log).unwrap();
    assert!(text.contains("before R595 may crash"), "{text}");
    drop(program);
    // Neither on a host where plain host memory is refused too.
    let mut program = Program::start(&mount, &UNLIKE, "numa:*=crash,host=1");
    let dir = Dir::of(&mount, program.program.pid());
    dir.freeze();
    dir.write("memory.reclaim", "max");
    wait_until("the memory is swapped out", || dir.number("memory.current") == 0);
    program.program.say("verify");
    dir.write("compute.freeze", 0);
    assert_eq!(program.program.line().as_deref(), Some("verified 2"));
    drop(program);
    // With nodes that are alike, or a newer driver, they are asked for.
    Program::start(&mount, &ALIKE, "host=1").moves(&mount, "12.8");
    Program::start_with(&mount, &UNLIKE, "host=1", &[("SIMGPU_DRIVER", "13.5")]).moves(&mount, "13.5");
}

/// Tests a driver that copies between pageable memory and host memory only where processors have access to
/// the latter.
#[test]
fn pageable_memory_is_copied_from_and_to_the_host() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_QUIRKS", "pageable-copies")
            .env("GCGROUP_SWAP", "max"),
    );
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok(&format!("cuMemAlloc_v2 &block {}", 8 * MIB));
    dir.write("memory.limit", MIB);
    wait_until("the block is swapped out", || {
        dir.number("memory.swap.current") == 8 * MIB
    });
    calls.put("word", 0, 8, 4711);
    calls.ok("cuMemcpyHtoD_v2 $block &word 8");
    calls.put("word", 0, 8, 0);
    calls.ok("cuMemcpyDtoH_v2 &word $block 8");
    assert_eq!(calls.get("word"), 4711);
}
