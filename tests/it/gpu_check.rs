//! The check for real GPUs, on the simulated one: what checks the script itself.

use std::process::Command;

use support::{artifacts, repository};

/// What needs nothing of NVIDIA's but the driver.
const ON_ANY_DRIVER: [&str; 7] = [
    "contention",
    "interception_c",
    "interception_ctypes",
    "kill_daemon",
    "kill_process",
    "load_governed",
    "overhead_driver",
];

#[test]
fn the_gpu_check_passes_on_the_simulated_driver() {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(repository().join("scripts/gpu-check.sh"))
        .arg("--sim")
        .arg(out.path())
        .env("DIST", artifacts().dist())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let results = std::fs::read_to_string(out.path().join("results.json")).unwrap_or_default();
    assert!(output.status.success(), "{said}\n{results}");
    assert!(!said.lines().any(|line| line.starts_with("FAIL")), "{said}");
    for part in ON_ANY_DRIVER {
        assert!(
            said.lines()
                .any(|line| line.starts_with(&format!("PASS {part}:"))),
            "{part}: {said}"
        );
    }
}
