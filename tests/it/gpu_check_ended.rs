//! Tests what the check for real GPUs leaves behind when it fails or is killed.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{artifacts, wait_until};

use crate::gpu_check::{files, results, script};

#[test]
fn all_parts_report_a_missing_driver_at_once() {
    let out = tempfile::tempdir().unwrap();
    let output = script(&["--parts", "load_governed,vmm"])
        .arg(out.path())
        .env("LD_LIBRARY_PATH", "/nowhere")
        .output()
        .unwrap();
    if results(out.path())["driver"]["state"] == "PASS" {
        return; // this machine has one
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for part in ["load_governed", "vmm"] {
        let entry = &results(out.path())[part];
        assert_eq!(entry["state"], "SKIP");
        let reason = entry["reason"].as_str().unwrap();
        assert!(reason.starts_with("the driver cannot be used: "), "{reason}");
    }
}

#[test]
fn copies_that_fail_on_partly_swapped_memory_are_explained() {
    let out = tempfile::tempdir().unwrap();
    let output = script(&["--sim", "--parts", "across"])
        .arg(out.path())
        .env("SIMGPU_QUIRKS", "mixed-copies")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let entry = &results(out.path())["across"];
    assert_eq!(entry["state"], "FAIL");
    let reason = entry["reason"].as_str().unwrap();
    assert!(reason.contains("of which a part is swapped out"), "{reason}");
    assert!(reason.contains("device_host: copy_to_device"), "{reason}");
    assert!(!reason.contains("kernel"), "{reason}");
}

#[test]
fn probes_run_without_a_daemon() {
    let (out, dist) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tree = artifacts().dist();
    fs::create_dir(dist.path().join("bin")).unwrap();
    for (name, target) in [
        ("bin/gcgroup-load", tree.join("bin/gcgroup-load")),
        ("simgpu", tree.join("simgpu")),
        ("bin/gcgroupfs", PathBuf::from("/bin/false")),
    ] {
        std::os::unix::fs::symlink(target, dist.path().join(name)).unwrap();
    }
    let output = script(&["--sim", "--parts", "load_governed,lookups"])
        .arg(out.path())
        .env("DIST", dist.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found = results(out.path());
    assert_eq!(found["daemon"]["state"], "FAIL");
    assert_eq!(found["load_governed"]["state"], "SKIP");
    assert_eq!(found["lookups"]["state"], "PASS");
}

/// A check in the middle of its second part; everything it starts runs below a directory of its own.
struct Halfway {
    child: Child,
    out: tempfile::TempDir,
    tmp: tempfile::TempDir,
}

impl Halfway {
    fn new() -> Self {
        let (out, tmp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let child = script(&["--sim", "--parts", "contention"])
            .arg(out.path())
            .env("TMPDIR", tmp.path())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        wait_until("the second part runs", || {
            results(out.path())["contention"].is_object()
                && Self::programs_below(tmp.path())
                    .iter()
                    .any(|name| name == "gcgroup-load")
        });
        Self { child, out, tmp }
    }

    /// Returns the names of processes whose environment contains the check's working directory.
    fn programs_below(directory: &Path) -> Vec<String> {
        let setting = format!("GPU_CHECK_WORK={}", directory.display()).into_bytes();
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.ok()?.path();
            let environment = fs::read(path.join("environ")).ok()?;
            environment
                .split(|byte| *byte == 0)
                .any(|word| word.starts_with(&setting))
                .then(|| fs::read_to_string(path.join("comm")).ok())?
        });
        all.map(|name| name.trim().to_owned()).collect()
    }

    fn python(&self) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(children).unwrap();
        Pid::from_raw(children.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Waits until nothing of the check is left; returns its exit status.
    fn ends(mut self) -> Option<i32> {
        let status = self.child.wait().unwrap();
        wait_until("the check's programs and files are gone", || {
            Self::programs_below(self.tmp.path()).is_empty() && files(self.tmp.path()).is_empty()
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !mounts.contains(&self.tmp.path().display().to_string()),
            "{mounts}"
        );
        let found = results(self.out.path());
        assert_eq!(found["driver"]["state"], "PASS");
        assert_eq!(found["contention"]["state"], "SKIP");
        assert!(found["contention"]["facts"].is_object());
        assert_eq!(
            found["contention"]["reason"],
            "the check was ended while this ran"
        );
        status.code()
    }
}

#[test]
fn terminated_check_leaves_only_its_results() {
    let halfway = Halfway::new();
    kill(Pid::from_raw(halfway.child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(halfway.ends(), Some(143));
}

#[test]
fn check_with_killed_script_cleans_up() {
    let halfway = Halfway::new();
    kill(Pid::from_raw(halfway.child.id().cast_signed()), Signal::SIGKILL).unwrap();
    // The killed script could not remove its working directory.
    wait_until("the check's programs have ended", || {
        Halfway::programs_below(halfway.tmp.path()).is_empty()
    });
    for left in files(halfway.tmp.path()) {
        fs::remove_dir_all(left).unwrap();
    }
    assert_eq!(halfway.ends(), None);
}

#[test]
fn killed_check_is_cleaned_up() {
    let halfway = Halfway::new();
    kill(halfway.python(), Signal::SIGKILL).unwrap();
    assert_eq!(halfway.ends(), Some(137));
}

#[test]
fn failed_part_keeps_the_trace_of_its_programs() {
    let out = tempfile::tempdir().unwrap();
    let output = script(&["--sim", "--parts", "load_governed"])
        .arg(out.path())
        .env("SIMGPU_FAULTS", "cuStreamCreate*=999")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let entry = &results(out.path())["load_governed"];
    assert_eq!(entry["state"], "FAIL", "{output:?}");
    let evidence = out.path().join("evidence/load_governed");
    let trace = fs::read_to_string(evidence.join("trace.txt")).unwrap();
    for text in [
        " bound: cuLaunchKernel 0x",
        " first call: cuStreamCreate",
        " governed by the daemon at ",
    ] {
        assert!(trace.contains(text), "{text}: {trace}");
    }
    assert!(evidence.join("output.txt").exists());
    assert!(!out.path().join("evidence/driver").exists());
}
