//! Tests `install.sh`: which files it installs where, over an existing installation, and that uninstalling
//! removes exactly these files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{Governed, Mount, artifacts, repository};
use tempfile::TempDir;

const LIBRARY: &str = "/usr/lib/libgcgroup.so";

fn install(arguments: &[&str]) -> Command {
    let mut command = Command::new(artifacts().dist().join("install.sh"));
    command.args(arguments).env_remove("DESTDIR");
    command
}

/// Installs below a directory that stands for the root of a machine (DESTDIR).
#[track_caller]
fn staged(root: &Path, arguments: &[&str]) {
    let mut command = install(&["--prefix", "/usr"]);
    ok(command.args(arguments).env("DESTDIR", root));
}

/// Runs the installed `gc-everywhere` below such a directory.
#[track_caller]
fn everywhere(root: &Path, state: &str) -> Output {
    let mut command = Command::new(root.join("usr/bin/gc-everywhere"));
    let command = command.arg(state).env("DESTDIR", root);
    command.output().expect("the command runs")
}

#[track_caller]
fn ok(command: &mut Command) -> Output {
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{output:?}");
    output
}

/// Returns the relative paths of all files below a directory.
fn files(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path);
            } else {
                found.insert(
                    path.strip_prefix(root)
                        .expect("the path is below the root")
                        .to_owned(),
                );
            }
        }
    }
    found
}

fn preloaded(root: &Path) -> String {
    fs::read_to_string(root.join("etc/ld.so.preload")).expect("the file exists")
}

#[test]
fn installed_programs_run_from_their_directory() {
    let prefix = TempDir::new().expect("a directory");
    let prefix = prefix.path().to_str().expect("text");
    ok(&mut install(&["--prefix", prefix]));

    let mount = Mount::new();
    let mut command = mount.bare_command(format!("{prefix}/bin/gcgroupfs"));
    command
        .env("GCGROUP_SOCKET", mount.socket())
        .args(["run", "--memory-limit", "1M", "--"]);
    command.args([&format!("{prefix}/bin/gcgroup-load"), "obey"]);
    let mut load = Governed::spawn(command);
    load.expect("ready");
    assert_eq!(mount.read(load.pid(), "memory.limit").trim(), "1048576");
    let maps = fs::read_to_string(format!("/proc/{}/maps", load.pid())).expect("the process lives");
    for library in ["libgcgroup.so", "libgcgroup_hook.so"] {
        assert!(maps.contains(&format!("{prefix}/lib/{library}")), "{maps}");
    }
    let unit = fs::read_to_string(format!("{prefix}/lib/systemd/system/gcgroupfs.service")).expect("a unit");
    assert!(
        unit.contains(&format!("\nExecStart={prefix}/bin/gcgroupfs mount ")),
        "{unit}"
    );
}

#[test]
fn every_tool_is_installed_for_all_users() {
    let root = TempDir::new().expect("a directory");
    staged(root.path(), &[]);
    for entry in fs::read_dir(repository().join("scripts")).expect("the scripts") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        if name.starts_with("gc-") {
            assert!(root.path().join("usr/bin").join(&name).exists(), "{name}");
        }
    }
    for file in files(root.path()) {
        let mode = fs::metadata(root.path().join(&file))
            .expect("a file")
            .permissions()
            .mode()
            & 0o7777;
        let end = file.extension();
        let script = file.starts_with("usr/share/gcgroupfs/slurm") && end.is_none();
        let program = script || file.starts_with("usr/bin") || end.is_some_and(|end| end == "so");
        assert_eq!(mode, if program { 0o755 } else { 0o644 }, "{}", file.display());
    }
    assert!(!root.path().join("etc").exists(), "a plain install wrote to /etc");
}

#[test]
fn upgrade_does_not_change_libraries_of_running_programs() {
    let root = TempDir::new().expect("a directory");
    staged(root.path(), &[]);
    let before = files(root.path());
    let library = root.path().join("usr/lib/libgcgroup_hook.so");
    fs::write(&library, "an earlier one").expect("the file is writable");
    let mut held = File::open(&library).expect("the file exists");

    staged(root.path(), &[]);
    assert_eq!(files(root.path()), before);
    assert_eq!(
        fs::read(&library).expect("the file exists"),
        fs::read(artifacts().hook()).expect("the hook is built")
    );
    let mut text = String::new();
    held.read_to_string(&mut text).expect("the file is open");
    assert_eq!(text, "an earlier one");
}

