//! Tests the control files as GVM's scripts find them: `gcgroupfs gvm` and `gcgroupfs mount --view gvm`.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use support::{Config, Governed, Mount, artifacts, tree_for_all, wait_until};

use crate::delegation::{ALICE, shared, shell_of};
use crate::driver::{DriverShell, driver_shell};
use crate::own_daemon::PREPARE;

const MIB: u64 = 1 << 20;
const UNLIMITED: &str = "18446744073709551615";

/// A mount of the view. Dropping it ends the process that serves it.
struct View<'m> {
    mount: &'m Mount,
    served: Governed,
}

impl<'m> View<'m> {
    fn new(mount: &'m Mount) -> Self {
        let mut command = Command::new("sh");
        command
            // The view says on standard error that it serves.
            .args(["-c", "exec \"$0\" mount --view gvm \"$1\" 2>&1"])
            .arg(artifacts().gcgroupfs())
            .arg(point(mount))
            .env("GCGROUP_SOCKET", mount.socket());
        let mut served = Governed::spawn(command);
        served.expect("gcgroupfs: ready:");
        Self { mount, served }
    }

    fn path(&self, below: &str) -> PathBuf {
        point(self.mount).join(below)
    }

    /// Returns the files and directories below, sorted.
    fn names(&self, below: &str) -> Vec<String> {
        names(&self.path(below))
    }

    fn read(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).expect("a readable file")
    }

    /// Performs one write(2); returns its errno.
    fn write(&self, below: &str, data: &[u8]) -> Result<(), i32> {
        let file = fs::OpenOptions::new().write(true).open(self.path(below));
        let written = file.and_then(|mut file| file.write_all(data));
        written.map_err(|error| error.raw_os_error().unwrap_or(0))
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        let _ = umount2(&point(self.mount), MntFlags::MNT_DETACH);
        self.served.wait();
    }
}

fn point(mount: &Mount) -> PathBuf {
    mount.root().join("gvm")
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a readable directory");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

/// Starts a process that holds memory of a GPU.
fn on_gpu(mount: &Mount, gpu: u32, bytes: u64) -> DriverShell {
    let mut command = mount.command(driver_shell());
    command.env("CUDA_VISIBLE_DEVICES", gpu.to_string());
    let mut shell = DriverShell::spawn(command);
    assert_eq!(shell.ask(&format!("alloc linear {bytes}")), "ok 0");
    shell
}

/// Runs a script of a user of GVM.
fn script(mount: &Mount, text: &str) -> Output {
    let mut command = mount.gcgroupfs(&["gvm", "--", "bash", "-c", text]);
    command.env("LC_ALL", "C").output().expect("the command runs")
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{said}{errors}");
    said
}

#[test]
fn script_of_gvm_sets_and_reads_a_process_on_the_second_gpu() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 3));
    let mut process = on_gpu(&mount, 1, 3 * MIB);
    let pid = process.pid();
    let said = succeeds(&script(
        &mount,
        &format!(
            "set -e
            cd /sys/kernel/debug/nvidia-uvm
            chmod -R 777 . && chown -R 1000:1000 .
            cat processes/list
            ls processes processes/{pid}
            find processes -mindepth 2 -name memory.current
            cd processes/{pid}/8
            cat memory.limit memory.limit.high memory.limit.low memory.current compute.priority compute.freeze
            echo 6000000000 | tee memory.limit.high > memory.limit
            cat memory.limit
            printf 4194304 > memory.limit
            echo 4000000 > memory.limit.low
            echo 2000000 > memory.limit.min
            echo 2 > compute.priority
            echo 1 > compute.freeze
            cat gcgroup.stat"
        ),
    ));
    let expected = format!(
        "PID\n{pid}\nprocesses:\n{pid}\nlist\n\nprocesses/{pid}:\n8\nprocesses/{pid}/8/memory.current\n\
         {UNLIMITED}\n{UNLIMITED}\n0\n{}\n8\n0\n6000000000\n\
         nr_submitted_kernels: 0\nnr_ended_kernels: 0\nnr_pending_kernels: 0\n",
        3 * MIB
    );
    assert_eq!(said, expected);
    for (file, value) in [
        ("memory.limit", "4194304"),
        ("memory.low", "4000000"),
        ("memory.min", "2000000"),
        ("compute.priority", "2"),
        ("compute.freeze", "1"),
    ] {
        assert_eq!(mount.read(format!("{pid}/1"), file), value, "{file}");
        assert_ne!(mount.read(format!("{pid}/0"), file), value, "{file}");
    }
    assert_eq!(process.ask(&format!("alloc linear {}", 2 * MIB)), "error 2");
    assert_eq!(
        names(Path::new("/sys/kernel/debug"))
            .iter()
            .find(|name| *name == "nvidia-uvm"),
        None
    );
}

