//! Tests hooks, preload libraries and daemons of different versions, and a state file of another format:
//! programs continue in every combination.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use gcgroup_abi::VERSION;
use gcgroup_abi::message::RegistrationReply;
use support::{Config, Governed, Mount, artifacts, c_program, wait_until};
use tempfile::TempDir;

use crate::answers::Answers;
use crate::driver::{Dir, DriverShell, driver_shell, governed_pids};

const MIB: u64 = 1 << 20;

/// Another version than the daemon's.
const OTHER: u32 = VERSION - 1;

/// Returns a directory with the preload library, and a hook of another version.
fn mixed() -> TempDir {
    let directory = TempDir::new().expect("a directory");
    let hook = c_program("other_hook.c", &["-shared", "-fPIC"]);
    for (from, name) in [
        (artifacts().preload(), "libgcgroup.so"),
        (hook, "libgcgroup_hook.so"),
    ] {
        fs::copy(from, directory.path().join(name)).expect("the file can be copied");
    }
    directory
}

fn with_libraries(mount: &Mount, libraries: &TempDir) -> Command {
    let mut command = mount.command(driver_shell());
    command.env("LD_PRELOAD", libraries.path().join("libgcgroup.so"));
    command
}

/// Asserts that a process works, governed or not.
#[track_caller]
fn assert_works(shell: &mut DriverShell) {
    let id = shell.ask("alloc linear 4096");
    let id = id.strip_prefix("ok ").expect("allocated");
    for command in [&format!("free {id}"), "spin 1 1", "sync"] {
        assert_eq!(shell.ask(command), "ok", "{command}");
    }
}

#[test]
fn libraries_of_two_versions_leave_the_program_to_the_driver() {
    let mount = Mount::new();
    let libraries = mixed();
    let mut shell = DriverShell::spawn(with_libraries(&mount, &libraries));
    assert_works(&mut shell);
    assert!(governed_pids(&mount).is_empty());
    assert!(
        shell
            .stderr()
            .contains("libgcgroup_hook.so is of another version"),
        "{}",
        shell.stderr()
    );
    let neighbour = DriverShell::start(&mount);
    wait_until("only the neighbour is governed", || {
        governed_pids(&mount) == [neighbour.pid()]
    });
    assert_works(&mut shell);
    shell.quit();
}

#[test]
fn required_program_is_refused_where_the_hook_cannot_be_loaded() {
    let mount = Mount::new();
    let (missing, of_another_version) = (mixed(), mixed());
    fs::remove_file(missing.path().join("libgcgroup_hook.so")).expect("the file is there");
    for libraries in [&missing, &of_another_version] {
        for (required, answer) in [("1", " 802\n"), ("0", " 0\n")] {
            let mut command = with_libraries(&mount, libraries);
            command.env("GCGROUP_REQUIRED", required).stdin(Stdio::null());
            let output = command.output().expect("the command runs");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.starts_with("ready ") && said.ends_with(answer), "{said}");
        }
    }
    assert!(governed_pids(&mount).is_empty());
}

/// Tests a program that loaded the preload library before an upgrade and loads the hook later, at its first
/// look-up of a driver function.
#[test]
fn hook_replaced_before_it_is_loaded_governs() {
    let mount = Mount::new();
    let libraries = TempDir::new().expect("a directory");
    for library in [artifacts().preload(), artifacts().hook()] {
        let name = library.file_name().expect("a name");
        fs::copy(&library, libraries.path().join(name)).expect("the file can be copied");
    }
    let program = c_program("late.c", &["-ldl"]);
    let mut command = mount.command(program);
    command.env("LD_PRELOAD", libraries.path().join("libgcgroup.so"));
    let mut program = Governed::spawn(command);
    program.expect("loaded");
    for name in ["libgcgroup.so", "libgcgroup_hook.so"] {
        let path = libraries.path().join(name);
        let fresh = path.with_extension("new");
        fs::copy(&path, &fresh).expect("the file can be copied");
        fs::rename(fresh, path).expect("the file can be replaced");
    }
    program.say("go");
    assert_eq!(program.line().as_deref(), Some("0"));
    wait_until("the process is governed", || mount.governs(program.pid()));
    program.say("end");
    assert!(program.wait().success());
}

#[test]
fn hook_is_not_governed_by_a_daemon_of_another_version() {
    let mut mount = Mount::new();
    mount.stop();
    let refusals = [
        RegistrationReply {
            abi: OTHER,
            status: libc::EPROTONOSUPPORT.unsigned_abs(),
            bars_cuda: false,
        },
        // No real daemon sends this.
        RegistrationReply {
            abi: OTHER,
            status: 0,
            bars_cuda: false,
        },
    ];
    for reply in refusals {
        // A new listener, because a hook refused by the last one may have tried again.
        let other = Answers::at(&mount.socket());
        let command = mount.command(driver_shell());
        let mut shell = std::thread::scope(|scope| {
            let answers = scope.spawn(|| other.accept().answer(reply, None));
            let shell = DriverShell::spawn(command);
            drop(answers.join().expect("the thread ends without a panic"));
            shell
        });
        assert_works(&mut shell);
        let complaint = format!("the daemon speaks version {OTHER}, this hook {VERSION}: not governed");
        wait_until("the hook reports the version mismatch", || {
            shell.stderr().contains(&complaint)
        });
        assert_eq!(shell.stderr().matches(&complaint).count(), 1);
        shell.quit();
        fs::remove_file(mount.socket()).expect("the file can be removed");
    }
}

/// Returns the id of the current boot, as the state file contains it.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("proc(5)")
}

fn state_file(mount: &Mount) -> PathBuf {
    mount.state_dir().join("settings.jsonl")
}

#[test]
fn unknown_state_is_reported_once_and_startup_succeeds() {
    let future = format!(
        "{{\"gcgroupfs_settings\":4096,\"boot_id\":\"{}\"}}\n\x01\x02\n",
        boot_id().trim()
    );
    for text in [future.as_str(), "[mount]\npath = 1\n", "\0\0\0\0"] {
        for supervised in [false, true] {
            let config = if supervised {
                Config::default().arg("--supervise")
            } else {
                Config::default()
            };
            let mut mount = Mount::with(config);
            mount.stop();
            fs::write(state_file(&mount), text).expect("the file is writable");
            mount.restart();
            let shell = DriverShell::start(&mount);
            wait_until("the process is governed", || {
                governed_pids(&mount) == [shell.pid()]
            });
            Dir::of(&mount, shell.pid()).write("memory.limit", MIB);
            mount.kill9();
            mount.restart();
            wait_until("the process has registered again", || {
                governed_pids(&mount) == [shell.pid()]
            });
            assert_eq!(Dir::of(&mount, shell.pid()).number("memory.limit"), MIB);
            let fault = "damaged or missing";
            assert_eq!(mount.log().matches(fault).count(), 1, "{}", mount.log());
            assert_eq!(
                mount.log().matches("the daemon has ended").count(),
                0,
                "{}",
                mount.log()
            );
        }
    }
}
