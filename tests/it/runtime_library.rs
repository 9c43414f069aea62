//! Tests NVIDIA's libcudart with the library: its look-ups are unchanged, up to its check of the driver. The
//! simulated driver does not imitate what that check expects, so tests beyond it need real GPUs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::{Mount, python, repository};

fn libcudart() -> PathBuf {
    let venv = python()
        .parent()
        .and_then(|bin| bin.parent())
        .expect("the venv's bin/python")
        .to_owned();
    let path = venv.join("cudart-12.8/nvidia/cuda_runtime/lib/libcudart.so.12");
    assert!(
        path.exists(),
        "{} is missing: run scripts/setup-debian.sh",
        path.display()
    );
    path
}

/// Returns the results of the runtime's calls, and the driver calls made, each with its status.
fn run(mut command: Command, trace: &std::path::Path) -> (String, Vec<String>) {
    command
        .arg(repository().join("tests/clients/cudart_client.py"))
        .arg(libcudart());
    let out = command.env("SIMGPU_TRACE", trace).output().expect("python runs");
    assert!(
        out.status.success(),
        "{}: {}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    let calls = fs::read_to_string(trace).expect("a trace");
    // Line format: PID FUNCTION STATUS.
    let calls = calls
        .lines()
        .filter_map(|line| Some(line.split_once(' ')?.1.to_owned()))
        .collect();
    (String::from_utf8_lossy(&out.stdout).into_owned(), calls)
}

#[test]
fn runtime_looks_up_through_hook_and_ends_unchanged() {
    let mount = Mount::new();
    let traces = tempfile::tempdir().expect("a directory");
    let (bare, bare_calls) = run(mount.bare_command(python()), &traces.path().join("bare"));
    let (hooked, hooked_calls) = run(mount.command(python()), &traces.path().join("hooked"));
    assert_eq!(hooked, bare);
    let looked_up = |calls: &[String]| {
        calls
            .iter()
            .filter(|call| call.starts_with("cuGetProcAddress"))
            .count()
    };
    let recorded =
        fs::read_to_string(repository().join("tests/data/cudart-12.8.lookups.tsv")).expect("the record");
    let recorded = recorded.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(
        looked_up(&bare_calls),
        recorded,
        "the bare look-ups differ from the recorded ones"
    );
    assert!(
        looked_up(&hooked_calls) >= recorded,
        "some look-ups do not reach the driver through the hook"
    );
    let others = |calls: &[String]| -> Vec<String> {
        calls
            .iter()
            .filter(|call| !call.starts_with("cuGetProcAddress"))
            .cloned()
            .collect()
    };
    assert_eq!(others(&hooked_calls), others(&bare_calls));
}
