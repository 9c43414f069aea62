//! Checks which files of a crate import which: no cycles, and in the hook none of a higher layer.

mod graph;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use support::repository;

use self::graph::{Imports, cycle, imports_of};
use self::source::Path;

/// Directories of the crates whose files are in no cycle.
const CRATES: &[&str] = &[
    "gcgroupfs",
    "gcgroupfs/client",
    "gcgroupfs/integrations/exporter",
    "gcgroupfs/fuse",
    "gcgroupfs/integrations/kubelet-plugin",
    "gcgroupfs/model",
    "gcgroupfs/server",
    "gcgroupfs/integrations/slurm",
    "gcgroupfs/sys",
    "hook",
    "hook/abi",
    "hook/abi/models",
    "hook/preload",
    "tests",
    "tests/bench/contention",
    "tests/load",
    "tests/simgpu",
    "tests/simgpu/nvml",
];

/// Directories of the crates with cycles, each with the reason.
const WITH_CYCLES: &[(&str, &str)] = &[("tests/simgpu/cuda", "its process holds the objects of every file")];

/// Layers of the hook, the lowest first. A file belongs to the layer that has its path or its first
/// directory. Parts in one line do not import each other.
const LAYERS: &[&[&str]] = &[
    &["arch"],
    &["sys"],
    &["driver"],
    &["shared"],
    &["helper"],
    &["program"],
    &["memory", "compute"],
    &["swap"],
    &["hook"],
    &["calls"],
    &["rows"],
    &["coverage"],
    &["symbols"],
    &["table"],
    &["start"],
];

/// Returns the roots of the library and the programs of a crate.
fn roots(directory: &str) -> Vec<PathBuf> {
    let directory = repository().join(directory);
    let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap();
    let given = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix("\""));
    let mut roots: Vec<PathBuf> = given.map(|path| directory.join(path)).collect();
    roots.extend(["src/lib.rs", "src/main.rs"].map(|path| directory.join(path)));
    if let Ok(entries) = fs::read_dir(directory.join("src/bin")) {
        roots.extend(entries.map(|entry| entry.unwrap().path()));
    }
    roots.retain(|root| root.exists());
    roots
}

/// Returns the layer of a module of the hook, and its part of the layer.
fn layer(module: &Path) -> (usize, usize) {
    let found = LAYERS.iter().enumerate().find_map(|(number, parts)| {
        let part = parts.iter().position(|part| *part == module[0])?;
        Some((number, part))
    });
    found.unwrap_or_else(|| panic!("{module:?} has no layer: add it to LAYERS"))
}

/// Returns an import of a higher layer, or of another part of a layer.
fn upward(imports: &Imports) -> Option<(&Path, &Path)> {
    let is_upward = |from: &Path, to: &Path| {
        let ((above, part), (below, other)) = (layer(from), layer(to));
        above < below || above == below && part != other
    };
    // The root declares the layers and is in none.
    let all = imports
        .iter()
        .flat_map(|(from, list)| list.iter().map(move |to| (from, to)));
    all.filter(|(from, to)| !from.is_empty() && !to.is_empty())
        .find(|(from, to)| is_upward(from, to))
}

/// Returns the directories of the crates of both workspaces.
fn members() -> Vec<String> {
    let of = |workspace: &str| {
        let manifest = fs::read_to_string(repository().join(workspace).join("Cargo.toml")).unwrap();
        let (_, list) = manifest.split_once("\nmembers = [").unwrap();
        let (list, _) = list.split_once(']').unwrap();
        let members = list.split('"').skip(1).step_by(2);
        members
            .map(|member| format!("{workspace}{member}"))
            .collect::<Vec<_>>()
    };
    [of(""), of("gcgroupfs/integrations/")].concat()
}

#[test]
fn every_crate_is_checked_or_is_an_exception() {
    let mut listed: Vec<&str> = CRATES.to_vec();
    listed.extend(WITH_CYCLES.iter().map(|(directory, _)| *directory));
    listed.sort_unstable();
    let mut members = members();
    members.sort_unstable();
    assert_eq!(
        listed, members,
        "CRATES and WITH_CYCLES, and the workspaces' members"
    );
}

#[test]
fn exceptions_have_cycles() {
    for (directory, _) in WITH_CYCLES {
        let mut all = roots(directory).into_iter().map(|root| imports_of(&root));
        assert!(
            all.any(|imports| cycle(&imports).is_some()),
            "{directory} has no cycle: move it to CRATES"
        );
    }
}

#[test]
fn files_of_a_crate_do_not_import_each_other() {
    let mut nr_files = 0;
    for directory in CRATES {
        let roots = roots(directory);
        assert!(!roots.is_empty(), "{directory} has no root");
        for root in roots {
            let imports = imports_of(&root);
            nr_files += imports.len();
            let cycle =
                cycle(&imports).map(|cycle| cycle.iter().map(|module| module.join("/")).collect::<Vec<_>>());
            assert_eq!(
                cycle, None,
                "modules of {directory} import each other in a circle"
            );
        }
    }
    assert!(nr_files > 300, "files are not found: {nr_files}");
}

#[test]
fn imports_of_the_hook_lead_to_lower_layers() {
    let imports = imports_of(&repository().join("hook/src/lib.rs"));
    assert!(imports.len() > 100, "files are not found: {}", imports.len());
    let nr_imports: usize = imports.values().map(BTreeSet::len).sum();
    assert!(nr_imports > 500, "imports are not found: {nr_imports}");
    if let Some((from, to)) = upward(&imports) {
        panic!("{} must not import {}", from.join("/"), to.join("/"));
    }
}

#[test]
fn import_of_a_higher_layer_is_found() {
    let path = |text: &str| -> Path { text.split('/').map(str::to_owned).collect() };
    let find = |from: &str, to: &str| {
        let imports = Imports::from([(path(from), BTreeSet::from([path(to), Path::new()]))]);
        upward(&imports).is_some()
    };
    assert!(find("sys/clock", "swap/task"));
    assert!(find("memory/grant", "compute/gate"));
    assert!(!find("swap/task", "sys/clock"));
    assert!(!find("memory/grant", "memory/charge"));
}
