//! Tests the coverage report of driver functions, and the counting of functions that the report does not
//! list.

use std::collections::BTreeSet;

use support::{Mount, repository};

use crate::driver::{Dir, DriverShell, driver_shell};
use crate::lookups::lines;

#[test]
fn printed_report_lists_every_function_once() {
    let output = Mount::new().gcgroupfs(&["coverage"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = String::from_utf8(output.stdout).unwrap();
    let kept = std::fs::read_to_string(repository().join("hook/COVERAGE.md")).unwrap();
    assert_eq!(report, kept);
    let told: Vec<&str> = report
        .lines()
        .filter_map(|line| line.strip_prefix("- "))
        .collect();
    let once: BTreeSet<&str> = told.iter().copied().collect();
    assert_eq!(once.len(), told.len());
    for list in ["libcuda-12.8", "libcuda-13.5", "libnvidia-ml-12.9"] {
        for name in lines(&format!("tests/data/{list}.symbols")) {
            assert!(once.contains(name.as_str()), "{name}");
        }
    }
}

#[test]
fn look_ups_of_real_clients_are_in_the_report() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let lists = ["cudart-12.8", "cudart-13.5", "numba-cuda-0.30"];
    let lookups = lists.map(|list| lines(&format!("tests/data/{list}.lookups.tsv")));
    let names: BTreeSet<&str> = lookups
        .iter()
        .flatten()
        .filter_map(|line| line.split('\t').next())
        .filter(|name| !name.is_empty())
        .collect();
    assert!(names.len() > 300, "look-ups are missing");
    for name in names {
        let answer = shell.ask(&format!("lookup {name}"));
        assert!(answer.starts_with("ok "), "{name}: {answer}");
    }
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(dir.key("compute.stat", "nr_unknown_symbols"), 0);
}

#[test]
fn look_up_of_a_newer_function_is_counted() {
    let mount = Mount::new();
    let mut command = mount.command(driver_shell());
    command.env("SIMGPU_FUTURE", "cuMemAllocFuture");
    let mut shell = DriverShell::spawn(command);
    let dir = Dir::of(&mount, shell.pid());
    let mut count_after = |name: &str, status: &str| {
        assert_eq!(shell.ask(&format!("lookup {name}")), status, "{name}");
        dir.key("compute.stat", "nr_unknown_symbols")
    };
    assert_eq!(count_after("cuMemAlloc", "ok 0"), 0);
    assert_eq!(count_after("cuEventRecord", "ok 0"), 0);
    // The driver does not export this name either.
    assert_eq!(count_after("cuNoSuchFunction", "ok 1"), 0);
    assert_eq!(count_after("cuMemAllocFuture", "ok 0"), 1);
    assert_eq!(count_after("cuMemAllocFuture", "ok 0"), 2);
}
