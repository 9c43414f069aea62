//! Checks that the documents match the product.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use support::{Mount, artifacts, repository};
use tempfile::TempDir;

use crate::driver::DriverShell;

fn document(name: &str) -> String {
    fs::read_to_string(repository().join(name)).unwrap()
}

/// Returns the output of `gcgroupfs files`, a Markdown table.
fn table() -> String {
    let output = Command::new(artifacts().gcgroupfs())
        .arg("files")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the names of the control files, from the table's first column.
fn names() -> BTreeSet<String> {
    let rows: Vec<String> = table()
        .lines()
        .filter_map(|line| line.split('`').nth(1).map(str::to_owned))
        .collect();
    assert!(rows.contains(&"memory.limit".to_owned()), "{rows:?}");
    rows.into_iter().collect()
}

/// Returns the first column of the tables in a Markdown section, without backquotes.
fn first_column(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[test]
fn readme_names_ten_files_that_exist() {
    let readme = document("README.md");
    let (_, section) = readme.split_once("\n## Files\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let told = first_column(section);
    assert_eq!(told.len(), 10, "{told:?}");
    assert!(told.is_subset(&names()), "{told:?}");
}

#[test]
fn readme_is_short() {
    let nr_lines = document("README.md").lines().count();
    assert!(nr_lines <= 150, "{nr_lines} lines");
}

#[test]
fn diagram_is_drawn_from_its_source() {
    let [source, drawn] = ["dot", "svg"].map(|ending| document(&format!("gcgroupfs/doc/overview.{ending}")));
    let labels = source
        .split("label = \"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap());
    let mut nr_lines = 0;
    for line in labels.flat_map(|label| label.split("\\n")) {
        assert!(drawn.contains(line.trim()), "regenerate overview.svg: {line}");
        nr_lines += 1;
    }
    assert!(nr_lines > 10, "{nr_lines}");
}

#[test]
fn links_in_documents_lead_to_files() {
    for name in [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "ARCHITECTURE.md",
        "gcgroupfs/doc/choosing.md",
        "gcgroupfs/doc/coming-from.md",
        "tests/bench/README.md",
    ] {
        let text = document(name);
        let folder = repository().join(name).parent().unwrap().to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap();
            if !target.starts_with("http") && !path.is_empty() {
                assert!(folder.join(path).exists(), "{name}: {target}");
            }
        }
    }
}

#[test]
fn architecture_names_files_that_exist() {
    let text = document("ARCHITECTURE.md");
    let names = text.split('`').skip(1).step_by(2);
    let mut nr_names = 0;
    for name in names.filter(|name| name.ends_with(".rs") && !name.contains(['*', ' '])) {
        let roots = ["", "gcgroupfs", "hook/src"];
        let exists = roots
            .iter()
            .any(|root| repository().join(root).join(name).exists());
        assert!(exists, "{name}");
        nr_names += 1;
    }
    assert!(nr_names > 30, "{nr_names}");
}

#[test]
fn kmod_notes_mention_every_file() {
    let notes = document("kmod-notes/README.md");
    assert_eq!(first_column(&notes), names());
}

#[test]
fn stale_names_and_wrapped_tables_in_a_note_are_found() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("Cargo.toml", "");
    write(
        "src/window/costs.rs",
        "impl Costs { fn lower() {} }\n// fn gone_item\n",
    );
    write(
        "src/note.md",
        "`costs.rs`, `window/costs`, (`window`), `Costs::lower`, `window/NAME.rs`, `a b`\n\
         `made.rs`, `server/room`, (`mark`), `Costs::raise`, `gone_item`\n\
         | a | b | | --- | --- | | c | d |\n",
    );
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(directory.path());
        command.output().unwrap()
    };
    assert!(run("git", &["init", "-q"]).status.success());
    assert!(run("git", &["add", "."]).status.success());
    let script = repository().canonicalize().unwrap().join("scripts/check-text.py");
    let output = run("python3", &[script.to_str().unwrap()]);
    let expected = [
        "src/note.md:2: no file made.rs",
        "src/note.md:2: no file server/room",
        "src/note.md:2: no module mark",
        "src/note.md:2: no item Costs::raise",
        "src/note.md:2: no item gone_item",
        "src/note.md:3: a table that was wrapped like prose",
    ];
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
    assert_eq!(output.status.code(), Some(1));
}

/// Returns the commands in the last column of the tables of a document.
fn commands(text: &str) -> Vec<&str> {
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| `") || line.starts_with("| remove"));
    rows.map(|row| {
        row.rsplit('|')
            .nth(1)
            .and_then(|cell| cell.split('`').nth(1))
            .expect(row)
    })
    .collect()
}

#[test]
fn commands_for_users_of_other_systems_work() {
    let text = document("gcgroupfs/doc/coming-from.md");
    let commands = commands(&text);
    assert!(commands.len() > 20, "{commands:?}");
    let mount = Mount::new();
    fs::create_dir(mount.path().join("team")).unwrap();
    let programs = artifacts().gcgroupfs().parent().unwrap().display().to_string();
    for command in commands {
        let shell = DriverShell::start(&mount);
        let filled = command
            .replace("/gcgroup/", &format!("{}/", mount.path().display()))
            .replace("4711", &shell.pid().to_string())
            .replace("./train", "true");
        let ran = mount
            .command("sh")
            .args(["-c", &format!("PATH={programs}:$PATH; {filled}")])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{command}: {ran:?}");
    }
}
