//! Cost of memory that can move: moves against a plain copy of the same blocks to page-locked memory in the
//! same run, the time for which moves delay a launch, and the cost for a program that never moves anything.
//!
//! A plain copy has its target memory already. So a move out is measured with the host memory that a move in
//! released within the last second; and with all of it newly allocated, which happens before anything is
//! held, against allocating and copying by hand. The measuring thread shares a CPU with the measured process:
//! while host memory is allocated it polls rarely, and delays are taken from other moves. The simulated
//! driver does not know how long a real one takes to allocate host memory: it takes what the pages cost on
//! this machine. The simulated device keeps the pages of freed memory (`SIMGPU_KEPT`), because a real device
//! need not wait for pages.

use std::process::Command;

use serde_json::{Value, json};
use support::{Config, Governed, Mount, artifacts, instructions, wait_until};

use crate::files::monotonic;
use crate::report::{Report, quantile};

const BLOCK: u64 = 128 << 20;
const BLOCKS: u64 = 4;
const ALL: u64 = BLOCK * BLOCKS;
/// Number of moves of everything in each direction; the median counts.
const TURNS: usize = 5;

/// Minimum bandwidth of a move, relative to a plain copy.
const LEAST_SHARE: f64 = 0.8;
/// Maximum duration of a move that allocates host memory first, relative to allocating and copying by hand.
const TIMES_MADE: f64 = 1.25;
/// Maximum delay of a launch beyond the copies' time, milliseconds.
const HELD: f64 = 5.0;
/// Maximum time of an allocation and its free, relative to creating, mapping, unmapping and releasing by
/// hand.
const TIMES_BARE: f64 = 2.0;

pub(crate) fn run(report: &mut Report) {
    moves(report);
    never_asked(report);
}

/// Returns a machine whose devices keep the pages of freed memory.
fn machine() -> Mount {
    let simulated = Config::default().env("SIMGPU_CONTEXT_MEMORY", 0);
    Mount::with(simulated.env("SIMGPU_KEPT", ALL))
}

/// Starts a program with `blocks` blocks.
fn swapping(mount: &Mount, blocks: u64) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    for _ in 0..blocks {
        let answer = program.ask(&format!("alloc linear {BLOCK}"));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    program
}

fn wait_for_pool(mount: &Mount, pid: i32, bytes: u64) {
    wait_until("the swap pool has the expected size", || {
        mount.number(pid, "memory.stat", "swap_pool") == bytes
    });
}

fn moves(report: &mut Report) {
    let all = ALL;
    let mount = machine();
    let mut program = swapping(&mount, BLOCKS);
    let pid = program.pid();
    let mut other = swapping(&mount, 0);
    // By hand and moved in turn, because a machine's speed varies.
    let mut by_hand = Vec::new();
    let mut warm = [Vec::new(), Vec::new()];
    let (mut cold, mut cold_watched) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let plain = ByHand::by(&mut other);
        WAYS[0].go(&mount, &mut program, all);
        warm[1].push((WAYS[1].go(&mount, &mut program, all), plain));
        warm[0].push((WAYS[0].go(&mount, &mut program, all), plain));
        by_hand.push(plain);
        for is_watched in [true, false] {
            WAYS[1].go(&mount, &mut program, all);
            wait_for_pool(&mount, pid, 0);
            let plain = ByHand::by(&mut other);
            match is_watched {
                true => cold_watched.push((WAYS[0].go(&mount, &mut program, all), plain)),
                false => cold.push((WAYS[0].go_unwatched(&mount, pid, all), plain)),
            }
            by_hand.push(plain);
        }
        WAYS[1].go(&mount, &mut program, all);
    }
    let median = |what: fn(&ByHand) -> f64| quantile(by_hand.iter().map(what).collect(), 0.5) * 1e3;
    report.note(
        "moves",
        &json!({
            "bytes": all, "blocks": BLOCKS,
            "copy_out_ms": median(|plain| plain.copies[0]), "copy_in_ms": median(|plain| plain.copies[1]),
            "host_memory_made_ms": median(|plain| plain.made),
            "host_memory_released_ms": median(|plain| plain.released),
            "device_memory": "keeps its pages when it is freed (SIMGPU_KEPT)",
        }),
    );
    for (at, way) in WAYS.iter().enumerate() {
        let over = |(moved, plain): &(Moved, ByHand)| moved.took / plain.copies[at];
        report.add(
            &format!("move {}: a plain copy's bandwidth over the move's", way.name),
            quantile(warm[at].iter().map(over).collect(), 0.5),
            "times",
            1.0 / LEAST_SHARE,
            json!({ "moved_ms": took(&warm[at]), "host_memory": "there, from a move before" }),
        );
        add_held(report, way.name, at, &warm[at]);
    }
    let over = |what: fn(&ByHand) -> f64| {
        let ratio = |(took, plain): &(f64, ByHand)| took / what(plain);
        quantile(cold.iter().map(ratio).collect(), 0.5)
    };
    let took = quantile(cold.iter().map(|(took, _)| *took).collect(), 0.5);
    report.add(
        "move out, host memory created first: over creating and copying without gcgroupfs",
        over(|plain| plain.made + plain.copies[0]),
        "times",
        TIMES_MADE,
        json!({ "moved_ms": took * 1e3, "over_a_plain_copy": over(|plain| plain.copies[0]) }),
    );
    add_held(report, "out, host memory made first", 0, &cold_watched);
}

