//! Checks that every environment variable of programs is in the table of `gcgroup_abi::environment`, and
//! every variable of scripts and tests in that of `CONTRIBUTING.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gcgroup_abi::environment::VARIABLES;
use support::repository;

const PREFIX: &str = "GCGROUP_";

/// Returns the variables that a text names.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(PREFIX).filter_map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
        let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('_');
        (name.len() > PREFIX.len()).then_some(name)
    })
}

/// Calls `with` with the path and the text of each file below a path of the repository.
fn each_file(path: &Path, with: &mut impl FnMut(&Path, &str)) {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
        for entry in entries.filter(|entry| entry.file_name() != "target") {
            each_file(&entry.path(), with);
        }
    } else if let Ok(text) = fs::read_to_string(path) {
        with(path, &text);
    }
}

/// Returns the variables that the code below a directory names, without comments.
fn used(directory: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    each_file(&repository().join(directory), &mut |path, text| {
        if path.extension().is_some_and(|extension| extension == "rs") {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            used.extend(code.flat_map(named).map(str::to_owned));
        }
    });
    used
}

/// Returns the rows of the table in `CONTRIBUTING.md`: a variable, and the files that read it.
fn of_scripts_and_tests() -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(repository().join("CONTRIBUTING.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `GCGROUP_"));
    let quoted =
        |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').collect();
        (quoted(cells[1]).remove(0), quoted(cells[3]))
    };
    rows.map(row).collect()
}

#[test]
fn every_variable_that_is_named_has_a_row() {
    let mut rows: BTreeSet<String> = VARIABLES.iter().map(|row| row.name.to_owned()).collect();
    rows.extend(of_scripts_and_tests().into_iter().map(|(name, _)| name));
    let mut nr_named = 0;
    for place in [
        "hook",
        "gcgroupfs",
        "scripts",
        "tests",
        "README.md",
        "ARCHITECTURE.md",
    ] {
        each_file(&repository().join(place), &mut |path, text| {
            for name in named(text) {
                assert!(rows.contains(name), "{}: {name} has no row", path.display());
                nr_named += 1;
            }
        });
    }
    assert!(nr_named > 100, "{nr_named}");
}

#[test]
fn variables_are_read_where_their_rows_say() {
    let (hook, gcgroupfs) = (used("hook/src"), used("gcgroupfs"));
    for row in VARIABLES {
        assert_eq!(
            row.readers.contains("hook"),
            hook.contains(row.name),
            "{}",
            row.name
        );
        let is_read = row.readers.contains("gcgroupfs");
        assert!(!is_read || gcgroupfs.contains(row.name), "{}", row.name);
    }
}

#[test]
fn variables_of_scripts_and_tests_are_read_where_listed() {
    for (name, files) in of_scripts_and_tests() {
        assert!(!files.is_empty(), "{name}");
        for file in files {
            let text = fs::read_to_string(repository().join(&file)).unwrap();
            assert!(named(&text).any(|found| found == name), "{file}: {name}");
        }
    }
}
