//! Tests that podman containers are governed through a CDI specification and otherwise unchanged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driver::DriverShell;
use support::{Governed, Mount, artifacts, wait_until};

/// A CDI specification with a unique name in the directory where tools look for it. Dropping it removes the
/// file.
struct Device {
    file: PathBuf,
    name: String,
}

impl Device {
    fn new(mount: &Mount) -> Self {
        // A vendor name starts with letters; the pid makes the name unique among tests.
        let number = std::process::id();
        let name = format!("gcgroupfs-test{number}/hook");
        let output = mount.gcgroupfs(&["cdi"]).output().expect("the command runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains("\"gcgroupfs/hook\""), "{text}");
        let text = text.replace("\"gcgroupfs/hook\"", &format!("{name:?}"));
        let directory = Path::new("/var/run/cdi");
        fs::create_dir_all(directory).expect("a directory");
        let file = directory.join(format!("gcgroupfs-test{number}.json"));
        fs::write(&file, text).expect("the file is writable");
        Self { file, name }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// Runs a program of this machine with `podman run`, in a container with all of this machine's files. Only
/// the device adds anything of gcgroupfs.
fn podman(mount: &Mount, device: &Device, environment: &[(&str, &str)], program: &[&str]) -> Command {
    let mut command = Command::new("podman");
    command.args(["--runtime", "runc", "run", "--rm", "-i", "--network=none"]);
    command.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
    command.arg(format!("--device={}=all", device.name));
    let simgpu = mount.simgpu_dir();
    // The simulated GPU is a directory; a real GPU is a device file.
    for shared in [simgpu.as_path(), artifacts().dist()] {
        command.arg(format!("-v={0}:{0}", shared.display()));
    }
    command.arg(format!("--env=SIMGPU_DIR={}", simgpu.display()));
    command.arg(format!(
        "--env=LD_LIBRARY_PATH={}",
        artifacts().simgpu().display()
    ));
    command.arg("--env=SIMGPU_CONTEXT_MEMORY=0");
    for (name, value) in environment {
        command.arg(format!("--env={name}={value}"));
    }
    command.args(["--rootfs", "/:O"]).args(program);
    command
}

/// Waits for exactly one governed process and returns its pid.
fn governed(mount: &Mount) -> String {
    wait_until("exactly one process is governed", || {
        mount.read("", "gcgroup.procs").lines().count() == 1
    });
    mount.read("", "gcgroup.procs").trim().to_owned()
}

#[test]
fn root_in_another_pid_namespace_changes_nothing_by_socket_or_mount() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let pid = shell.pid();
    let gcgroupfs = artifacts().gcgroupfs();
    let (at, socket) = (mount.path(), mount.socket());
    let (at, socket) = (at.display(), socket.display());
    for (command, is_done) in [
        (format!("cat {at}/{pid}/compute.freeze"), true),
        (format!("echo 1 > {at}/{pid}/compute.freeze"), false),
        (format!("mkdir {at}/team"), false),
        (format!("chmod 700 {at}"), false),
        (
            format!(
                "{} set --socket {socket} {pid}/compute.freeze 1",
                gcgroupfs.display()
            ),
            false,
        ),
    ] {
        let inside = ["--pid", "--fork", "sh", "-c", &command];
        let output = Command::new("unshare").args(inside).output();
        let output = output.expect("unshare starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), is_done, "{command}: {said}");
    }
    assert_eq!(mount.read(pid, "compute.freeze"), "0");
    mount.write(pid, "compute.priority", "9");
}

#[test]
fn container_is_governed_and_its_root_is_unprivileged() {
    let mount = Mount::new();
    let device = Device::new(&mount);
    mount
        .gcgroupfs(&["mkdir", "team"])
        .status()
        .expect("the command runs");
    let load = artifacts().load();
    let load = load.to_str().expect("text");
    let settings = [("GCGROUP_MEMORY_LIMIT", "1M"), ("GCGROUP_GROUP", "team")];
    let mut inside = Governed::spawn(podman(&mount, &device, &settings, &[load, "obey"]));
    inside.expect("ready");

    let pid = governed(&mount);
    assert_eq!(mount.read(&pid, "memory.limit").trim(), "1048576");
    assert_eq!(
        mount.read("team", "gcgroup.procs"),
        "",
        "the container chose its group"
    );
    assert!(
        inside
            .ask("alloc linear 2097152")
            .contains("CUDA_ERROR_OUT_OF_MEMORY")
    );
    mount.write(&pid, "memory.limit", "4M");
    assert!(
        !inside
            .ask("alloc linear 2097152")
            .contains("CUDA_ERROR_OUT_OF_MEMORY")
    );
    assert_eq!(mount.read(&pid, "memory.current").trim(), "2097152");

    // Root in another container may read everything and change nothing.
    let gcgroupfs = artifacts().gcgroupfs();
    let gcgroupfs = gcgroupfs.to_str().expect("text");
    let limit = format!("{pid}/memory.limit");
    let ask = |arguments: &[&str]| {
        let program = [&[gcgroupfs][..], arguments].concat();
        let output = podman(&mount, &device, &[], &program)
            .output()
            .expect("podman runs");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    assert_eq!(ask(&["get", &limit]), (true, "4194304\n".to_owned()));
    for change in [
        &["set", &limit, "max"][..],
        &["mkdir", "mine"],
        &["rmdir", "team"],
    ] {
        let (done, text) = ask(change);
        assert!(!done && text.contains("Permission denied"), "{change:?}: {text}");
    }
    assert_eq!(mount.read(&pid, "memory.limit").trim(), "4194304");
    drop(inside);
}