/// Seconds that the same bytes take by hand: copied in each direction, host memory allocated and released.
#[derive(Clone, Copy)]
struct ByHand {
    copies: [f64; 2],
    made: f64,
    released: f64,
}

impl ByHand {
    fn by(program: &mut Governed) -> Self {
        let answer = program.ask(&format!("bandwidth {BLOCK} {BLOCKS}"));
        let seconds: Vec<f64> = answer
            .split(' ')
            .skip(1)
            .map(|word| word.parse().expect(&answer))
            .collect();
        let [out, into, made, released] = seconds[..] else {
            panic!("{answer}");
        };
        Self {
            copies: [out, into],
            made,
            released,
        }
    }
}

/// Duration of a move, and the longest delay of a launch during it, seconds.
struct Moved {
    took: f64,
    held: f64,
}

/// Returns the median duration, milliseconds.
fn took(moves: &[(Moved, ByHand)]) -> f64 {
    quantile(moves.iter().map(|(moved, _)| moved.took).collect(), 0.5) * 1e3
}

/// Returns the median delay, milliseconds.
fn held(moves: &[(Moved, ByHand)]) -> f64 {
    quantile(moves.iter().map(|(moved, _)| moved.held).collect(), 0.5) * 1e3
}

fn add_held(report: &mut Report, way: &str, at: usize, moves: &[(Moved, ByHand)]) {
    let beyond = |(moved, plain): &(Moved, ByHand)| (moved.held - plain.copies[at]) * 1e3;
    report.add(
        &format!("move {way}: a launch waits longer than the copies at that bandwidth"),
        quantile(moves.iter().map(beyond).collect(), 0.5).max(0.0),
        "ms",
        HELD,
        json!({ "held_ms": held(moves) }),
    );
}

/// A direction of moves: its name and the limit that causes it.
struct Way {
    name: &'static str,
    limit: &'static str,
}

const WAYS: [Way; 2] = [
    Way {
        name: "out",
        limit: "1",
    },
    Way {
        name: "in",
        limit: "max",
    },
];

impl Way {
    /// Returns the bytes moved so far.
    fn moved(&self, mount: &Mount, pid: i32) -> u64 {
        mount.number(pid, "memory.stat", &format!("swap_{}_bytes", self.name))
    }

    /// Moves everything while launching repeatedly.
    fn go(&self, mount: &Mount, program: &mut Governed, all: u64) -> Moved {
        let pid = program.pid();
        let before = self.moved(mount, pid);
        let began = monotonic();
        mount.write(pid, "memory.limit", self.limit);
        // Launches one after the other: the longest pause between two is the delay.
        let (mut last, mut longest) = (began, 0.0_f64);
        while self.moved(mount, pid) - before != all {
            let answer = program.ask("stamp");
            let stamp: f64 = answer.trim_start_matches("stamped ").parse().expect(&answer);
            longest = longest.max(stamp - last);
            last = stamp;
        }
        Moved {
            took: (monotonic() - began) / 1e9,
            held: longest / 1e9,
        }
    }

    /// Moves everything with this CPU otherwise idle; returns the duration, seconds.
    fn go_unwatched(&self, mount: &Mount, pid: i32, all: u64) -> f64 {
        let before = self.moved(mount, pid);
        let began = monotonic();
        mount.write(pid, "memory.limit", self.limit);
        wait_until("every block has moved", || self.moved(mount, pid) - before == all);
        (monotonic() - began) / 1e9
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
