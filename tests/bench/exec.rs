//! Time that the library adds to the start of every program and to the start of the driver in a program, and
//! that `gcgroupfs run` adds to the start of a program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::json;
use support::{Mount, artifacts, c_program};

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
    let mount = Mount::new();
    for threads in [1, 40] {
        add_driver(report, &mount, threads);
    }
    add_run(report, &mount);
}

/// Number of whole starts of each kind, in turn.
const WHOLE: usize = 100;

/// Reports what the library adds to `cuInit`, the first context and the first allocation together.
fn add_driver(report: &mut Report, mount: &Mount, threads: usize) {
    let program = c_program("start.c", &["-ldl", "-lpthread"]);
    let took = |mut command: Command| -> f64 {
        let out = command
            .arg(threads.to_string())
            .output()
            .expect("the program runs");
        assert!(out.status.success(), "{out:?}");
        let text = String::from_utf8_lossy(&out.stdout);
        text.trim().parse().expect("a number")
    };
    let (mut bare, mut governed) = (Vec::new(), Vec::new());
    for _ in 0..WHOLE {
        bare.push(took(mount.bare_command(&program)));
        governed.push(took(mount.command(&program)));
    }
    let [bare, governed] = [bare, governed].map(|took| quantile(took, 0.5));
    report.add(
        &format!("start of the driver with {threads} threads, added"),
        governed - bare,
        "usec",
        2000.0,
        json!({ "bare": bare, "governed": governed, "of": "cuInit, context, allocation: median" }),
    );
}

/// Reports what `gcgroupfs run` adds to a program without CUDA.
fn add_run(report: &mut Report, mount: &Mount) {
    let took = |mut command: Command| {
        let began = Instant::now();
        let status = command.status().expect("the command runs");
        assert!(status.success());
        began.elapsed().as_secs_f64() * 1e6
    };
    let (mut bare, mut run, mut version) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..WHOLE {
        bare.push(took(Command::new("/bin/true")));
        run.push(took(mount.gcgroupfs(&["run", "--", "/bin/true"])));
        let mut only = mount.gcgroupfs(&["--version"]);
        only.stdout(Stdio::null());
        version.push(took(only));
    }
    let [bare, run, version] = [bare, run, version].map(|took| quantile(took, 0.5));
    report.add(
        "gcgroupfs run, added",
        run - bare,
        "usec",
        3000.0,
        json!({ "bare": bare, "run": run, "version": version, "of": "/bin/true, start to end, median" }),
    );
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
