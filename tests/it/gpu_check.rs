//! Tests the check for real GPUs on simulated ones, and so its scripts.

mod programs;
mod stored_results;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use support::{artifacts, repository};

const PLANS: [&str; 3] = ["first", "figures", "again"];

/// Parts of the check that need no NVIDIA library except the driver.
const ON_ANY_DRIVER: [&str; 33] = [
    "across",
    "background",
    "barriers",
    "beside",
    "contention",
    "contention_figures",
    "contexts",
    "driver",
    "granularity",
    "host_pieces",
    "interception_c",
    "interception_ctypes",
    "kill_daemon",
    "kill_process",
    "launch_bound",
    "launches",
    "ledger",
    "load_governed",
    "lookups",
    "markers",
    "overhead_driver",
    "preflight",
    "priority",
    "remap",
    "shared_by_processes",
    "sharing",
    "simulated",
    "slicing",
    "suspend",
    "swap",
    "traced",
    "transcript",
    "vmm",
];

/// Parts of no plan but `again`, which corrections are checked by.
const REST: &str = "across,background,barriers,contention,host_pieces,kill_daemon,kill_process,remap,\
                    shared_by_processes,sharing,timeslice,traced,vmm";

/// Rehearses every plan, with `before` in front of the script; returns the output.
fn rehearse(before: &[&str], out: &Path) -> String {
    let mut said = String::new();
    for plan in [&["first"][..], &["figures"], &["again", REST]] {
        let check = repository().join("scripts/gpu-check.sh");
        let words = before.iter().map(Path::new).chain([check.as_path()]);
        let words: Vec<_> = words.collect();
        let output = Command::new(words[0])
            .args(&words[1..])
            .args(["--sim", "--seconds", "1500", "--plan"])
            .args(plan)
            .arg(out)
            .env("DIST", artifacts().dist())
            .output()
            .unwrap();
        said += &String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{plan:?}: {said}");
        let (_, summary) = said.rsplit_once("=== summary").unwrap();
        assert!(summary.len() < 12_500, "{summary}");
    }
    for part in ON_ANY_DRIVER {
        let passed = format!("PASS {part}:");
        assert!(
            said.lines().any(|line| line.starts_with(&passed)),
            "{part}: {said}"
        );
    }
    assert!(!said.lines().any(|line| line.starts_with("FAIL")), "{said}");
    said
}

/// Rehearses every plan once for all tests; returns the output and the directory of the results.
fn check() -> (&'static str, &'static Path) {
    static RUN: OnceLock<(String, PathBuf)> = OnceLock::new();
    let (said, out) = RUN.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu-check");
        let _ = fs::remove_dir_all(&out);
        (rehearse(&[], &out), out)
    });
    (said, out)
}

