//! Tests hooks and daemons of different versions, and the state of an earlier daemon: programs continue in
//! every combination.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use gcgroup_abi::VERSION;
use gcgroup_abi::message::RegistrationReply;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use support::{Config, Governed, Mount, artifacts, c_program, repository, wait_until};
use tempfile::TempDir;

use crate::answers::Answers;
use crate::driver::{Dir, DriverShell, driver_shell, governed_pids};

const MIB: u64 = 1 << 20;

/// Version of the hook in the fixtures.
const OLD: u32 = 2;

/// Returns a directory with the libraries of version [`OLD`].
fn old_libraries() -> TempDir {
    let directory = TempDir::new().expect("a directory");
    for name in ["libgcgroup.so", "libgcgroup_hook.so"] {
        let packed = repository().join(format!("tests/fixtures/hook-abi{OLD}/{name}.gz"));
        let output = Command::new("gzip")
            .arg("-dc")
            .arg(&packed)
            .output()
            .expect("gzip runs");
        assert!(output.status.success(), "{}", packed.display());
        fs::write(directory.path().join(name), output.stdout).expect("the file is writable");
    }
    directory
}

fn with_old_libraries(mount: &Mount, libraries: &TempDir) -> Command {
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
fn old_hook_is_not_governed_and_its_program_works() {
    const { assert!(VERSION > OLD, "the old version is not older") }
    let mut mount = Mount::new();
    let libraries = old_libraries();
    let mut shell = DriverShell::spawn(with_old_libraries(&mount, &libraries));
    // Its stdout contains only its own lines.
    assert_works(&mut shell);
    let line =
        format!("of user 0 is not governed: its hook speaks version {OLD}, this daemon version {VERSION}");
    wait_until("the daemon reports the version mismatch", || {
        mount.log().contains(&line)
    });
    let complaint = format!("the daemon speaks version {VERSION}, this hook {OLD}: not governed");
    wait_until("the hook reports the version mismatch", || {
        shell.stderr().contains(&complaint)
    });
    assert!(governed_pids(&mount).is_empty());
    mount.restart();
    // Hook and daemon have met by now; each logs the mismatch once more.
    wait_until("the next daemon reports the version mismatch", || {
        mount.log().matches(&line).count() == 2
    });
    assert_works(&mut shell);
    let new = DriverShell::start(&mount);
    assert_eq!(
        governed_pids(&mount),
        [new.pid()],
        "the process with a new hook is not governed"
    );
    assert_eq!(shell.stderr().matches("not governed").count(), 1);
    assert_works(&mut shell);
    assert_eq!(mount.log().matches(&line).count(), 2, "{}", mount.log());
    shell.quit();
}

#[test]
fn old_hook_with_required_governance_is_refused() {
    let mount = Mount::new();
    let libraries = old_libraries();
    let mut command = with_old_libraries(&mount, &libraries);
    command.env("GCGROUP_REQUIRED", "1");
    let output = command.output().expect("the command runs");
    // CUDA_ERROR_SYSTEM_NOT_READY, returned by cuInit.
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.starts_with("ready ") && said.ends_with(" 802\n") && said.lines().count() == 1,
        "{said}"
    );
}

/// Returns a directory with libraries of two versions, as seen by a program that loads one before and the
/// other after an upgrade.
fn mixed(preload_is_old: bool) -> TempDir {
    let directory = old_libraries();
    let (name, new) = match preload_is_old {
        true => ("libgcgroup_hook.so", artifacts().hook()),
        false => ("libgcgroup.so", artifacts().preload()),
    };
    fs::copy(new, directory.path().join(name)).expect("the file can be copied");
    directory
}

#[test]
fn libraries_of_two_versions_leave_the_program_to_the_driver() {
    let mount = Mount::new();
    for preload_is_old in [false, true] {
        let libraries = mixed(preload_is_old);
        let mut shell = DriverShell::spawn(with_old_libraries(&mount, &libraries));
        assert_works(&mut shell);
        assert!(governed_pids(&mount).is_empty());
        let neighbour = DriverShell::start(&mount);
        wait_until("only the neighbour is governed", || {
            governed_pids(&mount) == [neighbour.pid()]
        });
        assert_works(&mut shell);
        shell.quit();
        drop(neighbour);
        wait_until("the neighbour is no longer governed", || {
            governed_pids(&mount).is_empty()
        });
    }
}

