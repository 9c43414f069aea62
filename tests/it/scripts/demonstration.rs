//! Tests the demonstration and the contention benchmark.

use std::path::Path;
use std::process::Command;

use support::{artifacts, repository};

#[test]
fn contention_benchmark_runs_and_reports_each_arm() {
    let output = Command::new(repository().join("scripts/bench-contention.sh"))
        .env("DIST", artifacts().dist())
        .args(["--sim", "--repetitions", "1", "--scale", "0.05"])
        .args(["single", "shares", "unread", "quota", "freeze"])
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&output.stderr);
    // Whether the budgets are met does not matter here.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{table}");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["failed"], serde_json::json!([]), "{table}");
    assert_eq!(told["skipped"], serde_json::json!([]), "{table}");
    let rows = told["rows"].as_array().unwrap();
    for name in [
        "single 5 ms kernels: p99, alone",
        "single 5 ms kernels: p99 over alone, strict 2:10",
        "single 5 ms kernels: idle time kept, freeze by script",
        "shares at p and p+4",
        "usage_usec over completed work, unread: kernels of 1 ms",
        "compute.max 25 %: share",
        "thaw to first launch, p99",
    ] {
        let row = rows.iter().find(|row| row["name"] == name);
        let median = &row.unwrap_or_else(|| panic!("{name}: {table}"))["median"];
        // Null: infinite, because one side got no time in so short a run on a busy machine.
        assert!(
            median.as_f64().is_none_or(|median| median >= 0.0),
            "{name}: {table}"
        );
        assert!(table.contains(name), "{name}: {table}");
    }
}

#[test]
fn demonstration_runs_and_leaves_nothing() {
    demonstrate(&[], Path::new(""));
}

#[test]
fn demonstration_finds_driver_in_library_path() {
    demonstrate(&["--gpu"], &artifacts().simgpu());
}

/// Runs the demonstration with these libraries in the search path.
fn demonstrate(arguments: &[&str], libraries: &Path) {
    let temporary = tempfile::tempdir().unwrap();
    let gpu = tempfile::tempdir().unwrap();
    let output = Command::new(repository().join("scripts/demo.sh"))
        .args(arguments)
        .env("GCGROUP_BUILT", artifacts().dist())
        .env("TMPDIR", temporary.path())
        .env("LD_LIBRARY_PATH", libraries)
        .env("SIMGPU_DIR", gpu.path())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}\n{log}");
    for told in [
        "frozen 1",
        "refused CUDA_ERROR_OUT_OF_MEMORY",
        "allocated 1 linear 268435456",
    ] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
    assert_eq!(temporary.path().read_dir().unwrap().count(), 0, "{shown}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let left = |line: &str| {
        line.split(' ')
            .nth(1)
            .is_some_and(|at| Path::new(at).starts_with(temporary.path()))
    };
    assert!(!mounts.lines().any(left), "{mounts}");
}