#[test]
fn other_entries_of_ld_so_preload_are_kept() {
    let root = TempDir::new().expect("a directory");
    let root = root.path();
    fs::create_dir(root.join("etc")).expect("a directory");
    fs::write(root.join("etc/ld.so.preload"), "/usr/lib/libother.so\n").expect("a file");

    staged(root, &[]);
    for _ in 0..2 {
        assert!(everywhere(root, "on").status.success());
        assert_eq!(preloaded(root), format!("/usr/lib/libother.so\n{LIBRARY}\n"));
        assert_eq!(everywhere(root, "status").stdout, b"on\n");
    }
    for _ in 0..2 {
        assert!(everywhere(root, "off").status.success());
        assert_eq!(preloaded(root), "/usr/lib/libother.so\n");
        assert_eq!(everywhere(root, "status").status.code(), Some(1));
    }
    assert!(everywhere(root, "on").status.success());
    assert_eq!(everywhere(root, "sometimes").status.code(), Some(2));
    staged(root, &["--uninstall"]);
    assert_eq!(preloaded(root), "/usr/lib/libother.so\n");
    assert_eq!(files(root), BTreeSet::from([PathBuf::from("etc/ld.so.preload")]));
}

#[test]
fn library_that_the_loader_rejects_is_not_named() {
    let root = TempDir::new().expect("a directory");
    let root = root.path();
    staged(root, &[]);
    fs::write(root.join("usr/lib/libgcgroup.so"), "no library").expect("a file");
    let output = everywhere(root, "on");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!output.stderr.is_empty());
    assert!(!root.join("etc/ld.so.preload").exists());
}

#[test]
fn uninstall_removes_exactly_the_installed_files() {
    let root = TempDir::new().expect("a directory");
    let root = root.path();
    let theirs = root.join("usr/bin/theirs");
    fs::create_dir_all(theirs.parent().expect("a directory")).expect("a directory");
    fs::write(&theirs, "").expect("a file");

    staged(root, &[]);
    assert!(everywhere(root, "on").status.success());
    assert_eq!(preloaded(root), format!("{LIBRARY}\n"));
    staged(root, &["--uninstall"]);
    assert_eq!(files(root), BTreeSet::from([PathBuf::from("usr/bin/theirs")]));
    staged(root, &["--uninstall"]);
}

#[test]
fn invalid_arguments_change_nothing() {
    let root = TempDir::new().expect("a directory");
    for arguments in [
        &["--prefix", "relative"][..],
        &["--prefix", "/usr/a b"],
        &["--prefix", "/usr:/opt"],
        &["--prefix"],
        &["--prefix", "/usr", "--unknown"],
        &["/usr"],
    ] {
        let output = install(arguments)
            .env("DESTDIR", root.path())
            .output()
            .expect("the command runs");
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
        assert!(files(root.path()).is_empty(), "{arguments:?}");
    }
}

#[test]
fn uninstall_works_without_the_built_tree_and_stops_the_service() {
    let root = TempDir::new().expect("a directory");
    let prefix = root.path().join("prefix");
    let tools = root.path().join("tools");
    fs::create_dir(&tools).expect("a directory");
    // Stands for the machine's service manager, which must not be touched.
    let units = prefix.join("lib/systemd/system");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}\necho FragmentPath={}/$4\n",
        root.path().join("calls").display(),
        units.display()
    );
    fs::write(tools.join("systemctl"), script).expect("a file");
    fs::set_permissions(tools.join("systemctl"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let output = ok(&mut install(&["--prefix", prefix.to_str().expect("text")]));
    let next = String::from_utf8_lossy(&output.stdout).into_owned();
    let copy = prefix.join("share/gcgroupfs/install.sh");
    assert!(
        next.contains(&format!("sh {} --uninstall", copy.display())),
        "{next}"
    );
    assert!(next.contains("systemctl enable --now gcgroupfs"), "{next}");
    // A file that only an older version had.
    let old = prefix.join("bin/gc-old");
    fs::write(&old, "").expect("a file");
    let manifest = prefix.join("share/gcgroupfs/installed");
    let list = fs::read_to_string(&manifest).expect("the list exists");
    fs::write(&manifest, format!("{list}bin/gc-old\n")).expect("a file");

    let path = format!(
        "{}:{}",
        tools.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    ok(Command::new("sh")
        .arg(&copy)
        .arg("--uninstall")
        .env("PATH", path)
        .env_remove("DESTDIR"));
    assert!(files(&prefix).is_empty(), "{:?}", files(&prefix));
    let calls = fs::read_to_string(root.path().join("calls")).expect("systemctl was called");
    for unit in ["gcgroupfs.service", "gcgroup-exporter.service"] {
        assert!(calls.contains(&format!("disable --now {unit}")), "{calls}");
    }
}

#[test]
fn manual_pages_are_well_formed() {
    let dist = artifacts().dist().join("share/man");
    let pages = files(&dist);
    let names: BTreeSet<String> = pages
        .iter()
        .filter_map(|page| Some(page.file_name()?.to_str()?.to_owned()))
        .collect();
    for entry in fs::read_dir(artifacts().dist().join("bin")).expect("the programs") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        // The benchmark's program is not installed.
        assert!(
            name == "gcgroup-contention" || names.contains(&format!("{name}.1")),
            "{name}: {names:?}"
        );
    }
    for page in &pages {
        let mut lint = Command::new("mandoc");
        let output = lint
            .args(["-T", "lint", "-W", "error"])
            .arg(dist.join(page))
            .output()
            .expect("mandoc runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
}
