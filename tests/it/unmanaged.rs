//! Tests `unmanaged`, the list of GPU processes without a hook, according to NVML.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;

use nix::sys::signal::Signal;
use nix::unistd::gettid;
use support::{Config, Governed, Mount, artifacts, copy_program, wait_until};

use crate::driver::{DriverShell, governed_pids};
use crate::events::Watch;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns the fields of a process's line for a GPU.
#[track_caller]
fn line(mount: &Mount, pid: i32, gpu: u32) -> Option<BTreeMap<String, String>> {
    let text = mount.read("", "unmanaged");
    let begin = format!("{pid} gpu={gpu} ");
    let mut lines = text.lines().filter(|line| line.starts_with(&begin));
    let line = lines.next()?;
    assert!(
        lines.next().is_none(),
        "the process has two lines for one GPU: {text}"
    );
    let pairs = line
        .split(' ')
        .skip(1)
        .map(|pair| pair.split_once('=').expect("a pair"));
    Some(
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    )
}

fn bytes(line: &BTreeMap<String, String>) -> u64 {
    line["bytes"].parse().expect("a number")
}

#[test]
fn process_without_hook_is_listed_while_it_uses_a_gpu() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_CONTEXT_MEMORY", "64M"),
    );
    let before = std::time::SystemTime::now();
    let mut bare = DriverShell::start_bare(&mount);
    wait_until("the unmanaged process is listed", || {
        line(&mount, bare.pid(), 0).is_some()
    });
    let first = line(&mount, bare.pid(), 0).expect("the process is listed");
    assert_eq!(
        (first["uid"].as_str(), first["reason"].as_str()),
        ("0", "no_hook")
    );
    assert!(first["comm"].starts_with("driver_shell"), "{first:?}");
    assert_eq!(bytes(&first), 64 * MIB, "the bytes are not the context's");
    let since: u64 = first["since"].parse().expect("a number");
    let began = before
        .duration_since(std::time::UNIX_EPOCH)
        .expect("the clock is past the epoch")
        .as_secs();
    assert!(since >= began, "{since} {began}");
    assert_eq!(
        line(&mount, bare.pid(), 1),
        None,
        "the process is listed for an unused GPU"
    );
    bare.ask(&format!("alloc linear {MIB}"));
    bare.ask("gpu 1");
    wait_until("the process is listed with its memory on both devices", || {
        line(&mount, bare.pid(), 0).is_some_and(|line| bytes(&line) == 65 * MIB)
            && line(&mount, bare.pid(), 1).is_some_and(|line| bytes(&line) == 64 * MIB)
    });
    assert_eq!(
        line(&mount, bare.pid(), 0).expect("the process is listed")["since"],
        first["since"]
    );
    let governed = DriverShell::start(&mount);
    assert_eq!(governed_pids(&mount), [governed.pid()]);
    wait_until("the governed process's context is measured", || {
        mount.number(governed.pid(), "memory.stat", "context") == 64 * MIB
    });
    for gpu in [0, 1] {
        assert_eq!(
            line(&mount, governed.pid(), gpu),
            None,
            "a governed process is listed"
        );
    }
    assert!(mount.log().contains("uses device 0 without a hook"));
    let pid = bare.pid();
    bare.kill9();
    wait_until("the killed process is no longer listed", || {
        line(&mount, pid, 0).is_none()
    });
    assert_eq!(mount.read("", "unmanaged"), "");
    governed.quit();
}

/// Nobody asks for a scan and there is no governed process: the daemon looks at its own times.
#[test]
fn unmanaged_process_wakes_pollers_of_the_roots_events() {
    let mount = Mount::new();
    let events = || mount.read("", "gcgroup.events");
    assert!(events().ends_with("\nunmanaged 0"), "{}", events());
    let mut watch = Watch::open(mount.path().join("gcgroup.events"));
    let bare = DriverShell::start_bare(&mount);
    watch.wait_for("unmanaged 1");
    bare.kill9();
    watch.wait_for("unmanaged 0");
}