#[test]
fn values_are_accepted_and_refused_as_by_gvm() {
    let mount = Mount::new();
    let process = on_gpu(&mount, 0, MIB);
    let view = View::new(&mount);
    let directory = format!("processes/{}/0", process.pid());
    let (invalid, range) = (Err(libc::EINVAL), Err(libc::ERANGE));
    for (file, text, expected, shown) in [
        ("memory.limit", "+6000000001", Ok(()), "6000000001"),
        ("memory.limit", "6G", invalid, "6000000001"),
        ("memory.limit", "max", invalid, "6000000001"),
        ("memory.limit", " 7\n", invalid, "6000000001"),
        ("memory.limit", "-1", invalid, "6000000001"),
        ("memory.limit", "0x100", invalid, "6000000001"),
        ("memory.limit", "18446744073709551616", range, "6000000001"),
        (
            "memory.limit",
            "00000000000000000000000000000001",
            invalid,
            "6000000001",
        ),
        ("memory.limit.low", "6000000002", invalid, "0"),
        ("memory.limit.low", "6000000000\n", Ok(()), "6000000000"),
        ("memory.limit.min", "6000000001", invalid, "0"),
        ("memory.limit.min", "5000000000", Ok(()), "5000000000"),
        ("memory.limit.high", "5999999999", invalid, "6000000001"),
        ("memory.limit.low", "4999999999", invalid, "6000000000"),
        ("memory.limit", "0", Ok(()), "0"),
        ("memory.limit.high", UNLIMITED, Ok(()), UNLIMITED),
        ("compute.priority", "0", Ok(()), "0"),
        ("compute.priority", "17", invalid, "0"),
        ("compute.priority", "16", Ok(()), "15"),
        ("compute.priority", "default", invalid, "15"),
        ("compute.freeze", "2", invalid, "0"),
        ("compute.freeze", "1\n", Ok(()), "1"),
        ("compute.freeze", "", Ok(()), "1"),
        ("memory.current", "1", Err(libc::EACCES), "1048576"),
    ] {
        let path = format!("{directory}/{file}");
        assert_eq!(view.write(&path, text.as_bytes()), expected, "{file} {text:?}");
        assert_eq!(view.read(&path), format!("{shown}\n"), "{file} {text:?}");
    }
    for (file, first) in [
        ("memory.watermark.high", 95),
        ("memory.watermark.low", 85),
        ("eviction.grace_period_ms", 100),
        ("eviction.notify_throttle_ms", 1000),
    ] {
        assert_eq!(view.read(file), format!("{first}\n"));
        assert_eq!(view.write(file, b"90%"), invalid);
        assert_eq!(view.write(file, b"90\n"), Ok(()));
        assert_eq!(view.read(file), "90\n");
        if file == "eviction.grace_period_ms" {
            assert_eq!(mount.read("", "memory.notice.grace"), "90");
            assert_eq!(view.write(file, b"5000"), Ok(()));
            assert_eq!(view.read(file), "3000\n");
        }
    }
}

#[test]
fn directories_are_those_of_living_processes_and_used_gpus() {
    let mut mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let empty: [&str; 0] = [];
    {
        let view = View::new(&mount);
        assert_eq!(view.names("processes"), ["list"]);
        assert_eq!(view.read("processes/list"), "PID\n");
        let idle = DriverShell::start(&mount);
        let pid = idle.pid();
        assert_eq!(view.names(&format!("processes/{pid}")), empty);
        for name in ["0", "1", "8", "16", "00", "+8", "4294967296"] {
            assert!(!view.path(&format!("processes/{pid}/{name}")).exists(), "{name}");
        }
        for name in ["1", "0", "x", "processes", "18446744073709551615"] {
            assert!(!view.path(&format!("processes/{name}")).exists(), "{name}");
        }
        let busy = on_gpu(&mount, 1, MIB);
        let mut both = [pid, busy.pid()].map(|pid| pid.to_string()).to_vec();
        both.sort();
        both.push("list".to_owned());
        assert_eq!(view.names("processes"), both);
        let directory = format!("processes/{}/8", busy.pid());
        assert!(view.path(&directory).is_dir());
        let open = fs::File::open(view.path(&format!("{directory}/memory.current"))).expect("a file");
        busy.kill9();
        wait_until("the process has left", || !view.path(&directory).exists());
        let read = std::io::read_to_string(open).expect_err("its process has ended");
        assert_eq!(read.raw_os_error(), Some(libc::ENOENT));
    }
    // The view outlives the daemon.
    let process = on_gpu(&mount, 0, MIB);
    let file = format!("processes/{}/0/memory.current", process.pid());
    let (view, socket) = (point(&mount), mount.socket());
    let mut served = Command::new(artifacts().gcgroupfs())
        .args(["mount", "--view", "gvm"])
        .arg(&view)
        .env("GCGROUP_SOCKET", socket)
        .spawn()
        .expect("the view starts");
    let read = || fs::read_to_string(view.join(&file)).ok();
    wait_until("the view is mounted", || read().as_deref() == Some("1048576\n"));
    mount.kill9();
    assert_eq!(read(), None);
    mount.restart();
    wait_until("the process is back", || read().as_deref() == Some("1048576\n"));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(served.id().cast_signed()),
        Signal::SIGTERM,
    )
    .expect("it runs");
    assert!(served.wait().expect("a status").success());
    assert_eq!(names(&view), empty, "it is unmounted");
}

