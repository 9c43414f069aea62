//! Tests the files that keep results of the check for real GPUs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::repository;
use tempfile::TempDir;

use super::{PLANS, check, files, stored};

fn keep_results(arguments: &[&Path]) -> Output {
    Command::new(repository().join("scripts/gpu-results.py"))
        .args(PLANS.map(|plan| check().1.join(plan).with_extension("json")))
        .args(arguments)
        .output()
        .unwrap()
}

/// Returns a tree with the two files that are made anew from results.
fn tree() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("tests/bench")).unwrap();
    for file in ["README.md", "tests/bench/README.md"] {
        fs::copy(repository().join(file), root.path().join(file)).unwrap();
    }
    root
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
fn readme_claims_measurements_only_if_they_exist() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let measured = files(&repository().join("tests/gpu/results"))
        .iter()
        .any(|path| path.extension().is_some_and(|ending| ending == "json"));
    assert_ne!(readme.contains("Not yet measured on a real GPU"), measured);
    let figures = fs::read_to_string(repository().join("tests/bench/README.md")).unwrap();
    assert_ne!(figures.contains("\nNone yet.\n"), measured);
}

#[test]
fn results_become_a_file_a_table_and_a_status() {
    let (said, _) = check();
    let root = tree();
    let output = keep_results(&[
        "--commit".as_ref(),
        "abc".as_ref(),
        "--root".as_ref(),
        root.path(),
    ]);
    assert!(output.status.success(), "{output:?}");
    let kept = files(&root.path().join("tests/gpu/results"));
    assert_eq!(kept.len(), 1, "{kept:?}");
    let run: Value = serde_json::from_slice(&fs::read(&kept[0]).unwrap()).unwrap();
    assert_eq!(run["machine"]["commit"], "abc");
    assert!(run["parts"]["vmm"]["facts"]["usec"]["device"]["2"]["create"]["median"].is_number());
    let table = fs::read_to_string(root.path().join("tests/bench/README.md")).unwrap();
    for (part, entry) in run["parts"].as_object().unwrap() {
        let [state, reason] = ["state", "reason"].map(|key| entry[key].as_str().unwrap());
        let state = match (state, entry["probe"].as_bool().unwrap()) {
            ("PASS", true) => "answered",
            ("SKIP", true) => "not possible",
            (other, _) => other,
        };
        let row = format!("| {part} | {state} | {} |", reason.replace('|', "/"));
        assert!(table.contains(&row), "{row}\n{table}");
        assert!(said.contains(&format!("{part}: {reason}")), "{part}: {said}");
    }
    let readme = fs::read_to_string(root.path().join("README.md")).unwrap();
    assert!(!readme.contains("Not yet measured"), "{readme}");
    let status = format!(
        "Measured on a real GPU: simulated, driver none, {}: of {} parts",
        run["machine"]["date"].as_str().unwrap(),
        run["parts"].as_object().unwrap().len()
    );
    assert!(readme.contains(&status), "{status}\n{readme}");
}

#[test]
fn runs_on_one_machine_are_merged() {
    let (root, scratch) = (tree(), tempfile::tempdir().unwrap());
    let mut machine = stored("first")["machine"].take();
    let keep = |name: &str, machine: &Value, parts: &Value| {
        let later = scratch.path().join(name);
        let run = serde_json::json!({"machine": machine, "parts": parts});
        fs::write(&later, run.to_string()).unwrap();
        keep_results(&[
            &later,
            "--commit".as_ref(),
            "abc".as_ref(),
            "--root".as_ref(),
            root.path(),
        ])
    };
    let entry = |state: &str| serde_json::json!({"state": state, "reason": "anew", "probe": false, "facts": {}, "seconds": 1});
    let parts = serde_json::json!({"driver": entry("SKIP"), "torch_graph": entry("PASS")});
    let output = keep("part.json", &machine, &parts);
    assert!(output.status.success(), "{output:?}");
    let kept = files(&root.path().join("tests/gpu/results"));
    let run: Value = serde_json::from_slice(&fs::read(&kept[0]).unwrap()).unwrap();
    assert_eq!(run["parts"]["torch_graph"]["reason"], "anew");
    assert_eq!(run["parts"]["driver"]["state"], "PASS");
    assert_eq!(run["parts"]["vmm"], stored("again")["parts"]["vmm"]);
    machine["driver"] = "580.1".into();
    let output = keep("alien.json", &machine, &parts);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("different machines or commits: driver"), "{said}");
}

#[test]
fn simulated_run_labelled_real_is_not_kept() {
    let out = tempfile::tempdir().unwrap();
    let mut run = stored("first");
    run["machine"]["simulated"] = false.into();
    run["machine"]["driver"] = "580.1".into();
    run["machine"]["commit"] = "abc".into();
    let labelled = out.path().join("first.json");
    fs::write(&labelled, run.to_string()).unwrap();
    let kept = files(&repository().join("tests/gpu/results"));
    let output = Command::new(repository().join("scripts/gpu-results.py"))
        .arg(labelled)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("not a run on a real GPU"), "{said}");
    assert_eq!(files(&repository().join("tests/gpu/results")), kept);
}
