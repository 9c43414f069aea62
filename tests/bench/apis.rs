//! Nanoseconds that the hook adds to an allocation and its free, for every way to allocate, with very many live blocks
//! and several threads; and bytes of its own for each live block.
//!
//! What is told is for how long the threads have a CPU, for each pair: that at each other's locks and cache lines is in
//! it, others' turns and sleep are not (`elapsed` beside it has everything). Once with all threads on one CPU, where they
//! meet only when one loses its turn, and once spread over all CPUs, where they are kept: else the scheduler has them on
//! one as often as not, and what is told is chance. The driver does nothing and has no lock. Its pools have room for
//! everything: one that grows or shrinks takes as long as the driver does.

use std::fmt;
use std::process::Command;

use serde_json::{Value, json};
use support::{Config, Governed, Mount, artifacts};

use crate::on_all_cpus;
use crate::report::{Report, quantile};

const LIVE: u32 = 100_000;
const THREADS: u32 = 8;
/// The budget of a pair of calls, nanoseconds.
const BUDGET: f64 = 100.0;

/// What is measured.
pub struct Arm {
    /// As `gcgroup-load` calls them.
    api: &'static str,
    call: &'static str,
    name: &'static str,
    /// Pairs of one that allocates or maps and one that undoes it.
    pairs: u8,
    /// Hooked calls, with those that wait.
    pub calls: u8,
}

impl Arm {
    pub const fn arguments(&self) -> [&'static str; 4] {
        ["--call", self.call, "--api", self.api]
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.api, self.name)
    }
}

const fn arm(api: &'static str) -> Arm {
    Arm {
        api,
        call: "alloc-free",
        name: "allocate and free",
        pairs: 1,
        calls: 2,
    }
}

/// A pair is one call that allocates and one that frees; with pools, also one that waits for the stream. The program's own
/// virtual memory takes two, also one that maps and one that unmaps, which are measured by themselves too; between
/// them are those that reserve addresses, give access and give back, which nobody hooks.
pub const ARMS: [Arm; 10] = [
    arm("linear"),
    arm("pitched"),
    arm("managed"),
    Arm {
        calls: 3,
        ..arm("async")
    },
    Arm {
        calls: 3,
        ..arm("pool")
    },
    Arm {
        call: "create",
        name: "create and release",
        ..arm("vmm")
    },
    Arm {
        call: "map",
        name: "map and unmap",
        ..arm("vmm")
    },
    Arm {
        name: "create, map, unmap and release",
        pairs: 2,
        calls: 4,
        ..arm("vmm")
    },
    arm("array"),
    arm("host"),
];
/// Runs of each kind, by turns. What counts is the median of the differences between neighbours.
const TURNS: usize = 5;

pub fn run(report: &mut Report) {
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1).env("SIMGPU_MEMORY", "4T"));
    ARMS.iter().for_each(|arm| added(report, &mount, arm, 1));
    on_all_cpus(|cpus| {
        if cpus > 1 {
            ARMS.iter().for_each(|arm| added(report, &mount, arm, cpus));
        }
    });
    for api in ["linear", "vmm", "array", "async"] {
        bytes(report, &mount, api);
    }
}

fn added(report: &mut Report, mount: &Mount, arm: &Arm, cpus: usize) {
    let measured: Result<Vec<_>, _> = (0..TURNS)
        .map(|_| {
            let bare = pair(mount.bare_command(artifacts().load()), arm)?;
            Ok([bare, pair(mount.command(artifacts().load()), arm)?])
        })
        .collect();
    let name = format!("{arm} with {LIVE} live blocks, {THREADS} threads on {cpus} CPU, added CPU time");
    let measured = match measured {
        Ok(measured) => measured,
        Err::<_, String>(why) => return report.skip(&name, &why),
    };
    let median = |of: &dyn Fn(&[Cost; 2]) -> f64| quantile(measured.iter().map(of).collect(), 0.5);
    let value = median(&|[bare, hooked]| hooked.cpu - bare.cpu);
    let detail = json!({
        "bare": median(&|[bare, _]| bare.cpu),
        "hooked": median(&|[_, hooked]| hooked.cpu),
        "elapsed": { "bare": median(&|[bare, _]| bare.elapsed), "hooked": median(&|[_, hooked]| hooked.elapsed) },
        "of": "nanoseconds for each pair: CPU time of all threads over the pairs of all; elapsed until all had done a \
            round, over the pairs of all; medians",
    });
    report.add(&name, value, "ns", BUDGET * f64::from(arm.pairs), detail);
}

/// Nanoseconds of a pair.
struct Cost {
    cpu: f64,
    elapsed: f64,
}

/// What a pair takes, or what the program said when it could not.
fn pair(mut command: Command, arm: &Arm) -> Result<Cost, String> {
    arguments(&mut command, arm, LIVE);
    let output = command.output().expect("gcgroup-load runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).expect("JSON at the end");
    let number = |key: &str| last["ns"][0][key].as_f64().expect("a number of nanoseconds");
    Ok(Cost {
        cpu: number("cpu_median"),
        elapsed: number("median"),
    })
}

fn arguments(command: &mut Command, arm: &Arm, live: u32) {
    command.args(["overhead", "--rounds", "20", "--calls", "1000"]);
    command.args(arm.arguments()).args(["--live", &live.to_string()]);
    command.args(["--threads", &THREADS.to_string(), "--pinned"]);
}

/// Private memory of a hooked process with all those blocks less one with none; bare, the same; the difference.
fn bytes(report: &mut Report, mount: &Mount, api: &'static str) {
    let grown = |hooked: bool| {
        let [none, all] = [0, LIVE].map(|live| {
            let load = artifacts().load();
            let mut command = if hooked {
                mount.command(load)
            } else {
                mount.bare_command(load)
            };
            arguments(&mut command, &arm(api), live);
            // It lives until it has been looked at.
            command.args(["--hold"]);
            let mut load = Governed::spawn(command);
            load.expect("ready");
            let private = private(load.pid());
            load.say("");
            load.finish();
            private
        });
        all - none
    };
    let (bare, hooked) = (grown(false), grown(true));
    report.add(
        &format!("{api}: the hook's own memory for a live block"),
        (hooked - bare) / f64::from(LIVE),
        "bytes",
        64.0,
        json!({ "bare": bare, "hooked": hooked, "of": LIVE }),
    );
}

/// Bytes that are the process's alone.
fn private(pid: i32) -> f64 {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(path).expect("it lives");
    let line = text.lines().find(|line| line.starts_with("Private_Dirty:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kilobytes.expect("a number of kB") * 1024.0
}