#[test]
fn user_reaches_and_changes_what_the_daemon_lets_that_user() {
    let mount = shared();
    let (mut own, other) = (shell_of(&mount, ALICE), on_gpu(&mount, 0, MIB));
    assert_eq!(own.ask(&format!("alloc linear {MIB}")), "ok 0");
    let run = |text: &str| {
        let id = ALICE.to_string();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", PREPARE])
            .arg(mount.root())
            .args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"])
            .arg(tree_for_all(mount.root()).join("bin/gcgroupfs"))
            .args(["gvm", "bash", "-c", text])
            .env("GCGROUP_SOCKET", mount.socket())
            .env("LC_ALL", "C");
        let output = command.output().expect("the command runs");
        fs::remove_dir(mount.root().join("dev")).expect("it was mounted in a namespace only");
        output
    };
    let base = "/sys/kernel/debug/nvidia-uvm/processes";
    let said = succeeds(&run(&format!(
        "set -e; id -u; echo 2000000 > {base}/{0}/0/memory.limit; cat {base}/{0}/0/memory.limit {base}/{1}/0/memory.current",
        own.pid(),
        other.pid()
    )));
    assert_eq!(said, format!("{ALICE}\n2000000\n{MIB}\n"));
    assert_eq!(own.ask(&format!("alloc linear {MIB}")), "error 2");
    let refused = run(&format!("echo 1 > {base}/{}/0/compute.freeze", other.pid()));
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(mount.read(other.pid(), "compute.freeze"), "0");
    // What root closes stays closed.
    let closed = mount.path().join(other.pid().to_string());
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("root may close it");
    let read = run(&format!("cat {base}/{}/0/memory.current", other.pid()));
    assert!(!read.status.success() && read.stdout.is_empty(), "{read:?}");

    let view = View::new(&mount);
    let file = view.path(&format!("processes/{}/0/memory.limit", own.pid()));
    let by_alice = mount.sh_of(ALICE, &format!("cat {}", file.display()));
    assert!(!by_alice.0, "root's view is for root: {by_alice:?}");
}

#[test]
fn command_within_a_command_finds_the_files() {
    let mount = Mount::new();
    let process = on_gpu(&mount, 0, MIB);
    let program = artifacts().gcgroupfs();
    let read = format!(
        "cat /sys/kernel/debug/nvidia-uvm/processes/{}/0/memory.current",
        process.pid()
    );
    let nested = format!("{0} gvm {read}; {0} gvm true; {read}", program.display());
    assert_eq!(succeeds(&script(&mount, &nested)), format!("{MIB}\n{MIB}\n"));
}

#[test]
fn exit_status_is_that_of_the_command() {
    let mount = Mount::new();
    // It may end before its files are served.
    (0..30).for_each(|_| assert_eq!(succeeds(&script(&mount, ":")), ""));
    let code = |output: Output| output.status.code();
    assert_eq!(code(script(&mount, "exit 7")), Some(7));
    let gcgroupfs = |arguments: &[&str]| mount.gcgroupfs(arguments).output().expect("it runs");
    assert_eq!(code(gcgroupfs(&["gvm", "/none"])), Some(127));
    assert_eq!(code(gcgroupfs(&["gvm", "/etc/passwd"])), Some(126));
    let none = gcgroupfs(&["--socket", "/none/gcgroup.sock", "gvm", "true"]);
    assert!(
        String::from_utf8_lossy(&none.stderr).contains("no daemon at /none/gcgroup.sock"),
        "{none:?}"
    );
    assert_eq!(code(none), Some(125));
    let none = gcgroupfs(&[
        "--socket",
        "/none/gcgroup.sock",
        "mount",
        "--view",
        "gvm",
        "/none/point",
    ]);
    assert!(!none.status.success() && !Path::new("/none").exists(), "{none:?}");
}

#[test]
fn files_are_served_until_the_last_process_has_ended() {
    let mount = Mount::new();
    let process = on_gpu(&mount, 0, MIB);
    let text = format!(
        "cat <&3 > /dev/null; cat /sys/kernel/debug/nvidia-uvm/processes/{}/0/memory.current",
        process.pid()
    );
    let mut command = mount.gcgroupfs(&["gvm", "bash", "-c"]);
    command.arg(format!("exec 3<&0; (echo behind; {text}) & exit 0"));
    let mut left = Governed::spawn(command);
    left.expect("behind");
    wait_until("the command has ended", || !left.is_running());
    assert!(is_served(&mount));
    left.close_stdin();
    assert_eq!(
        left.line().as_deref(),
        Some("1048576"),
        "the process it left still sees the files"
    );
    wait_until("the files are not served any more", || !is_served(&mount));
}

/// Returns whether a process serves GVM's files from the mount's daemon.
fn is_served(mount: &Mount) -> bool {
    let socket = mount.socket().display().to_string();
    let has = |file: PathBuf, text: &str| {
        fs::read(file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).split('\0').any(|one| one == text))
    };
    let processes = fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .map(|entry| entry.path());
    let mut serving = processes.filter(|process| has(process.join("cmdline"), "serve-gvm"));
    serving.any(|process| has(process.join("environ"), &format!("GCGROUP_SOCKET={socket}")))
}
