//! Tests commands, scripts and the daemon with missing files and wrong arguments.

use std::fs;
use std::process::Command;

use support::{Config, Mount, artifacts, repository, wait_until};

use crate::driver::DriverShell;
use crate::rules::ALICE;

#[test]
fn gc_freeze_says_which_processes_it_froze() {
    let mount = Mount::new();
    let processes = [mount.obedient(), mount.obedient()];
    let [one, other] = processes.each_ref().map(|process| process.pid().to_string());
    let mut command = Command::new(repository().join("scripts/gc-freeze"));
    command
        .env("GCGROUP", mount.path())
        .args([&one, "no such", &other]);
    let output = command.output().expect("the script starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let wanted = format!("gc-freeze: frozen: {one} {other}; not frozen: no such\n");
    assert!(said.ends_with(&wanted), "{said}");
    for pid in [one, other] {
        assert_eq!(mount.read(pid, "compute.freeze"), "1");
    }
}

#[test]
fn check_config_without_arguments_needs_no_file() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let check = || {
        let mut command = mount.gcgroupfs_of(ALICE, &["check-config"]);
        command.env("XDG_CONFIG_HOME", directory.path());
        let output = command.output().expect("the command starts");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory.path(), mode).expect("the directory is ours");
    assert_eq!(check(), (Some(0), String::new()));
    fs::write(
        directory.path().join("gcgroupfs.toml"),
        "[compute]\ncycle_usec = 1\n",
    )
    .expect("it is writable");
    let (status, said) = check();
    assert_eq!(status, Some(1));
    assert!(said.contains("gcgroupfs.toml:2:14: "), "{said}");
}

#[test]
fn cdi_makes_its_directory_and_names_the_socket() {
    let mount = Mount::new();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("etc/cdi/gcgroupfs.json");
    let write = |socket: &str| {
        let mut command = mount.gcgroupfs(&["--socket", socket, "cdi", "--output"]);
        let output = command.arg(&file).output().expect("the command starts");
        assert!(output.status.success(), "{output:?}");
        let text = fs::read_to_string(&file).expect("the file is there");
        let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        all["devices"][0]["containerEdits"].clone()
    };
    let edits = write("/somewhere/own.sock");
    assert_eq!(
        edits["env"],
        serde_json::json!(["GCGROUP_SOCKET=/run/gcgroupfs/own.sock"])
    );
    let last = edits["mounts"]
        .as_array()
        .and_then(|mounts| mounts.last())
        .cloned();
    assert_eq!(last.expect("a mount")["hostPath"], "/somewhere");
    assert_eq!(write("/somewhere/gcgroup.sock")["env"], serde_json::Value::Null);
}

#[test]
fn driver_that_appears_after_the_daemon_is_used() {
    let libraries = tempfile::tempdir().expect("a temporary directory");
    let path = libraries.path().to_str().expect("text");
    let mount = Mount::with(Config::default().env("LD_LIBRARY_PATH", path));
    assert_eq!(mount.read("", "devices"), "");
    for entry in fs::read_dir(artifacts().simgpu()).expect("the simulated driver is built") {
        let entry = entry.expect("the directory is readable");
        let link = libraries.path().join(entry.file_name());
        std::os::unix::fs::symlink(entry.path(), link).expect("the directory is ours");
    }
    wait_until("the daemon has found the GPU", || {
        mount.read("", "devices").starts_with("0 GPU-")
    });
    let mut shell = DriverShell::start(&mount);
    mount.write(format!("{}/0", shell.pid()), "memory.limit", "1M");
    assert_eq!(shell.ask("alloc linear 1048577"), "error 2");
    assert_eq!(shell.ask("alloc linear 1048576"), "ok 0");
}
