//! Tests the check for real GPUs on simulated ones, and so its scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use support::{artifacts, python, repository};
use tempfile::TempDir;

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

#[test]
fn every_plan_passes_without_fuse_device() {
    let out = tempfile::tempdir().unwrap();
    let without = "mount -t tmpfs -o mode=755 none /dev && mkdir /dev/shm && mknod -m 666 /dev/null c 1 3 && \
                   mknod -m 666 /dev/zero c 1 5 && mknod -m 666 /dev/urandom c 1 9 && exec \"$@\"";
    let said = rehearse(&["unshare", "--mount", "sh", "-c", without, "sh"], out.path());
    assert!(said.contains("control files by socket"), "{said}");
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
