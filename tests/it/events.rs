//! Tests poll(2) on the events files: it wakes at a change and only then.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::{Config, DEADLINE, Governed, Mount, artifacts};

use crate::driver::{Dir, DriverShell};

/// An events file, watched as a script watches it.
pub(crate) struct Watch(File);

impl Watch {
    #[track_caller]
    pub(crate) fn open(path: PathBuf) -> Self {
        let mut watch = Self(File::open(path).expect("the file opens"));
        watch.read();
        watch
    }

    /// Returns the current text; the next poll waits for a change from it.
    #[track_caller]
    fn read(&mut self) -> String {
        let mut text = String::new();
        self.0.rewind().expect("the file can be rewound");
        self.0.read_to_string(&mut text).expect("the file is readable");
        text
    }

    /// Returns whether there is a change within `timeout`.
    fn poll(&self, timeout: PollTimeout) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLPRI)];
        poll(&mut fds, timeout).expect("poll(2) succeeds");
        fds[0]
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLPRI))
    }

    /// Waits for changes until the file contains `line`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, line: &str) {
        let long = PollTimeout::try_from(DEADLINE).expect("the value fits");
        while !self.read().lines().any(|shown| shown == line) {
            assert!(self.poll(long), "poll(2) timed out before {line:?}");
        }
    }
}

#[test]
fn completed_freeze_and_thaw_wake_pollers() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let mut watch = Watch::open(dir.path().join("gcgroup.events"));
    assert!(
        !watch.poll(PollTimeout::ZERO),
        "the unchanged file woke the poller"
    );
    assert_eq!(shell.ask("spin 5000 20"), "ok");
    assert_eq!(shell.ask("mark"), "ok");
    dir.write("compute.freeze", 1);
    watch.wait_for("frozen 1");
    assert_eq!(
        shell.ask("marked"),
        "ok",
        "the process is frozen before its work has drained"
    );
    assert!(
        !watch.poll(PollTimeout::ZERO),
        "the file woke the poller after it was read"
    );
    dir.write("compute.freeze", 0);
    watch.wait_for("frozen 0");
}

#[test]
fn refused_allocation_wakes_pollers() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("memory.limit", 4096);
    let mut watch = Watch::open(dir.path().join("memory.events"));
    assert!(
        !watch.poll(PollTimeout::ZERO),
        "the unchanged file woke the poller"
    );
    assert_eq!(shell.ask("alloc linear 4097"), "error 2");
    assert!(
        watch.poll(PollTimeout::try_from(DEADLINE).expect("the value fits")),
        "the refused allocation did not wake the poller"
    );
    watch.wait_for("oom 1");
    assert_eq!(shell.ask("alloc linear 4096"), "ok 0");
    dir.write("memory.limit", 1);
    watch.wait_for("over_limit 1");
}

/// The limit is hit, and the allocation succeeds in host memory.
#[test]
fn allocation_moved_to_the_host_by_a_limit_wakes_pollers() {
    const MIB: u64 = 1 << 20;
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let dir = Dir::of(&mount, program.pid());
    dir.write("memory.limit", MIB);
    let mut watch = Watch::open(dir.path().join("memory.events"));
    assert!(
        !watch.poll(PollTimeout::ZERO),
        "the unchanged file woke the poller"
    );
    let answer = program.ask(&format!("alloc linear {}", 2 * MIB));
    assert!(answer.starts_with("allocated "), "{answer}");
    assert!(
        watch.poll(long()),
        "the allocation beyond the limit did not wake the poller"
    );
    watch.wait_for("max 1");
    assert_eq!(dir.number("memory.swap.current"), 2 * MIB);
}

#[test]
fn process_exit_wakes_all_pollers_and_reads_give_enodev() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let mut watches: Vec<_> = ["gcgroup.events", "memory.events", "0/gcgroup.events"]
        .map(|name| Watch::open(dir.path().join(name)))
        .into();
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll");
    epoll
        .add(&watches[2].0, EpollEvent::new(EpollFlags::EPOLLPRI, 2))
        .expect("the file can be added");
    std::thread::scope(|scope| {
        let (polled, rest) = watches.split_first().expect("three");
        let polled = scope.spawn(|| polled.poll(long()));
        let selected = scope.spawn(|| excepted(&rest[0].0, DEADLINE.as_secs()));
        let waited = scope.spawn(|| {
            let mut events = [EpollEvent::empty()];
            epoll
                .wait(&mut events, EpollTimeout::from(60_000_u16))
                .expect("epoll_wait(2) succeeds")
        });
        shell.kill9();
        assert!(
            polled.join().expect("the thread ends without a panic"),
            "poll(2) was not woken"
        );
        assert!(
            selected.join().expect("the thread ends without a panic"),
            "select(2) was not woken"
        );
        assert_eq!(
            waited.join().expect("the thread ends without a panic"),
            1,
            "epoll(7) was not woken"
        );
    });
    for watch in &mut watches {
        watch.0.rewind().expect("the file can be rewound");
        let error = watch.0.read(&mut [0; 64]).expect_err("the process is gone");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        assert!(
            watch.poll(PollTimeout::ZERO),
            "the removed file stopped being ready"
        );
    }
}

