//! The check for real GPUs, on the simulated one: what checks the scripts themselves.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use support::{artifacts, repository};

/// What needs nothing of NVIDIA's but the driver.
const ON_ANY_DRIVER: [&str; 14] = [
    "background",
    "contention",
    "interception_c",
    "interception_ctypes",
    "kill_daemon",
    "kill_process",
    "load_governed",
    "lookups",
    "marks",
    "overhead_driver",
    "priority",
    "slicing",
    "swap",
    "vmm",
];

/// One run of the check for all tests: what it printed, and where its results are.
fn check() -> (&'static str, &'static Path) {
    static RUN: OnceLock<(String, PathBuf)> = OnceLock::new();
    let (said, out) = RUN.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu-check");
        let output = Command::new(repository().join("scripts/gpu-check.sh"))
            .arg("--sim")
            .arg(&out)
            .env("DIST", artifacts().dist())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let results = std::fs::read_to_string(out.join("results.json")).unwrap_or_default();
        assert!(output.status.success(), "{said}\n{results}");
        (said, out)
    });
    (said, out)
}

fn keep_results(arguments: &[&Path]) -> Output {
    Command::new(repository().join("scripts/gpu-results.py"))
        .arg(check().1)
        .args(arguments)
        .output()
        .unwrap()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(directory)
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    found.sort();
    found
}

#[test]
fn the_gpu_check_passes_on_the_simulated_driver() {
    let (said, _) = check();
    assert!(!said.lines().any(|line| line.starts_with("FAIL")), "{said}");
    for part in ON_ANY_DRIVER {
        assert!(
            said.lines()
                .any(|line| line.starts_with(&format!("PASS {part}:"))),
            "{part}: {said}"
        );
    }
}

#[test]
fn simulated_results_are_not_kept_as_real_ones() {
    let kept = repository().join("tests/gpu/results");
    let before = files(&kept);
    let output = keep_results(&[]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("not a run on a real GPU"), "{said}");
    assert_eq!(files(&kept), before);
}

#[test]
fn the_readme_claims_measurements_when_there_are_some() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let measured = files(&repository().join("tests/gpu/results"))
        .iter()
        .any(|path| path.extension().is_some_and(|ending| ending == "json"));
    assert_ne!(readme.contains("Not yet measured on a real GPU"), measured);
    assert_eq!(repository().join("tests/gpu/RESULTS.md").exists(), measured);
}

#[test]
fn results_become_a_file_and_a_table() {
    let (said, _) = check();
    let into = tempfile::tempdir().unwrap();
    let output = keep_results(&[
        "--commit".as_ref(),
        "abc".as_ref(),
        "--into".as_ref(),
        into.path(),
    ]);
    assert!(output.status.success(), "{output:?}");
    let kept = files(&into.path().join("results"));
    assert_eq!(kept.len(), 1, "{kept:?}");
    let run: serde_json::Value = serde_json::from_slice(&std::fs::read(&kept[0]).unwrap()).unwrap();
    assert_eq!(run["machine"]["commit"], "abc");
    assert!(run["parts"]["vmm"]["facts"]["usec"]["device"]["2"]["create"]["median"].is_number());
    let table = std::fs::read_to_string(into.path().join("RESULTS.md")).unwrap();
    for line in said.lines() {
        let Some((state @ ("PASS" | "SKIP"), rest)) = line.split_once(' ') else {
            continue;
        };
        let (part, reason) = rest.split_once(": ").unwrap();
        let probe = run["parts"][part]["probe"].as_bool().unwrap();
        let state = match (state, probe) {
            ("PASS", true) => "answered",
            ("SKIP", true) => "not possible",
            (other, _) => other,
        };
        let row = format!("| {part} | {state} | {} |", reason.replace('|', "/"));
        assert!(table.contains(&row), "{row}\n{table}");
    }
}

#[test]
fn what_the_probes_compute_is_right() {
    let state = tempfile::tempdir().unwrap();
    let output = Command::new("python3")
        .args(["-B", "-m", "unittest", "discover", "-s"])
        .arg(repository().join("tests/gpu/test"))
        .env("LD_LIBRARY_PATH", artifacts().simgpu())
        .env("SIMGPU_DIR", state.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
