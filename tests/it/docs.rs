//! The documents say what is so.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use support::{artifacts, repository};

fn document(name: &str) -> String {
    fs::read_to_string(repository().join(name)).unwrap()
}

/// `gcgroupfs files`: the table as README has it.
fn table() -> String {
    let output = Command::new(artifacts().gcgroupfs())
        .arg("files")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The names of the control files, from the table's first column.
fn names() -> BTreeSet<String> {
    let rows: Vec<String> = table()
        .lines()
        .filter_map(|line| line.split('`').nth(1).map(str::to_owned))
        .collect();
    assert!(rows.contains(&"memory.limit".to_owned()), "{rows:?}");
    rows.into_iter().collect()
}

#[test]
fn readme_has_the_table_of_files_as_it_is() {
    let readme = document("README.md");
    let (_, rest) = readme
        .split_once("<!-- files: made by `gcgroupfs files`; a test compares -->\n")
        .unwrap();
    let (shown, _) = rest.split_once("<!-- /files -->").unwrap();
    assert_eq!(
        shown.trim(),
        table().trim(),
        "put the output of `gcgroupfs files` there"
    );
}

#[test]
fn kmod_notes_tell_of_every_file() {
    let notes = document("kmod-notes/README.md");
    let told: BTreeSet<String> = notes
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(told, names());
}

#[test]
fn the_scripts_by_hand_use_the_mounted_files_alone() {
    for name in ["gc-freeze", "gc-limit", "gc-preempt", "gc-priority", "gc-thaw"] {
        let text = document(&format!("scripts/{name}"));
        assert!(text.starts_with("#!/bin/sh\n"), "{name} is not for every shell");
        let rest = text
            .replace("gcgroupfs wait ", "")
            .replace("needs gcgroupfs in the path", "");
        assert!(!rest.contains("gcgroupfs"), "{name} needs more than the files");
        assert!(text.lines().count() <= 120, "{name} is long for what it does");
    }
}
