//! Time that the preloaded library adds to the start of every program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::json;
use support::artifacts;

use crate::report::{Report, quantile};

/// Number of starts of each kind, in turn.
const STARTS: usize = 1000;

pub(crate) fn run(report: &mut Report) {
    let ours = artifacts().preload();
    let directory = tempfile::tempdir().expect("a directory");
    let empty = empty_library(directory.path());
    let mut kinds = [
        ("LD_PRELOAX", &ours),
        ("LD_PRELOAD", &ours),
        ("LD_PRELOAD", &empty),
    ]
    .map(|kind| (kind, Vec::new()));
    for _ in 0..STARTS {
        for ((variable, library), took) in &mut kinds {
            took.push(start(variable, library));
        }
    }
    let [bare, preloaded, floor] = kinds.map(|(_, took)| quantile(took, 0.5));
    let detail = json!({
        "bare": bare,
        "preloaded": preloaded,
        "with a library that has nothing in it": floor,
        "of": "/bin/true, start to end, median",
    });
    report.add("exec, added", preloaded - bare, "usec", 30.0, detail);
}

/// Builds an empty library, whose preloading is the minimum cost: the loader's own work.
fn empty_library(directory: &Path) -> PathBuf {
    let library = directory.join("libempty.so");
    let status = Command::new("gcc")
        .args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"])
        .arg(&library)
        .status()
        .expect("gcc runs");
    assert!(status.success());
    library
}

/// Returns the microseconds from before the fork to after the exit.
fn start(variable: &str, library: &Path) -> f64 {
    let mut command = Command::new("/bin/true");
    command.env(variable, library).stdin(Stdio::null());
    let began = Instant::now();
    let status = command.status().expect("/bin/true runs");
    let took = began.elapsed();
    assert!(status.success());
    took.as_secs_f64() * 1e6
}