/// Needs the first pid namespace: elsewhere the daemon sends no signals.
#[test]
fn unmanaged_process_is_sent_a_signal_if_configured() {
    let namespace = std::fs::read_link("/proc/self/ns/pid").expect("a link");
    if namespace.as_os_str() != "pid:[4026531836]" {
        eprintln!("not tested: in another pid namespace than the first");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = directory.path().join("gcgroupfs.toml");
    std::fs::write(&config, "on_unmanaged = \"signal\"\n").expect("written");
    let mut mount = Mount::with(
        Config::default()
            .arg("--config")
            .arg(config.to_str().expect("text")),
    );
    let (mut bare, governed) = (DriverShell::start_bare(&mount), DriverShell::start(&mount));
    let server = directory.path().join("nvidia-cuda-mps-server");
    copy_program(&artifacts().load(), &server);
    let mut command = mount.bare_command(&server);
    command.arg("obey");
    let mut server = Governed::spawn(command);
    server.expect("ready");
    // Has loaded the hook, and cannot register with the next daemon while it is stopped.
    let stopped = DriverShell::start(&mount);
    stopped.signal(Signal::SIGSTOP);
    mount.kill9();
    mount.restart();
    bare.expect_ended(Signal::SIGTERM);
    wait_until("the daemon has examined the stopped process", || {
        mount
            .log()
            .contains(&format!("{} is sent no signal", stopped.pid()))
    });
    wait_until("the daemon has examined the server of MPS", || {
        let spared = format!("{} is sent no signal: it is the server of MPS", server.pid());
        mount.log().contains(&spared)
    });
    assert!(server.is_running());
    wait_until("the signal is logged", || {
        mount.log().contains(&format!("SIGTERM sent to {}", bare.pid()))
    });
    stopped.signal(Signal::SIGCONT);
    wait_until("the stopped process has registered again", || {
        governed_pids(&mount).contains(&stopped.pid())
    });
    stopped.quit();
    governed.quit();
}

#[test]
fn other_users_process_is_listed_with_its_uid() {
    let mount = Mount::new();
    let mut command = mount.bare_command(artifacts().load());
    command.arg("obey").uid(1234).gid(1234);
    let mut bare = Governed::spawn(command);
    bare.expect("ready");
    wait_until("the other user's process is listed", || {
        line(&mount, bare.pid(), 0)
            .is_some_and(|line| line["uid"] == "1234" && line["comm"] == "gcgroup-load")
    });
}

#[test]
fn governed_process_with_unexplained_memory_is_listed() {
    let config = Config::default()
        .env("SIMGPU_MEMORY", 16 * GIB)
        .env("SIMGPU_CONTEXT_MEMORY", 3 * GIB);
    let mount = Mount::with(config);
    let shell = DriverShell::start(&mount);
    wait_until("the process is listed for unexplained memory", || {
        line(&mount, shell.pid(), 0).is_some()
    });
    let line = line(&mount, shell.pid(), 0).expect("the process is listed");
    assert_eq!(line["reason"], "beyond_ledger");
    assert_eq!(bytes(&line), 3 * GIB);
    assert!(
        mount
            .log()
            .contains("holds more on device 0 than it accounts for")
    );
}

#[test]
fn restarted_daemon_lists_no_returning_process_as_unmanaged() {
    let mut mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", "64M"));
    let (shell, bare) = (DriverShell::start(&mount), DriverShell::start_bare(&mount));
    for _ in 0..3 {
        mount.kill9();
        mount.restart();
        // The first scan's result.
        assert_eq!(line(&mount, shell.pid(), 0), None);
        wait_until("the unmanaged process is listed", || {
            line(&mount, bare.pid(), 0).is_some()
        });
        assert_eq!(line(&mount, shell.pid(), 0), None);
    }
    let own = format!(" {} (", shell.pid());
    assert!(
        !mount
            .log()
            .lines()
            .any(|line| line.contains(&own) && line.contains("without a hook"))
    );
}

#[test]
fn readers_of_other_files_do_not_wait_for_the_look() {
    let mut mount = Mount::with(Config::default().env("SIMGPU_QUIRKS", "nvml-waits"));
    let shell = DriverShell::start(&mount);
    // The first scan of the next daemon, for which readers wait, does not end before the file is removed.
    mount.kill9();
    let waits = mount.simgpu_dir().join("nvml-waits");
    fs::write(&waits, "").expect("the directory takes a file");
    mount.restart();
    wait_until("the process has registered again", || mount.governs(shell.pid()));
    let (mount, is_answered) = (&mount, &AtomicBool::new(false));
    thread::scope(|scope| {
        // A reader waits 3 s for the scan. If the others do not end before it, they wait for it.
        wait_until("other files are read meanwhile", || {
            is_answered.store(false, SeqCst);
            let (tell, told) = channel();
            let waiting = scope.spawn(move || {
                let _ = tell.send(gettid());
                let text = mount.read("", "unmanaged");
                is_answered.store(true, SeqCst);
                text
            });
            let wchan = format!("/proc/self/task/{}/wchan", told.recv().expect("the thread runs"));
            wait_until("the reader waits", || {
                let place = fs::read_to_string(&wchan).unwrap_or_default();
                place == "request_wait_answer" || is_answered.load(SeqCst)
            });
            for _ in 0..100 {
                assert_eq!(mount.number(shell.pid(), "memory.current", ""), 0);
            }
            let is_done = !is_answered.load(SeqCst);
            if is_done {
                fs::remove_file(&waits).expect("the file is there");
            }
            assert_eq!(waiting.join().expect("the thread ends without a panic"), "");
            is_done
        });
    });
}
