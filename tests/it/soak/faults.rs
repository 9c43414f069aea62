//! The faults of a soak test, one row each: what is done to programs and the daemon, and how it is undone.

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

/// A kind of fault.
struct Fault {
    name: &'static str,
    /// Interval in seconds; the first fault comes after half of it.
    every: u64,
    /// Milliseconds until the fault is undone.
    lasts: u64,
    /// Injects the fault. Returns `None` if no process is suitable now.
    begin: fn(&mut Soak) -> Option<Undo>,
}

/// Time for which a hook tries to register. A daemon among two hundred programs may get too little CPU time
/// to answer within it.
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

/// Time of the next fault of each kind, faults being undone, and the number of faults of each kind.
#[derive(Debug, Default)]
pub(super) struct Faults {
    next: BTreeMap<&'static str, Instant>,
    ends: Vec<JoinHandle<()>>,
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl Faults {
    /// Waits until all faults are undone. A thread of its own undoes each, because this one may wait for a
    /// stopped daemon.
    pub(super) fn undo(&mut self) {
        for end in self.ends.drain(..) {
            end.join().expect("the fault can be undone");
        }
    }
}

impl Soak {
    /// Injects the faults that are due.
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

/// Stops a process. Its pid may be reused before it is continued; SIGCONT does the other process no harm.
fn stop(pid: Pid) -> Option<Undo> {
    kill(pid, Signal::SIGSTOP).ok()?;
    Some(Box::new(move || {
        let _ = kill(pid, Signal::SIGCONT);
    }))
}

/// Stops one of the governed processes, with or without moving memory.
fn stop_program(soak: &mut Soak) -> Option<Undo> {
    let pids = governed_pids(&soak.mount);
    let pid = soak.random.of_these(&pids).copied()?;
    stop(Pid::from_raw(pid))
}

fn stop_daemon(soak: &mut Soak) -> Option<Undo> {
    stop(soak.pid())
}

/// Locks /proc/meminfo, which any user may do.
fn lock_meminfo(_: &mut Soak) -> Option<Undo> {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["flock", "/proc/meminfo", "-c", "exec cat"]);
    let mut holder = Governed::spawn(command);
    // The end of its input ends the process and releases the lock.
    Some(Box::new(move || {
        holder.wait();
    }))
}

/// Executes many programs under one pid within a second; each is governed from its first call on.
fn execute_rapidly(soak: &mut Soak) -> Option<Undo> {
    // A stopped or starting daemon governs no process.
    soak.faults.undo();
    soak.mount.read("", "devices");
    let mut shell = DriverShell::start(&soak.mount);
    for _ in 0..24 {
        let began = Instant::now();
        shell.exec();
        // Simultaneous look-ups of a name share one answer in the kernel, even one that was found before the
        // registration. A listing is never shared.
        let pid = shell.pid();
        let is_governed = soak.mount.governs(pid) || governed_pids(&soak.mount).contains(&pid);
        assert!(
            is_governed || began.elapsed() >= PATIENCE,
            "the process is ungoverned after cuInit of {:?}",
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
    wait_until("the daemon has made a new socket", || socket.exists());
    Some(Box::new(|| ()))
}

/// Fills the small file system of the state directory.
fn fill_disk(soak: &mut Soak) -> Option<Undo> {
    let path = soak.mount.state_dir().join("filler");
    let mut filler = OpenOptions::new().create(true).append(true).open(&path).ok()?;
    while filler.write_all(&[0; 4096]).is_ok() {}
    Some(Box::new(move || {
        fs::remove_file(path).expect("the file exists");
    }))
}