/// Returns what a plan stored: machine and parts.
fn stored(plan: &str) -> Value {
    let text = fs::read(check().1.join(plan).with_extension("json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

pub(crate) fn script(arguments: &[&str]) -> Command {
    let mut command = Command::new(repository().join("scripts/gpu-check.sh"));
    command.args(arguments).env("DIST", artifacts().dist());
    command
}

pub(crate) fn results(out: &Path) -> Value {
    let text = fs::read(out.join("results.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(directory)
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    found.sort();
    found
}

#[test]
fn every_plan_passes_on_the_simulated_driver() {
    let (said, out) = check();
    assert!(said.contains("control files by FUSE mount"), "{said}");
    let expected = PLANS.map(|plan| ["json", "tgz"].map(|ending| out.join(plan).with_extension(ending)));
    let mut expected = expected.concat();
    expected.sort();
    assert_eq!(files(out), expected);
}

#[test]
fn preflight_tries_every_system_call_and_says_what_is_missing() {
    let calls = &stored("first")["parts"]["preflight"]["facts"]["system_calls"];
    for name in ["membarrier", "memfd_create and seals", "FUSE mount"] {
        assert_eq!(calls[name]["outcome"], "ok", "{calls}");
    }
    // A container without new privileges: no mounts, no namespaces, but everything that is needed.
    let out = tempfile::tempdir().unwrap();
    let output = Command::new("setpriv")
        .args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"])
        .arg(repository().join("scripts/gpu-check.sh"))
        .args(["--sim", "--parts", "preflight", "--commit", "abc"])
        .arg(out.path())
        .env("DIST", artifacts().dist())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let found = &results(out.path())["preflight"];
    assert_eq!(
        found["facts"]["system_calls"]["FUSE mount"]["outcome"], "EPERM",
        "{found}"
    );
    let reason = found["reason"].as_str().unwrap();
    assert!(reason.starts_with("refused: "), "{reason}");
    assert!(!reason.contains("needed without another way"), "{reason}");
    let machine: Value = serde_json::from_slice(&fs::read(out.path().join("machine.json")).unwrap()).unwrap();
    assert_eq!(machine["commit"], "abc");
}

/// Runs one part on a machine that differs by `variables`; returns its entry in the results.
fn part_on(variables: &[(&str, &str)], part: &str) -> Value {
    let out = tempfile::tempdir().unwrap();
    let output = script(&["--sim", "--parts", part])
        .arg(out.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let entry = results(out.path())[part].clone();
    assert!(entry.is_object(), "{output:?}");
    entry
}

#[test]
fn refusals_of_the_driver_are_explained_and_not_failures() {
    for (name, value, part, said) in [
        (
            "SIMGPU_QUIRKS",
            "pageable-copies",
            "host_pieces",
            "copies FAIL without access, pageable",
        ),
        (
            "SIMGPU_HOST_LOCATIONS",
            "numa:*=crash,host=801",
            "host_pieces",
            "at numa:0: signal 11",
        ),
        (
            "SIMGPU_QUIRKS",
            "vmm-attributes",
            "sharing",
            "sync_memops works on linear;",
        ),
        (
            "SIMGPU_QUIRKS",
            "rdma",
            "sharing",
            "rdma_capable works on linear, mapped_rdma;",
        ),
        (
            "SIMGPU_FAULTS",
            "cuCtxRecordEvent=801",
            "contexts",
            "DOES NOT COVER primary legacy",
        ),
        (
            "SIMGPU_QUIRKS",
            "record-primary",
            "contexts",
            "DOES NOT COVER cuCtxCreate legacy",
        ),
        (
            "SIMGPU_FAULTS",
            "cuStreamWriteValue32*=801",
            "barriers",
            "barrier refused",
        ),
    ] {
        let entry = part_on(&[(name, value)], part);
        assert_eq!(entry["state"], "PASS", "{value}: {entry}");
        let reason = entry["reason"].as_str().unwrap();
        assert!(reason.contains(said), "{value}: {reason}");
    }
}

#[test]
fn prices_of_calls_are_in_the_answers() {
    let prices = "first-launch-usec=50000,first-launch-bytes=4M,stall-usec=5000,marker-nsec=3000,\
                  bare-marker-nsec=1000,set-access-usec=2000";
    let facts = |part| part_on(&[("SIMGPU_PRICES", prices)], part)["facts"].take();
    let launches = facts("launches");
    for way in ["lazy", "eager"] {
        assert!(launches[way]["first"].as_f64() >= Some(50.0), "{launches}");
        assert_eq!(launches[way]["mib_of_memory"], 8.0, "{launches}");
    }
    assert!(
        launches["launch_usec"]["max"].as_f64() >= Some(5000.0),
        "{launches}"
    );
    let barriers = facts("barriers");
    let usec = &barriers["device_usec"];
    assert!(usec["barrier"]["min"].as_f64() >= Some(13.0), "{barriers}");
    assert!(
        usec["no_barrier_old_call"]["min"].as_f64() >= Some(11.0),
        "{barriers}"
    );
    assert!(usec["no_barrier"]["refused"].is_string(), "{barriers}");
    let vmm = facts("vmm");
    let took = &vmm["usec"]["device"]["2"]["set_access"]["min"];
    assert!(took.as_f64() >= Some(2000.0), "{vmm}");
}

#[test]
fn every_plan_passes_without_fuse_device() {
    let out = tempfile::tempdir().unwrap();
    let without = "mount -t tmpfs -o mode=755 none /dev && mkdir /dev/shm && mknod -m 666 /dev/null c 1 3 && \
                   mknod -m 666 /dev/zero c 1 5 && mknod -m 666 /dev/urandom c 1 9 && exec \"$@\"";
    let said = rehearse(&["unshare", "--mount", "sh", "-c", without, "sh"], out.path());
    assert!(said.contains("control files by socket"), "{said}");
}

#[test]
fn parts_run_alone_and_are_skipped_without_time() {
    let out = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = script(arguments).arg(out.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, said) = run(&["--sim", "--parts", "lookups,load_governed"]);
    assert_eq!(status, Some(0), "{said}");
    let found = results(out.path());
    let names: Vec<_> = found.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    for part in ["driver", "load_governed", "lookups"] {
        assert_eq!(found[part]["state"], "PASS", "{said}");
    }
    // The time limit suffices for the first part, but not for one that takes 25 seconds.
    let (status, said) = run(&["--sim", "--parts", "swap", "--seconds", "20"]);
    assert_eq!(status, Some(3), "{said}");
    let swap = &results(out.path())["swap"];
    assert_eq!(swap["state"], "SKIP");
    let reason = swap["reason"].as_str().unwrap();
    assert!(reason.starts_with("left out: the part takes 25 s"), "{reason}");
    let (status, _) = run(&["--sim", "--parts", "swop"]);
    assert_eq!(status, Some(2));
}

#[test]
fn check_without_a_gpu_fails() {
    if Path::new("/proc/driver/nvidia").exists() {
        eprintln!("skipped: this machine has a GPU");
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(repository().join("scripts/gpu-check.sh"))
        .args(["--parts", "driver,ledger"])
        .arg(out.path())
        .env("DIST", artifacts().dist())
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("nothing was checked on a GPU: "), "{said}");
}
