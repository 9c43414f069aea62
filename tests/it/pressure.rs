//! Tests `compute.pressure` and `memory.pressure`: what they show while threads wait.

use std::fs;
use std::time::Instant;

use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::contended::{batch, goes_on};
use crate::driver::{Dir, DriverShell};

/// Returns the totals of some and of full in a pressure file, microseconds.
#[track_caller]
fn totals(mount: &Mount, directory: impl ToString, file: &str) -> [u64; 2] {
    let text = mount.read(directory, file);
    ["some", "full"].map(|name| {
        let line = text.lines().find(|line| line.starts_with(name));
        let total = line.and_then(|line| line.rsplit_once("total=")?.1.parse().ok());
        total.unwrap_or_else(|| panic!("{text}"))
    })
}

#[track_caller]
fn join(mount: &Mount, group: &str, shell: &DriverShell) {
    let path = mount.path().join(group);
    if !path.exists() {
        fs::create_dir(path).expect("the directory can be made");
    }
    mount.write(group, "gcgroup.procs", &shell.pid().to_string());
}

/// Starts a process in a group, freezes it, and lets a thread of it wait at the gate.
fn waiting(mount: &Mount, group: &str) -> DriverShell {
    let mut shell = DriverShell::start(mount);
    join(mount, group, &shell);
    Dir::of(mount, shell.pid()).freeze();
    shell.tell("spin 1 1");
    wait_until("a thread waits", || {
        totals(mount, shell.pid(), "compute.pressure")[0] > 0
    });
    shell
}

/// Replaces each number by a 0.
fn shape(text: &str) -> String {
    let mut shape = String::new();
    for byte in text.chars() {
        match byte {
            '0'..='9' if shape.ends_with('0') => {}
            '0'..='9' => shape.push('0'),
            other => shape.push(other),
        }
    }
    shape
}

#[test]
fn files_have_the_format_of_the_kernel() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    join(&mount, "team", &shell);
    let expected = "some avg0=0.0 avg0=0.0 avg0=0.0 total=0\nfull avg0=0.0 avg0=0.0 avg0=0.0 total=0\n";
    // Absent where the kernel has no PSI.
    if let Ok(kernel) = fs::read_to_string("/proc/pressure/memory") {
        assert_eq!(shape(&kernel), expected);
    }
    for directory in [String::new(), shell.pid().to_string(), "team".to_owned()] {
        for file in ["compute.pressure", "memory.pressure"] {
            let text = fs::read_to_string(mount.file(&directory, file)).expect("the file is readable");
            assert_eq!(shape(&text), expected, "{directory}/{file}");
            assert!(
                text.starts_with("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
                "{text}"
            );
        }
    }
    assert!(
        !mount
            .file(format!("{}/0", shell.pid()), "compute.pressure")
            .exists()
    );
}

#[test]
fn frozen_process_shows_growing_pressure_while_a_thread_waits() {
    let mut mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    join(&mount, "team", &shell);
    Dir::of(&mount, shell.pid()).freeze();
    assert_eq!(
        totals(&mount, shell.pid(), "compute.pressure"),
        [0, 0],
        "no thread wants to submit"
    );
    shell.tell("spin 1 1");
    let places = [String::new(), shell.pid().to_string(), "team".to_owned()];
    for place in &places {
        let mut before = [0, 0];
        for _ in 0..3 {
            wait_until("the totals grow", || {
                let now = totals(&mount, place, "compute.pressure");
                now[0] > before[0] && now[1] > before[1]
            });
            before = totals(&mount, place, "compute.pressure");
        }
    }
    assert_eq!(totals(&mount, shell.pid(), "memory.pressure"), [0, 0]);
    let before = totals(&mount, shell.pid(), "compute.pressure");
    mount.kill9();
    mount.restart();
    wait_until("the process has registered again", || mount.governs(shell.pid()));
    let after = totals(&mount, shell.pid(), "compute.pressure");
    assert!(
        after[0] > before[0] && after[1] > before[1],
        "{before:?} {after:?}"
    );
    Dir::of(&mount, shell.pid()).write("compute.freeze", 0);
    assert_eq!(shell.answer(), "ok");
    let after = places
        .clone()
        .map(|place| totals(&mount, place, "compute.pressure"));
    assert_eq!(
        places.map(|place| totals(&mount, place, "compute.pressure")),
        after,
        "no thread waits any more"
    );
}

#[test]
fn group_of_two_waiting_processes_gains_a_second_per_second() {
    let mount = Mount::new();
    let begun = Instant::now();
    let shells = [waiting(&mount, "team"), waiting(&mount, "team")];
    let before = totals(&mount, "team", "compute.pressure");
    let read = Instant::now();
    wait_until("the total grows by 50 ms", || {
        totals(&mount, "team", "compute.pressure")[1] >= before[1] + 50_000
    });
    let after = totals(&mount, "team", "compute.pressure");
    let [since_begin, since_read] = [begun, read].map(|from| from.elapsed().as_micros());
    // Each one is bounded by the time that has passed since a moment before it began.
    assert!(u128::from(after[0]) <= since_begin, "{after:?}");
    assert!(
        u128::from(after[0] - before[0]) <= since_read + since_begin,
        "{before:?} {after:?}"
    );
    shells.into_iter().for_each(DriverShell::kill9);
    wait_until("the group is empty", || {
        mount.read("team", "gcgroup.procs").is_empty()
    });
    for place in ["team", ""] {
        let left = totals(&mount, place, "compute.pressure");
        assert!(
            left[0] >= after[0] && left[1] >= after[1],
            "{place:?}: {after:?} {left:?}"
        );
    }
}

#[test]
fn process_beyond_its_quota_has_pressure() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    Dir::of(&mount, shell.pid()).write("compute.max", "1000 100000");
    // The first kernels may all be submitted before the daemon has counted one; later ones repay them.
    wait_until("the process has waited", || {
        assert_eq!(shell.ask("spin 2000 5"), "ok");
        totals(&mount, shell.pid(), "compute.pressure")[0] > 10_000
    });
}

#[test]
fn process_of_lower_priority_waits_for_its_turn() {
    let mount = Mount::with(Config::default().arg("--policy").arg("strict"));
    let low = batch(&mount, 0, 10);
    goes_on(&mount, low.pid(), 0, 2_000);
    let high = batch(&mount, 0, 2);
    wait_until("the process has waited for 50 ms", || {
        totals(&mount, low.pid(), "compute.pressure")[0] > 50_000
    });
    let [some, full] = totals(&mount, low.pid(), "compute.pressure");
    assert!(full <= some, "{some} {full}");
    let of_root = totals(&mount, "", "compute.pressure");
    assert!(of_root[0] > 0 && of_root[1] <= of_root[0], "{of_root:?}");
    goes_on(&mount, high.pid(), 0, 2_000);
}

#[test]
fn move_to_the_host_is_memory_pressure() {
    const MIB: u64 = 1 << 20;
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let dir = Dir::of(&mount, program.pid());
    for _ in 0..2 {
        let answer = program.ask(&format!("alloc linear {}", 32 * MIB));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    assert_eq!(totals(&mount, program.pid(), "memory.pressure"), [0, 0]);
    dir.write("memory.reclaim", "max");
    wait_until("the memory is swapped out", || dir.number("memory.current") == 0);
    let [some, full] = totals(&mount, program.pid(), "memory.pressure");
    assert!(some > 0 && full > 0, "{some} {full}");
    assert_eq!(program.ask("verify"), "verified 2");
}
