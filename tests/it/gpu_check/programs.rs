//! Tests the programs and frameworks that the check for real GPUs runs.

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::{artifacts, python, repository};

use super::{part_on, results, script};

/// Tests the product where the driver refuses what it prefers: it has other ways.
#[test]
fn governed_programs_work_with_each_refusal_of_the_driver() {
    for variables in [
        [("SIMGPU_QUIRKS", "record-primary"), ("SIMGPU_PRICES", "")],
        [("SIMGPU_QUIRKS", "no-memory-operations"), ("SIMGPU_PRICES", "")],
        [
            ("SIMGPU_QUIRKS", "record-primary,no-memory-operations,nvml-zero"),
            (
                "SIMGPU_PRICES",
                "first-launch-usec=20000,first-launch-bytes=2M,stall-usec=2000",
            ),
        ],
    ] {
        let entry = part_on(&variables, "load_governed");
        assert_eq!(entry["state"], "PASS", "{variables:?}: {entry}");
        assert_eq!(entry["reason"], "counted, capped, frozen and thawed");
    }
}

#[test]
fn failure_of_a_simplest_program_is_traced() {
    let out = tempfile::tempdir().unwrap();
    let output = script(&["--sim", "--plan", "first"])
        .arg(out.path())
        .env("SIMGPU_FAULTS", "cuStreamCreate*=999")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let run: Value = serde_json::from_slice(&fs::read(out.path().join("first.json")).unwrap()).unwrap();
    assert_eq!(run["parts"]["load_governed"]["state"], "FAIL", "{said}");
    assert_eq!(run["parts"]["traced"]["state"], "PASS", "{said}");
    assert!(run["parts"]["traced"]["facts"]["trace"][0].is_string(), "{said}");
    for part in ["transcript", "swap", "ledger"] {
        assert!(run["parts"][part].is_null(), "{part}: {said}");
    }
    assert!(run["parts"]["background"].is_object(), "{said}");
}

#[test]
fn framework_that_fails_ungoverned_is_skipped() {
    let (out, modules) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(modules.path().join("numpy.py"), "").unwrap();
    fs::write(
        modules.path().join("numba.py"),
        "raise RuntimeError('out of tune')\n",
    )
    .unwrap();
    let output = script(&["--sim", "--parts", "frameworks,interception_numba"])
        .arg(out.path())
        .env("PYTHONPATH", modules.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found = results(out.path());
    for part in ["frameworks", "interception_numba"] {
        assert_eq!(found[part]["state"], "SKIP", "{found}");
        let reason = found[part]["reason"].as_str().unwrap();
        let why = "no numba job runs here, even without the hook: RuntimeError: out of tune";
        assert_eq!(reason, why);
    }
}

#[test]
fn framework_that_works_ungoverned_is_governed() {
    let out = tempfile::tempdir().unwrap();
    let python = python();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", python.parent().unwrap().display());
    let output = script(&["--sim", "--parts", "frameworks,interception_numba"])
        .arg(out.path())
        .env("PATH", path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found = results(out.path());
    assert_eq!(found["frameworks"]["state"], "PASS", "{found}");
    assert!(found["frameworks"]["facts"]["versions"]["numba"].is_string());
    assert_eq!(found["interception_numba"]["state"], "PASS", "{found}");
    assert_eq!(found["interception_numba"]["facts"]["beyond_ledger"], 0);
}

#[test]
fn new_nvml_entry_identifies_process_in_pid_namespace() {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(repository().join("scripts/gpu-check.sh"))
        .args(["--sim", "--parts", "interception_ctypes,ledger"])
        .arg(out.path())
        .env("DIST", artifacts().dist())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let machine: Value = serde_json::from_slice(&fs::read(out.path().join("machine.json")).unwrap()).unwrap();
    assert_eq!(machine["first_pid_namespace"], false);
    let found = results(out.path());
    assert!(
        found["interception_ctypes"]["facts"]["nvml"].is_number(),
        "{found}"
    );
    assert_eq!(found["ledger"]["facts"]["by"], "process");
}

#[test]
fn probes_compute_correct_results() {
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
