//! Tests that the simulated libraries export the same symbols as NVIDIA's, according to the lists in `data/`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use support::artifacts;

use crate::lookups::{Names, lines};

/// Returns the functions that a shared library exports.
fn exported(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let symbols = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    symbols
        .filter(|fields| matches!(fields[1], "T" | "W"))
        .map(|fields| fields[0].to_owned())
        .collect()
}

fn list(name: &str) -> BTreeSet<String> {
    lines(&format!("tests/data/{name}")).into_iter().collect()
}

/// Compares two sets; a failure shows the differences.
fn assert_same(exported: &BTreeSet<String>, listed: &BTreeSet<String>) {
    let missing: Vec<&String> = listed.difference(exported).collect();
    let strange: Vec<&String> = exported.difference(listed).collect();
    assert!(
        missing.is_empty() && strange.is_empty(),
        "missing: {missing:?}; unknown to the driver: {strange:?}"
    );
}

#[test]
fn simulated_driver_exports_exactly_the_real_symbols() {
    let mut listed = list("libcuda-13.5.symbols");
    listed.extend(Names::read().symbols().keys().map(|symbol| (*symbol).to_owned()));
    assert_same(&exported(&artifacts().simgpu().join("libcuda.so.1")), &listed);
}

#[test]
fn simulated_nvml_exports_exactly_the_real_functions() {
    let library = artifacts().simgpu().join("libnvidia-ml.so.1");
    assert_same(&exported(&library), &list("libnvidia-ml-12.9.symbols"));
}

#[test]
fn table_of_names_matches_lists_of_symbols() {
    let (now, before) = (list("libcuda-13.5.symbols"), list("libcuda-12.8.symbols"));
    let names = Names::read();
    let symbols = names.symbols();
    for (symbol, since) in &symbols {
        // The lists omit functions declared by headers other than cuda.h.
        if now.contains(*symbol) {
            assert_eq!(
                before.contains(*symbol),
                *since <= 12080,
                "{symbol} came with {since}"
            );
        }
    }
    let unnamed: Vec<&String> = now
        .iter()
        .filter(|symbol| !symbols.contains_key(symbol.as_str()))
        .collect();
    assert_eq!(unnamed, ["cuGetProcAddress_v2_ptsz"]);
}
