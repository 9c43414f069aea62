//! CPU time that the hook adds to a call, nanoseconds, and time that registration adds to the start.

use std::process::Command;

use serde_json::{Value, json};
use support::{Config, Mount, artifacts};

use crate::report::{Report, quantile};

/// Number of runs of each kind, in turn; the minimum counts, being the least disturbed.
const TURNS: usize = 5;

pub(crate) fn run(report: &mut Report) {
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1));
    for (live, calls) in [
        (10, ["launch", "alloc_free", "meminfo"].as_slice()),
        (100_000, &["alloc_free"]),
    ] {
        let mut cost = calls.iter().map(|_| (Vec::new(), Vec::new())).collect::<Vec<_>>();
        for _ in 0..TURNS {
            let (bare, hooked) = (bare(&mount, live, calls), hooked(&mount, live, calls));
            for (at, (name, (bares, hookeds))) in calls.iter().zip(&mut cost).enumerate() {
                assert_eq!(bare["ns"][at]["call"], *name);
                bares.push(least(&bare, at));
                hookeds.push(least(&hooked, at));
            }
        }
        for (name, (bares, hookeds)) in calls.iter().zip(cost) {
            let (bare, hooked) = (quantile(bares, 0.0), quantile(hookeds, 0.0));
            let budget = match *name {
                "launch" => 5.0,
                "alloc_free" => 100.0,
                _ => 50.0,
            };
            let name = format!("{name} with {live} live blocks, added");
            report.add(
                &name,
                hooked - bare,
                "ns",
                budget,
                json!({ "bare": bare, "hooked": hooked }),
            );
        }
    }
    registration(report, &mount);
}

/// Measures the time to open the driver's library and to initialise it, with and without the hook.
fn registration(report: &mut Report, mount: &Mount) {
    let (mut bares, mut hookeds) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        bares.push(start(mount.bare_command(artifacts().load())));
        hookeds.push(start(mount.command(artifacts().load())));
    }
    let (bare, hooked) = (quantile(bares, 0.5), quantile(hookeds, 0.5));
    let detail = json!({ "bare": bare, "hooked": hooked, "of": "loading the hook and cuInit, median" });
    report.add("registration", hooked - bare, "usec", 1000.0, detail);
}

fn start(mut command: Command) -> f64 {
    let output = command
        .args(["launches", "0"])
        .output()
        .expect("gcgroup-load runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .find(|line| line.starts_with("opened in "))
        .unwrap_or_else(|| panic!("{output:?}"));
    line.split(' ').filter_map(|word| word.parse::<f64>().ok()).sum()
}

fn bare(mount: &Mount, live: u32, calls: &[&str]) -> Value {
    overhead(mount.bare_command(artifacts().load()), live, calls)
}

fn hooked(mount: &Mount, live: u32, calls: &[&str]) -> Value {
    overhead(mount.command(artifacts().load()), live, calls)
}

fn overhead(mut command: Command, live: u32, calls: &[&str]) -> Value {
    command.args([
        "overhead",
        "--rounds",
        "50",
        "--calls",
        "2000",
        "--live",
        &live.to_string(),
    ]);
    for call in calls {
        command.args(["--call", &call.replace('_', "-")]);
    }
    let output = command.output().expect("gcgroup-load runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last:?}"))
}

pub(crate) fn least(result: &Value, at: usize) -> f64 {
    result["ns"][at]["cpu_min"]
        .as_f64()
        .expect("a number of nanoseconds")
}
