//! Tests the logs: what the daemon writes about users and processes, its fields in the journal, and the
//! hook's log in a file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{PipeReader, Read as _, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::{Config, Mount, artifacts, wait_for, wait_until};
use tempfile::TempDir;

use crate::driver::{Dir, DriverShell, driver_shell};

const REFUSED: &str = "error 2";

/// Fields of an event in the journal.
type Event = BTreeMap<String, String>;

/// Parses a datagram of systemd-journald's native protocol.
fn event(mut bytes: &[u8]) -> Event {
    let mut fields = Event::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|byte| *byte == b'\n').expect("a line ends");
        let line = std::str::from_utf8(&bytes[..end]).expect("text");
        bytes = &bytes[end + 1..];
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let (length, rest) = bytes.split_first_chunk().expect("a length");
                let length = usize::try_from(u64::from_le_bytes(*length)).expect("a small number");
                let value = std::str::from_utf8(&rest[..length]).expect("text").to_owned();
                assert_eq!(rest[length], b'\n');
                bytes = &rest[length + 1..];
                (line, value)
            }
        };
        fields.insert(name.to_owned(), value);
    }
    fields
}

/// A daemon without a mount that takes a socket of the test for journald's; killed when dropped.
struct Daemon {
    root: TempDir,
    child: Child,
    stderr: PipeReader,
    journal: UnixDatagram,
    events: Vec<Event>,
}

impl Daemon {
    fn new() -> Self {
        let root = TempDir::new().expect("a temporary directory");
        let journal = UnixDatagram::bind(root.path().join("journal")).expect("a socket");
        journal.set_nonblocking(true).expect("a flag");
        let (stderr, near) = pipe().expect("a pipe");
        let near = File::from(OwnedFd::from(near));
        let metadata = near.metadata().expect("an inode");
        let mut command = command(root.path(), artifacts().gcgroupfs().as_ref());
        command
            .args(["mount", "--no-fuse", "--log", "debug", "--journal-socket"])
            .arg(root.path().join("journal"))
            .arg("--socket")
            .arg(root.path().join("sock"))
            .arg("--state-dir")
            .arg(root.path().join("run"))
            .env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(near);
        let child = command.spawn().expect("gcgroupfs starts");
        drop(command);
        let mut daemon = Self {
            root,
            child,
            stderr,
            journal,
            events: Vec::new(),
        };
        let mut said = String::new();
        while !said.contains("gcgroupfs: ready") {
            let mut buffer = [0; 4096];
            let length = daemon.stderr.read(&mut buffer).expect("the daemon reports");
            assert_ne!(length, 0, "{said}");
            said += &String::from_utf8_lossy(&buffer[..length]);
        }
        daemon
    }

    /// Waits for an event with these fields.
    #[track_caller]
    fn expect(&mut self, wanted: &[(&str, &str)]) -> Event {
        let has_all = |event: &Event| {
            let has = |(name, value): &(&str, &str)| event.get(*name).is_some_and(|found| found == value);
            wanted.iter().all(has)
        };
        wait_for(&format!("the journal has {wanted:?}"), || {
            let mut buffer = [0; 64 << 10];
            while let Ok(length) = self.journal.recv(&mut buffer) {
                self.events.push(event(&buffer[..length]));
            }
            self.events.iter().find(|event| has_all(event)).cloned()
        })
    }

