//! Regression tests for faults found in similar tools, concerning ways around the governance.

use support::{Config, Mount, artifacts};

use crate::calls::Calls;
use crate::driver::{Dir, DriverShell, driver_shell};
use crate::rules::Ruled;

const MIB: u64 = 1 << 20;

#[test]
fn every_launching_function_is_counted() {
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1));
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    let zeros = " 0 0 0 0 0 0 0 0 0 0 0";
    let mut seen = 0;
    for name in [
        "cuLaunchKernel",
        "cuLaunchKernel_ptsz",
        "cuLaunchKernelEx",
        "cuLaunchKernelEx_ptsz",
        "cuLaunchCooperativeKernel",
        "cuLaunchCooperativeKernel_ptsz",
        "cuLaunchCooperativeKernelMultiDevice",
        "cuLaunch",
        "cuLaunchGrid",
        "cuLaunchGridAsync",
    ] {
        // This driver refuses launches by the three oldest functions, which count as none.
        seen += u64::from(calls.call(&format!("{name}{zeros}")).is_ok());
        assert_eq!(dir.key("compute.stat", "nr_launches"), seen, "{name}");
    }
    assert_eq!(seen, 7);
    for (number, name) in ["cuGraphLaunch", "cuGraphLaunch_ptsz"].into_iter().enumerate() {
        let _ = calls.call(&format!("{name}{zeros}"));
        assert_eq!(dir.key("compute.stat", "nr_graphs"), number as u64 + 1, "{name}");
    }
}

#[test]
fn limit_survives_a_lost_environment() {
    let mount = Mount::new();
    let mut command = mount.command(driver_shell());
    command.env("GCGROUP_MEMORY_LIMIT", "4M");
    let mut shell = DriverShell::spawn(command);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(dir.number("memory.limit"), 4 * MIB);
    // A later setting in the daemon takes precedence over the environment, also in the next program.
    dir.write("memory.limit", 2 * MIB);
    shell.exec_at(&mount);
    assert_eq!(dir.number("memory.limit"), 2 * MIB);
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB + 1)), "error 2");
}

/// Shell script that runs `env -i` before a program where every program is governed. Only the variables of
/// the simulated driver are kept.
const STRIPPED: &str = r#"
set -e
mkdir "$DIRECTORY/etc"
cp -a /etc/. "$DIRECTORY/etc"
echo "$LIBRARY" > "$DIRECTORY/etc/ld.so.preload"
mount -t tmpfs none /run
mkdir -p "$(dirname "$SOCKET")"
ln -s "$GIVEN" "$SOCKET"
mount --bind "$DIRECTORY/etc" /etc
exec env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" SIMGPU_DIR="$SIMGPU_DIR" SIMGPU_CONTEXT_MEMORY=0 "$0"
"#;

#[test]
fn emptied_environment_does_not_avoid_governance() {
    let ruled = Ruled::new("[[rule]]\nmatch.exe = \"**/driver_shell*\"\nprocess.memory.limit = \"2M\"\n");
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = ruled.mount.bare_command("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", STRIPPED])
        .arg(driver_shell())
        .env("DIRECTORY", directory.path())
        .env("LIBRARY", artifacts().preload())
        .env("SOCKET", gcgroup_abi::DEFAULT_SOCKET)
        .env("GIVEN", ruled.mount.socket());
    let mut shell = DriverShell::spawn(command);
    let environment = std::fs::read(format!("/proc/{}/environ", shell.pid())).expect("the process lives");
    assert!(!environment.windows(8).any(|word| word == b"GCGROUP_"));
    assert!(!environment.windows(10).any(|word| word == b"LD_PRELOAD"));
    assert_eq!(ruled.limit(&shell), 2 * MIB);
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB + 1)), "error 2");
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "ok 0");
}

#[test]
fn control_block_is_writable_by_no_process() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", shell.pid())).expect("the process lives");
    let control: Vec<_> = maps
        .lines()
        .filter(|line| line.contains("gcgroup-control"))
        .collect();
    assert!(!control.is_empty(), "{maps}");
    for line in control {
        let mut words = line.split_whitespace();
        let range = words.next().expect("a range");
        assert_eq!(words.next(), Some("r--s"), "{line}");
        // Even root gets no writable mapping, because the file is sealed.
        let path = format!("/proc/{}/map_files/{range}", shell.pid());
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
        let written = file.and_then(|file| std::os::unix::fs::FileExt::write_at(&file, &[0xff; 64], 0));
        assert!(written.is_err(), "{line}");
    }
    use std::os::unix::fs::PermissionsExt as _;
    for entry in std::fs::read_dir(mount.state_dir())
        .expect("the directory exists")
        .flatten()
    {
        let mode = entry.metadata().expect("the file exists").permissions().mode();
        assert_eq!(mode & 0o022, 0, "{}", entry.path().display());
    }
}