#[test]
fn select_reports_changes_in_its_third_set() {
    let mount = Mount::new();
    let shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let mut watch = Watch::open(dir.path().join("gcgroup.events"));
    assert!(!excepted(&watch.0, 0), "the unchanged file woke select(2)");
    dir.write("compute.freeze", 1);
    while watch.read() != "populated 1\nfrozen 1\nsuspended 0\nhook ok\n" {
        assert!(excepted(&watch.0, 60), "select(2) timed out");
    }
    assert!(
        !excepted(&watch.0, 0),
        "the file woke select(2) after it was read"
    );
    let status = std::process::Command::new("python3")
        .args(["-c", PYTHON])
        .arg(dir.path())
        .status()
        .expect("python3 runs");
    assert!(status.success(), "Python's select.select failed");
}

/// Python program that waits with select(2) for a thaw that it causes itself.
const PYTHON: &str = "
import os, select, sys
events = open(sys.argv[1] + '/gcgroup.events')
assert 'frozen 1' in events.read()
assert select.select([], [], [events], 0) == ([], [], [])
open(sys.argv[1] + '/compute.freeze', 'w').write('0')
assert select.select([], [], [events], 60) == ([], [], [events])
events.seek(0)
assert 'frozen 0' in events.read()
";

#[test]
fn thousand_pollers_wake_only_for_their_own_files() {
    const POLLERS: u64 = 1000;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("the limit can be raised");
    let mount = Mount::new();
    let (one, other) = (DriverShell::start(&mount), DriverShell::start(&mount));
    let (one, other) = (Dir::of(&mount, one.pid()), Dir::of(&mount, other.pid()));
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll");
    let mut watches: Vec<_> = (0..POLLERS)
        .map(|_| Watch::open(one.path().join("gcgroup.events")))
        .collect();
    for (watch, number) in watches.iter().zip(0..) {
        epoll
            .add(&watch.0, EpollEvent::new(EpollFlags::EPOLLPRI, number))
            .expect("the file can be added");
    }
    // Another file of the same process, and the same file of another process: no change for these pollers.
    let mut memory = Watch::open(one.path().join("memory.events"));
    let mut else_where = Watch::open(other.path().join("gcgroup.events"));
    other.write("compute.freeze", 1);
    else_where.wait_for("frozen 1");
    one.write("memory.limit", 1 << 20);
    one.write("memory.limit", 0);
    assert!(
        !memory.poll(PollTimeout::ZERO),
        "lowering the limit of an empty process woke the poller"
    );
    let mut events = vec![EpollEvent::empty(); 2000];
    assert_eq!(
        epoll.wait(&mut events, EpollTimeout::ZERO),
        Ok(0),
        "other files' changes woke the pollers"
    );

    one.write("compute.freeze", 1);
    let mut woken = BTreeSet::new();
    while woken.len() < watches.len() {
        let ready = epoll
            .wait(&mut events, EpollTimeout::from(60_000_u16))
            .expect("epoll_wait(2) succeeds");
        assert!(ready > 0, "only {} pollers are woken", woken.len());
        woken.extend(events[..ready].iter().map(EpollEvent::data));
    }
    watches.iter_mut().for_each(|watch| watch.wait_for("frozen 1"));
    assert_eq!(
        epoll.wait(&mut events, EpollTimeout::ZERO),
        Ok(0),
        "the file woke pollers after they had read it"
    );
    let text = memory.read();
    assert!(text.contains("oom 0") && text.contains("over_limit 0"), "{text}");
}

#[test]
fn poller_of_many_events_wakes_at_most_every_10_ms() {
    const WAKES: u32 = 30;
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask("alloc linear 4096"), "ok 0");
    let dir = Dir::of(&mount, shell.pid());
    let mut watch = Watch::open(dir.path().join("memory.events"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                // Each limit is below current usage and is counted.
                dir.write("memory.limit", 1);
            }
        });
        assert!(watch.poll(long()));
        let begin = Instant::now();
        for _ in 0..WAKES {
            watch.read();
            assert!(watch.poll(long()), "the poller was not woken again");
        }
        let took = begin.elapsed();
        over.store(true, Relaxed);
        // Lower bound on any machine, however slow.
        assert!(took >= Duration::from_millis(10) * (WAKES - 1), "{took:?}");
    });
    watch.wait_for(&format!("over_limit {}", dir.key("memory.events", "over_limit")));
}

fn long() -> PollTimeout {
    PollTimeout::try_from(DEADLINE).expect("the value fits")
}

/// Returns whether select(2) reports the file as exceptional. A program of its own asks: select(2) takes no
/// descriptors beyond 1023, of which these tests can have more.
fn excepted(file: &File, seconds: u64) -> bool {
    let ask = format!("import select; raise SystemExit(not select.select([], [], [0], {seconds})[2])");
    let mut python = std::process::Command::new("python3");
    python.args(["-c", &ask]);
    let file = file.try_clone().expect("a free descriptor");
    python.stdin(file).status().expect("python3 runs").success()
}
