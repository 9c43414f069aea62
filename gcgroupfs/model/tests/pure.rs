//! The model decides from values only: it links nothing that reaches the system, and uses nothing of std that
//! does.
#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    reason = "this file is a test"
)]

use std::fs;
use std::path::{Path, PathBuf};

const MANIFEST: &str = include_str!("../Cargo.toml");

/// Everything that the model may link.
const ALLOWED: &[&str] = &[
    "gcgroup-abi",
    "globset",
    "parking_lot",
    "serde",
    "thiserror",
    "toml",
];

/// Parts of std that act on the system, as words of the source.
const FORBIDDEN: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "libc::",
    "nix::",
];

#[test]
fn dependencies_reach_no_system() {
    let manifest: toml::Table = toml::from_str(MANIFEST).unwrap();
    let dependencies = manifest["dependencies"].as_table().unwrap();
    let linked: Vec<&String> = dependencies.keys().collect();
    assert!(
        linked.iter().all(|name| ALLOWED.contains(&name.as_str())),
        "{linked:?}"
    );
}

/// Returns the source files below a directory, without those of tests.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.file_stem().is_none_or(|stem| stem != "tests"))
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

#[test]
fn source_uses_no_clock_file_socket_or_thread() {
    let files = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(files.len() > 50, "{}", files.len());
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let (code, _) = text
            .split_once("#[cfg(test)]\nmod tests {")
            .unwrap_or((&text, ""));
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for word in FORBIDDEN {
                assert!(!line.contains(word), "{}: {line}", path.display());
            }
        }
    }
}
