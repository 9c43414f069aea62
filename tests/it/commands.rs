//! Tests commands, scripts and the daemon with missing files and wrong arguments.

use std::fs;
use std::path::Path;

use support::{Config, Mount, artifacts, wait_until};

use crate::driver::DriverShell;
use crate::rules::ALICE;

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

/// Runs each command that repeats an argument in a message.
#[test]
fn arguments_cannot_control_the_terminal() {
    let mount = Mount::new();
    let odd = "a\u{1b}[2J\u{9b}\u{7}";
    for words in [
        &["get", odd, "memory.current"][..],
        &["set", odd, "memory.limit", "1"],
        &["set", "memory.limit", odd],
        &["explain", odd],
        &["kill", odd],
        &["freeze", odd],
        &["suspend", odd],
        &["wait", odd, "populated"],
        &["ls", "--gpu", odd],
        &["ls", "--sort", odd],
        &["events", odd],
        &["check-config", odd],
        &["report", "--since", odd],
        &["run", "--", odd],
        &["hold", odd],
        &[odd],
    ] {
        let output = mount.gcgroupfs(words).output().expect("gcgroupfs runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(
            !said.is_empty() && !said.contains(is_control),
            "{words:?}: {said:?}"
        );
    }
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
    let last = |edits: &serde_json::Value| {
        let last = edits["mounts"]
            .as_array()
            .and_then(|mounts| mounts.last())
            .cloned();
        let last = last.expect("a mount");
        ["hostPath", "containerPath"].map(|key| last[key].as_str().expect("text").to_owned())
    };
    assert_eq!(last(&edits), ["/somewhere", "/run/gcgroupfs"]);
    assert_eq!(write("/somewhere/gcgroup.sock")["env"], serde_json::Value::Null);
    let socket = mount.socket().display().to_string();
    let own = mount
        .socket()
        .parent()
        .expect("a directory")
        .display()
        .to_string();
    assert_eq!(last(&write(&socket)), [own.as_str(), "/run/gcgroupfs"]);
    let shared = directory.path().join("gcgroup.sock").display().to_string();
    for socket in [
        "/x.sock",
        "/run/gcgroup.sock",
        "/tmp/x.sock",
        "/tmp/../run/x.sock",
        &shared,
    ] {
        let name = Path::new(socket)
            .file_name()
            .expect("a name")
            .to_str()
            .expect("text");
        assert_eq!(last(&write(socket)), [socket, &format!("/run/gcgroupfs/{name}")]);
    }
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
