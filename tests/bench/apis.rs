//! Time that the hook adds to an allocation and its free, for every API, with very many live blocks and
//! several threads, nanoseconds; and memory of the hook for each live block, bytes.
//!
//! The time is the threads' CPU time for each pair of calls: it contains contention for locks and cache
//! lines, but neither preemption nor sleep (`elapsed` contains everything). It is measured with all threads
//! on one CPU, where they contend only if one is preempted, and with the threads pinned to all CPUs: without
//! pinning, the scheduler often puts them on one CPU, and the result is random. The driver does nothing and
//! has no lock. Its pools have room for all blocks: growing or shrinking one takes as long as the driver
//! does.

use std::fmt;
use std::process::Command;

use serde_json::{Value, json};
use support::{Config, Governed, Mount, artifacts};

use crate::on_all_cpus;
use crate::report::{Report, quantile};

const LIVE: u32 = 100_000;
const THREADS: u32 = 8;
/// Budget of a hooked call, nanoseconds, where the threads are on one CPU.
const CALL: f64 = 50.0;
/// Budget of a pair of calls, nanoseconds, where the threads are on all CPUs.
const CONTENDED: f64 = 400.0;
/// Budget of the hook's memory for a live block, bytes: a handle, a mapping and an object.
const BLOCK: f64 = 240.0;

/// A measurement.
pub(crate) struct Arm {
    /// The API's name in `gcgroup-load`.
    api: &'static str,
    call: &'static str,
    name: &'static str,
    /// Number of pairs of a call that allocates or maps and one that undoes it.
    pairs: u8,
    /// Number of hooked calls, including those that wait.
    pub calls: u8,
    /// Number of them after which the hook asks the driver what a pool has reserved.
    pub measures: u8,
}

impl Arm {
    pub(crate) const fn arguments(&self) -> [&'static str; 4] {
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
        measures: 0,
    }
}

/// A pair is one call that allocates and one that frees; with pools, also one that waits for the stream.
/// Virtual memory management takes two pairs, also one that maps and one that unmaps, which are measured
/// separately too; the calls between them, which reserve addresses, set access and release, are not hooked.
pub(crate) const ARMS: [Arm; 10] = [
    arm("linear"),
    arm("pitched"),
    arm("managed"),
    Arm {
        calls: 3,
        measures: 2,
        ..arm("async")
    },
    Arm {
        calls: 3,
        measures: 2,
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
/// Number of runs of each kind, in turn. The median of the differences between neighbours counts.
const TURNS: usize = 5;

pub(crate) fn run(report: &mut Report) {
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
    let budget = if cpus == 1 {
        CALL * f64::from(arm.calls)
    } else {
        CONTENDED * f64::from(arm.pairs)
    };
    report.add(&name, value, "ns", budget, detail);
}

/// Time of a pair, nanoseconds.
struct Cost {
    cpu: f64,
    elapsed: f64,
}

/// Returns the time of a pair, or the program's error message.
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

/// Measures private memory per block: with all blocks less without any, hooked less bare.
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
            // The process lives until its memory has been read.
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
        BLOCK,
        json!({ "bare": bare, "hooked": hooked, "of": LIVE }),
    );
}

/// Returns the process's private memory, bytes.
fn private(pid: i32) -> f64 {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(path).expect("the process lives");
    let line = text.lines().find(|line| line.starts_with("Private_Dirty:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kilobytes.expect("a number of kB") * 1024.0
}
