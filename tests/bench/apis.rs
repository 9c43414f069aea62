//! Nanoseconds that the hook adds to an allocation and its free, for every way to allocate, with very many live blocks
//! and several threads; and bytes of its own for each live block.
//!
//! All threads are on one CPU: what is told is its time for each pair, that at each other's locks included.

use std::process::Command;

use serde_json::{Value, json};
use support::{Config, Governed, Mount, artifacts};

use crate::report::{Report, quantile};

const LIVE: u32 = 100_000;
const THREADS: u32 = 8;
/// As `gcgroup-load` calls them. Each pair is one call that allocates and one that frees; what else the driver is asked
/// in between, such as to map, is charged nothing and counts with them.
const APIS: [&str; 8] = [
    "linear", "pitched", "managed", "async", "pool", "vmm", "array", "host",
];
/// Runs of each kind, by turns; the least of each counts.
const TURNS: usize = 3;

pub fn run(report: &mut Report) {
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1).env("SIMGPU_MEMORY", "4T"));
    for api in APIS {
        let measured: Result<Vec<_>, _> = (0..TURNS)
            .map(|_| {
                let bare = pair(mount.bare_command(artifacts().load()), api)?;
                Ok((bare, pair(mount.command(artifacts().load()), api)?))
            })
            .collect();
        let name = format!("{api}: allocate and free with {LIVE} live blocks and {THREADS} threads, added");
        match measured {
            Ok(measured) => {
                let (bares, hookeds) = measured.into_iter().unzip();
                let (bare, hooked) = (quantile(bares, 0.0), quantile(hookeds, 0.0));
                let detail = json!({ "bare": bare, "hooked": hooked });
                report.add(&name, hooked - bare, "ns", 100.0, detail);
            }
            Err::<_, String>(why) => report.skip(&name, &why),
        }
    }
    for api in ["linear", "vmm", "array", "async"] {
        bytes(report, &mount, api);
    }
}

/// Nanoseconds of a pair, or what the program said when it could not.
fn pair(mut command: Command, api: &str) -> Result<f64, String> {
    arguments(&mut command, api, LIVE);
    let output = command.output().expect("gcgroup-load runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).expect("JSON at the end");
    Ok(last["ns"][0]["min"].as_f64().expect("a number of nanoseconds"))
}

fn arguments(command: &mut Command, api: &str, live: u32) {
    command.args(["overhead", "--call", "alloc-free", "--rounds", "20"]);
    command.args(["--calls", "250", "--api", api, "--live", &live.to_string()]);
    command.args(["--threads", &THREADS.to_string()]);
}

/// Private memory of a hooked process with all those blocks less one with none; bare, the same; the difference.
fn bytes(report: &mut Report, mount: &Mount, api: &str) {
    let grown = |hooked: bool| {
        let [none, all] = [0, LIVE].map(|live| {
            let load = artifacts().load();
            let mut command = if hooked {
                mount.command(load)
            } else {
                mount.bare_command(load)
            };
            arguments(&mut command, api, live);
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
