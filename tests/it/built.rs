//! Checks exports and dependencies of the built libraries, which are loaded into arbitrary processes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use support::{artifacts, repository};

use crate::hooked::NAMES;

fn words(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program)
        .args(arguments)
        .current_dir(repository())
        .output()
        .expect("the command runs");
    assert!(
        out.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn symbols(library: &Path, which: &str) -> BTreeSet<String> {
    let listing = words("nm", &["-D", which, library.to_str().expect("a path")]);
    listing
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(str::to_owned)
        .collect()
}

fn needed(library: &Path) -> Vec<String> {
    let dynamic = words("readelf", &["-d", library.to_str().expect("a path")]);
    let names = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    names
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
        .collect()
}

#[test]
fn preload_library_exports_table_and_needs_no_library() {
    let library = artifacts().preload();
    let want = NAMES
        .iter()
        .chain(&["__asan_default_options", "dlmopen", "dlopen", "dlsym", "dlvsym"]);
    let want: BTreeSet<String> = want.map(|name| (*name).to_owned()).collect();
    assert_eq!(symbols(&library, "--defined-only"), want);
    assert_eq!(needed(&library), Vec::<String>::new());
    let undefined = words(
        "nm",
        &["-D", "--undefined-only", library.to_str().expect("a path")],
    );
    for line in undefined.lines() {
        assert!(
            line.trim_start().starts_with("w "),
            "the reference is not weak: {line}"
        );
    }
    let sections = words("readelf", &["-SW", library.to_str().expect("a path")]);
    for constructor in [".init_array", ".ctors", ".init "] {
        assert!(!sections.contains(constructor), "{constructor}");
    }
}

#[test]
fn hook_exports_one_symbol_and_needs_only_glibc() {
    let library = artifacts().hook();
    assert_eq!(
        symbols(&library, "--defined-only"),
        BTreeSet::from(["gcgroup_hook_start".to_owned()])
    );
    let common = [
        "libc.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    ];
    for name in needed(&library) {
        assert!(
            common.contains(&name.as_str()),
            "{name} is not loaded into every process"
        );
    }
}

#[test]
fn hook_dependencies_are_the_known_ones() {
    let tree = words(
        env!("CARGO"),
        &[
            "tree",
            "--locked",
            "-p",
            "gcgroup-hook",
            "-e",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{lib}",
        ],
    );
    let known = [
        "allocator_api2",
        "cfg_if",
        "equivalent",
        "foldhash",
        "gcgroup_abi",
        "gcgroup_hook",
        "hashbrown",
        "libc",
        "lock_api",
        "parking_lot",
        "parking_lot_core",
        "scopeguard",
        "smallvec",
    ];
    for name in tree.lines().map(str::trim).filter(|name| !name.is_empty()) {
        assert!(
            known.contains(&name),
            "{name} would be loaded into other programs"
        );
    }
    // The hook shares only memory layouts with the daemon.
    assert!(!tree.contains("gcgroupfs"));
}