    /// Runs a command of `gcgroupfs` that must succeed.
    #[track_caller]
    fn gcgroupfs(&self, arguments: &[&str]) {
        let mut command = command(self.root.path(), artifacts().gcgroupfs().as_ref());
        let output = command.args(arguments).output().expect("the command runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a program on the simulated GPUs of the daemon in `root`.
fn command(root: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", artifacts().simgpu())
        .env("SIMGPU_DIR", root.join("sim"))
        .env("SIMGPU_CONTEXT_MEMORY", "0")
        .env("GCGROUP_SOCKET", root.join("sock"));
    command
}

#[test]
fn journal_has_events_with_fields() {
    let mut daemon = Daemon::new();
    daemon.gcgroupfs(&["mkdir", "team"]);
    let made = daemon.expect(&[("FILE", "/team"), ("GROUP", "/team"), ("PRIORITY", "6")]);
    assert_eq!(made["BY_UID"], nix::unistd::geteuid().to_string());
    assert_eq!(made["SYSLOG_IDENTIFIER"], "gcgroupfs");
    assert!(made["MESSAGE"].ends_with(" made /team"), "{made:?}");

    let mut program = command(daemon.root.path(), &driver_shell());
    program
        .env("LD_PRELOAD", artifacts().preload())
        .env("GCGROUP_GROUP", "team");
    let mut shell = DriverShell::spawn(program);
    let pid = shell.pid().to_string();
    let joined = daemon.expect(&[("PID", &pid), ("GROUP", "/team")]);
    assert!(joined["MESSAGE"].contains("joined"), "{joined:?}");

    daemon.gcgroupfs(&["set", "team/0/memory.limit", "1M"]);
    let file = [
        ("FILE", "/team/0/memory.limit"),
        ("OLD", "max"),
        ("NEW", "1048576"),
        ("GPU", "0"),
    ];
    daemon.expect(&file);
    assert_eq!(shell.ask("alloc linear 2097152"), REFUSED);
    let limit = [
        ("PID", &*pid),
        ("GROUP", "/team"),
        ("GPU", "0"),
        ("LIMIT", "1048576"),
    ];
    let refused = daemon.expect(&limit);
    assert_eq!(refused["PRIORITY"], "4");
    assert!(
        refused["MESSAGE"].contains("1 allocations refused"),
        "{refused:?}"
    );

    let path = format!("{pid}/compute.freeze");
    daemon.gcgroupfs(&["set", &path, "1"]);
    daemon.expect(&[
        ("FILE", &format!("/{path}")),
        ("PID", &pid),
        ("OLD", "0"),
        ("NEW", "1"),
    ]);
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).expect("the process lives");
    let subject = format!("{pid} ({}) of user 0 in /team on GPU 0", name.trim_end());
    daemon.expect(&[("MESSAGE", &format!("{subject}: frozen")), ("GPU", "0")]);
    daemon.gcgroupfs(&["set", &path, "0"]);
    daemon.expect(&[("MESSAGE", &format!("{subject}: no longer frozen"))]);
    shell.quit();
    daemon.expect(&[
        ("PID", &pid),
        ("MESSAGE", &format!("{pid} ({}) left", name.trim_end())),
    ]);
}

#[test]
fn log_says_which_user_changed_what() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let limit = mount.file(shell.pid(), "memory.limit");
    fs::write(&limit, "4096\n").expect("the file is writable");
    // Unchanged, so not logged again.
    fs::write(&limit, "4096\n").expect("the file is writable");
    let group = mount.path().join("team");
    fs::create_dir(&group).expect("root makes groups");
    fs::write(group.join("gcgroup.procs"), shell.pid().to_string()).expect("the process moves");
    std::os::unix::fs::chown(&group, Some(1234), Some(99)).expect("root changes the owner");
    fs::write(mount.path().join("gcgroup.procs"), shell.pid().to_string()).expect("the process moves");
    fs::remove_dir(&group).expect("the group is empty");
    let writer = format!("{} of user 0 ", nix::unistd::gettid());
    let pid = shell.pid();
    let lines = [
        format!("wrote /{pid}/memory.limit: \"max\" -> \"4096\""),
        "made /team".to_owned(),
        format!("wrote /team/gcgroup.procs: \"{pid}\""),
        "changed owner or mode of /team: \"0:0 0755\" -> \"1234:99 0755\"".to_owned(),
        format!("wrote /gcgroup.procs: \"{pid}\""),
        "removed /team".to_owned(),
    ];
    for line in &lines {
        // The log is read by another thread.
        wait_until("the line is logged", || {
            mount.log().contains(&format!("{writer}{line}"))
        });
    }
    let log = mount.log();
    assert_eq!(log.matches(&writer).count(), lines.len(), "{log}");
    assert!(!log.contains("BY_UID"), "{log}");
}

#[test]
fn trace_has_bound_functions_first_calls_and_failed_calls() {
    for driver in ["11.8", "13.5"] {
        let mount = Mount::with(Config::default().env("SIMGPU_DRIVER", driver));
        let path = mount.root().join(format!("trace-{driver}"));
        let mut command = mount.command(driver_shell());
        command
            .env("GCGROUP_TRACE", &path)
            .env("SIMGPU_FAULTS", "cuDeviceGetUuid_v2=801");
        let mut shell = DriverShell::spawn(command);
        for index in 0..3 {
            assert_eq!(shell.ask("alloc linear 4096"), format!("ok {index}"));
            assert_eq!(shell.ask(&format!("free {index}")), "ok");
            assert_eq!(shell.ask("spin 10 5"), "ok");
            assert_eq!(shell.ask("sync"), "ok");
        }
        assert_eq!(Dir::of(&mount, shell.pid()).launches(), 15);
        shell.quit();
        let text = fs::read_to_string(&path).expect("the trace exists");
        let count = |line: &str| text.lines().filter(|one| one.contains(line)).count();
        assert_eq!(count(" hook "), 1, "{text}");
        for name in ["cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "cuMemFree_v2"] {
            let bound = text
                .lines()
                .find(|line| line.contains(&format!(" bound: {name} 0x")));
            assert!(
                bound.is_some_and(|line| line.contains(", exported 0x")),
                "{name}: {text}"
            );
            let first = text
                .lines()
                .filter(|line| line.ends_with(&format!(" first call: {name}")));
            assert_eq!(first.count(), 1, "{name}: {text}");
        }
        assert_eq!(
            count(" absent: cuGreenCtxCreate"),
            usize::from(driver == "11.8"),
            "{text}"
        );
        assert_eq!(count(" governed by the daemon at "), 1, "{text}");
        assert!(count(" own call failed: cuDeviceGetUuid_v2 801") > 0, "{text}");
    }
}

#[test]
fn hook_logs_to_the_named_file() {
    let mut mount = Mount::new();
    let path = mount.root().join("hook.log");
    let mut command = mount.command(driver_shell());
    command
        .env("GCGROUP_LOG", &path)
        .env("GCGROUP_MEMORY_LIMIT", "1M");
    let mut shell = DriverShell::spawn(command);
    assert_eq!(shell.ask("alloc linear 2097152"), REFUSED);
    mount.write(shell.pid(), "compute.freeze", "1");
    let has = |text: &str| fs::read_to_string(&path).unwrap_or_default().contains(text);
    wait_until("the freeze is logged", || has("frozen on GPU 0"));
    mount.write(shell.pid(), "compute.freeze", "0");
    mount.stop();
    wait_until("the loss is logged", || has("connection to the daemon lost"));
    shell.quit();
    let text = fs::read_to_string(&path).expect("the log exists");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].ends_with(&format!(
            " governed by the daemon at {}",
            mount.socket().display()
        )),
        "{text}"
    );
    assert!(
        text.contains(" allocation of 2097152 bytes refused: memory.limit of the process\n"),
        "{text}"
    );
}
