//! What the preloaded library adds to the start of every program.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::json;
use support::artifacts;

use crate::report::{Report, quantile};

/// Starts of each kind, by turns.
const STARTS: usize = 1000;

pub fn run(report: &mut Report) {
    let library = artifacts().preload();
    let (mut bares, mut preloadeds) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        bares.push(start(&mut Command::new("/bin/true")));
        preloadeds.push(start(Command::new("/bin/true").env("LD_PRELOAD", &library)));
    }
    let (bare, preloaded) = (quantile(bares, 0.5), quantile(preloadeds, 0.5));
    let detail = json!({ "bare": bare, "preloaded": preloaded, "of": "/bin/true, start to end, median" });
    report.add("exec, added", preloaded - bare, "usec", 30.0, detail);
}

/// Microseconds from before the fork to after the end.
fn start(command: &mut Command) -> f64 {
    command.stdin(Stdio::null());
    let began = Instant::now();
    let status = command.status().expect("/bin/true runs");
    let took = began.elapsed();
    assert!(status.success());
    took.as_secs_f64() * 1e6
}