#[test]
fn required_program_is_refused_where_the_hook_cannot_be_loaded() {
    let mount = Mount::new();
    let missing = mixed(false);
    fs::copy(artifacts().preload(), missing.path().join("libgcgroup.so")).expect("the file can be copied");
    fs::remove_file(missing.path().join("libgcgroup_hook.so")).expect("the file is there");
    let of_another_version = old_libraries();
    let preload = of_another_version.path().join("libgcgroup.so");
    fs::copy(artifacts().preload(), preload).expect("the file can be copied");
    for libraries in [&missing, &of_another_version] {
        for (required, answer) in [("1", " 802\n"), ("0", " 0\n")] {
            let mut command = with_old_libraries(&mount, libraries);
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

/// Returns the control block of a daemon of version [`OLD`]: a limit of 1 MiB for the process, all devices
/// frozen, a grace of 100 ms.
fn old_control() -> OwnedFd {
    let mut block = vec![0; 12288];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"gcgroup\x01");
    put(8, &OLD.to_le_bytes());
    put(24, &MIB.to_le_bytes());
    put(40, &100_u32.to_le_bytes());
    for device in (0..64).map(|index| 256 + 128 * index) {
        // The gate, its generation, and the device's limit.
        put(device, &3_u32.to_le_bytes());
        put(device + 4, &1_u32.to_le_bytes());
        put(device + 80, &u64::MAX.to_le_bytes());
    }
    let file = memfd_create("control", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).expect("a memfd");
    File::from(file.try_clone().expect("a descriptor"))
        .write_all(&block)
        .expect("memory");
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(
        &file,
        FcntlArg::F_ADD_SEALS(seals | SealFlag::F_SEAL_FUTURE_WRITE),
    )
    .expect("the seals can be added");
    file
}

#[test]
fn work_frozen_by_old_daemon_resumes_and_limit_holds() {
    let mut mount = Mount::new();
    mount.stop();
    let libraries = old_libraries();
    let old = Answers::at(&mount.socket());
    let command = with_old_libraries(&mount, &libraries);
    let (connection, mut shell) = std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            old.accept().answer(
                RegistrationReply {
                    abi: OLD,
                    status: 0,
                    bars_cuda: false,
                },
                Some(&old_control()),
            )
        });
        let shell = DriverShell::spawn(command);
        (answers.join().expect("the thread ends without a panic"), shell)
    });
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "error 2");
    shell.tell("spin 1 1");
    drop((old, connection));
    fs::remove_file(mount.socket()).expect("the file can be removed");
    mount.restart();
    assert_eq!(
        shell.answer(),
        "ok",
        "the process stayed frozen after the grace time"
    );
    wait_until("the daemon reports the version mismatch", || {
        mount.log().contains(&format!("its hook speaks version {OLD}"))
    });
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), "error 2");
    assert_works(&mut shell);
    assert!(governed_pids(&mount).is_empty());
}

#[test]
fn new_hook_is_not_governed_by_an_old_daemon() {
    let mut mount = Mount::new();
    mount.stop();
    let refusals = [
        RegistrationReply {
            abi: OLD,
            status: libc::EPROTONOSUPPORT.unsigned_abs(),
            bars_cuda: false,
        },
        // No real daemon sends this: success with a block of an unusable version.
        RegistrationReply {
            abi: OLD,
            status: 0,
            bars_cuda: false,
        },
    ];
    for reply in refusals {
        // A new listener, because a hook refused by the last one may have tried again.
        let old = Answers::at(&mount.socket());
        let command = mount.command(driver_shell());
        let mut shell = std::thread::scope(|scope| {
            let answers = scope.spawn(|| {
                old.accept()
                    .answer(reply, (reply.status == 0).then(old_control).as_ref())
            });
            let shell = DriverShell::spawn(command);
            drop(answers.join().expect("the thread ends without a panic"));
            shell
        });
        assert_works(&mut shell);
        let complaint = format!("the daemon speaks version {OLD}, this hook {VERSION}: not governed");
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
                mount.log().matches("the daemon was ").count(),
                0,
                "{}",
                mount.log()
            );
        }
    }
}
