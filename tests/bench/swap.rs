//! What memory that can move costs: moves against a plain copy of as many blocks of page-locked memory in the same run, the
//! time for which a launch is held up by them, and what a program pays that is never asked to move anything.
//!
//! A move makes the memory it goes to, which a plain copy has already. The simulated device keeps the pages of what is freed
//! (`SIMGPU_KEPT`), since a device has no pages to wait for; the host's memory is made anew as it is by a driver, and what
//! that takes is told for as many bytes.

use std::process::Command;

use serde_json::{Value, json};
use support::{Config, Governed, Mount, artifacts, instructions};

use crate::files::monotonic;
use crate::report::{Report, quantile};

const BLOCK: u64 = 128 << 20;
const BLOCKS: u64 = 4;
/// Moves of all of it each way; the median counts.
const TURNS: usize = 5;

/// A move goes at this share of a plain copy's bandwidth at least.
const LEAST_SHARE: f64 = 0.8;
/// Milliseconds by which a launch may be held up beyond the copies' time.
const HELD: f64 = 5.0;
/// An allocation and its free, over making, mapping, unmapping and releasing the same by hand.
const TIMES_BARE: f64 = 2.0;

pub fn run(report: &mut Report) {
    moves(report);
    never_asked(report);
}

fn moves(report: &mut Report) {
    let all = BLOCK * BLOCKS;
    let simulated = Config::default()
        .env("SIMGPU_CONTEXT_MEMORY", 0)
        .env("SIMGPU_KEPT", all);
    let mount = Mount::with(simulated);
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let pid = program.pid();
    let answer = program.ask(&format!("bandwidth {BLOCK} {BLOCKS}"));
    let seconds: Vec<f64> = answer
        .split(' ')
        .skip(1)
        .map(|word| word.parse().expect(&answer))
        .collect();
    let [plain_out, plain_in, made, released] = seconds[..] else {
        panic!("{answer}");
    };
    report.note(
        "moves",
        &json!({
            "bytes": all, "blocks": BLOCKS,
            "copy_out_ms": plain_out * 1e3, "copy_in_ms": plain_in * 1e3,
            "host_memory_made_ms": made * 1e3, "host_memory_released_ms": released * 1e3,
            "device_memory": "keeps its pages when it is freed (SIMGPU_KEPT)",
        }),
    );
    for _ in 0..BLOCKS {
        let answer = program.ask(&format!("alloc linear {BLOCK}"));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    let ways = [("out", "1", plain_out, made), ("in", "max", plain_in, released)];
    let mut took = [Vec::new(), Vec::new()];
    let mut held = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (at, (way, limit, ..)) in ways.iter().enumerate() {
            let moved = || mount.number(pid, "memory.stat", &format!("swap_{way}_bytes"));
            let before = moved();
            let began = monotonic();
            mount.write(pid, "memory.limit", limit);
            // Launches one after the other: the longest pause between two is that for the moves.
            let (mut last, mut longest) = (began, 0.0_f64);
            while moved() - before != all {
                let answer = program.ask("stamp");
                let stamp: f64 = answer.trim_start_matches("stamped ").parse().expect(&answer);
                longest = longest.max(stamp - last);
                last = stamp;
            }
            took[at].push((monotonic() - began) / 1e9);
            held[at].push(longest / 1e9);
        }
    }
    for (at, (way, _, copying, host)) in ways.iter().enumerate() {
        let took = quantile(took[at].clone(), 0.5);
        let rate = |seconds: f64| all as f64 / seconds / 1e9;
        let detail = json!({
            "plain_gb_per_s": rate(*copying), "moved_gb_per_s": rate(took), "moved_ms": took * 1e3,
        });
        let name = format!("move {way}: a plain copy's bandwidth over the move's");
        report.add(&name, took / copying, "times", 1.0 / LEAST_SHARE, detail);
        let longest = quantile(held[at].clone(), 0.5);
        report.add(
            &format!("move {way}: a launch is held up beyond the copies' time at that bandwidth"),
            ((longest - copying) * 1e3).max(0.0),
            "ms",
            HELD,
            json!({ "held_ms": longest * 1e3, "copies_ms": copying * 1e3, "host_memory_ms": host * 1e3 }),
        );
    }
}

fn never_asked(report: &mut Report) {
    let pair = |command: Command, api: &str, size: &str| {
        let mut command = command;
        command.args([
            "overhead",
            "--call",
            "alloc-free",
            "--rounds",
            "20",
            "--calls",
            "50",
        ]);
        command.args(["--api", api, "--size", size]);
        let output = command.output().expect("gcgroup-load runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).expect("JSON");
        last["ns"][0]["median"].as_f64().expect("a number of nanoseconds")
    };
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let swapping = || {
        let mut command = mount.command(artifacts().load());
        command.env("GCGROUP_SWAP", "max");
        command
    };
    for size in ["2M", "64M"] {
        let by_hand = pair(mount.bare_command(artifacts().load()), "vmm", size);
        let plain = pair(mount.bare_command(artifacts().load()), "linear", size);
        let swap = pair(swapping(), "linear", size);
        let detail = json!({ "by_hand_ns": by_hand, "swap_ns": swap, "plain_ns": plain });
        let name = format!("--swap: allocate and free {size}, over the same by hand");
        report.add(&name, swap / by_hand, "times", TIMES_BARE, detail);
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return report.skip("--swap: launch, added instructions", "no valgrind here");
    }
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1));
    let launch = |swap: &str| {
        let [few, many] = [1_000, 11_000].map(|calls: u32| {
            let mut command = mount.command(artifacts().load());
            command.env("GCGROUP_SWAP", swap);
            command.args(["overhead", "--call", "launch", "--rounds", "1"]);
            command.args(["--calls", &calls.to_string()]);
            instructions(&command) as f64
        });
        (many - few) / 10_000.0
    };
    let (without, with) = (launch("0"), launch("max"));
    report.add(
        "--swap: launch, added instructions",
        with - without,
        "instructions",
        0.5,
        json!({ "without": without, "with": with }),
    );
}
