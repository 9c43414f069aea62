//! The faults of a soak, one a row: what is done to programs and to the daemon while all goes on, and how it
//! is undone.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Governed, wait_until};

use super::Soak;
use crate::driver::{DriverShell, governed_pids};

/// One kind of fault.
struct Fault {
    name: &'static str,
    /// Seconds from one to the next, and half as many from the beginning to the first.
    every: u64,
    /// Milliseconds until it is undone.
    lasts: u64,
    /// Does it. Nothing, if there is nobody that it could be done to now.
    begin: fn(&mut Soak) -> Option<Undo>,
}

/// Time for which a hook tries to register. A daemon among two hundred programs may get too little CPU time to
/// answer within it.
const PATIENCE: Duration = Duration::from_secs(5);

type Undo = Box<dyn FnOnce() + Send>;

const FAULTS: &[Fault] = &[
    Fault {
        name: "program stopped",
        every: 1,
        lasts: 500,
        begin: stop_program,
    },
    Fault {
        name: "daemon stopped",
        every: 10,
        lasts: 1000,
        begin: stop_daemon,
    },
    Fault {
        name: "/proc/meminfo locked",
        every: 6,
        lasts: 1500,
        begin: lock_meminfo,
    },
    Fault {
        name: "rapid exec",
        every: 20,
        lasts: 0,
        begin: execute_rapidly,
    },
    Fault {
        name: "socket removed",
        every: 15,
        lasts: 0,
        begin: remove_socket,
    },
    Fault {
        name: "disk full",
        every: 12,
        lasts: 1500,
        begin: fill_disk,
    },
];

/// When each is next, what is being undone, and how often each has been.
#[derive(Debug, Default)]
pub(super) struct Faults {
    next: BTreeMap<&'static str, Instant>,
    ends: Vec<JoinHandle<()>>,
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl Faults {
    /// Waits until everything is undone. Each is undone by a thread of its own: this one may wait for a
    /// daemon that is stopped.
    pub(super) fn undo(&mut self) {
        for end in self.ends.drain(..) {
            end.join().expect("it can be undone");
        }
    }
}

impl Soak {
    /// Does what is due.
    pub(super) fn inject(&mut self) {
        for fault in FAULTS {
            let (now, every) = (Instant::now(), Duration::from_secs(fault.every));
            let next = self.faults.next.entry(fault.name).or_insert(now + every / 2);
            if now < *next {
                continue;
            }
            *next = now + every;
            if let Some(undo) = (fault.begin)(self) {
                *self.faults.counts.entry(fault.name).or_default() += 1;
                let lasts = Duration::from_millis(fault.lasts);
                self.faults.ends.retain(|end| !end.is_finished());
                self.faults.ends.push(thread::spawn(move || {
                    thread::sleep(lasts);
                    undo();
                }));
            }
        }
    }
}

/// Stops a process. Its pid may be another's when it is to go on, which does that one no harm.
fn stop(pid: Pid) -> Option<Undo> {
    kill(pid, Signal::SIGSTOP).ok()?;
    Some(Box::new(move || {
        let _ = kill(pid, Signal::SIGCONT);
    }))
}

/// One of those that have a directory, whose memory moves or does not.
fn stop_program(soak: &mut Soak) -> Option<Undo> {
    let pids = governed_pids(&soak.mount);
    let pid = soak.random.of_these(&pids).copied()?;
    stop(Pid::from_raw(pid))
}

fn stop_daemon(soak: &mut Soak) -> Option<Undo> {
    stop(soak.pid())
}

/// As any user can.
fn lock_meminfo(_: &mut Soak) -> Option<Undo> {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["flock", "/proc/meminfo", "-c", "exec cat"]);
    let mut holder = Governed::spawn(command);
    // The end of its input ends it, and with it the lock.
    Some(Box::new(move || {
        holder.wait();
    }))
}

/// One pid executes many programs within a second; each is governed from its first call on.
fn execute_rapidly(soak: &mut Soak) -> Option<Undo> {
    // A daemon that is stopped, or that begins, governs nobody.
    soak.faults.undo();
    soak.mount.read("", "devices");
    let mut shell = DriverShell::start(&soak.mount);
    for _ in 0..24 {
        let began = Instant::now();
        shell.exec();
        assert!(
            soak.mount.governs(shell.pid()) || began.elapsed() >= PATIENCE,
            "ungoverned when cuInit has returned after {:?}",
            began.elapsed()
        );
    }
    shell.quit();
    Some(Box::new(|| ()))
}

fn remove_socket(soak: &mut Soak) -> Option<Undo> {
    let socket = soak.mount.socket();
    fs::remove_file(&socket).ok()?;
    soak.faults.undo();
    wait_until("there is another socket", || socket.exists());
    Some(Box::new(|| ()))
}

/// Fills the small filesystem of the state directory.
fn fill_disk(soak: &mut Soak) -> Option<Undo> {
    let path = soak.mount.state_dir().join("filler");
    let mut filler = OpenOptions::new().create(true).append(true).open(&path).ok()?;
    while filler.write_all(&[0; 4096]).is_ok() {}
    Some(Box::new(move || {
        fs::remove_file(path).expect("it is there");
    }))
}
