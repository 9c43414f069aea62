//! Soak test, minutes long. 200 programs start, use the GPUs, and exit or are killed; the memory of other
//! programs moves and is verified; simulated users write arbitrary values; the daemon is killed every 20
//! seconds (`GCGROUP_SOAK_LIFE`); the faults of `soak/faults.rs` are injected. In the end all sums are
//! correct and nothing is left. scripts/soak.sh sets the duration.

mod directories;
mod faults;
mod holdings;
mod mover;
mod people;
mod program;
pub(crate) mod random;
mod rest;
mod sums;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Mount, wait_until};

use crate::disk::Over;
use crate::driver::governed_pids;
use crate::supervise;
use faults::Faults;
use holdings::{Holdings, resident};
use mover::{Moved, Mover, Recipe};
use people::Person;
use program::Program;
use random::Random;

/// Number of concurrent programs.
const PROGRAMS: usize = 200;
/// Number of shared GPUs.
const GPUS: usize = 2;
/// Number of simulated users that read and write.
const PEOPLE: u64 = 4;
/// Number of concurrent programs whose memory moves.
const MOVERS: u64 = 6;
/// Size in KiB of the state directory's file system: the journal of all processes and a compacted copy.
const STATE_KILOBYTES: u32 = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Daemon {
    /// A successor follows at once; open files are unaffected.
    Supervised,
    /// The test kills the daemon and starts it again.
    Restarted,
    /// The daemon keeps running, to observe its resource usage over time.
    Kept,
}

#[test]
#[ignore = "takes minutes: scripts/soak.sh"]
fn under_a_supervisor() {
    soak(Daemon::Supervised);
}

#[test]
#[ignore = "takes minutes: scripts/soak.sh"]
fn with_a_daemon_that_is_killed_and_started_again() {
    soak(Daemon::Restarted);
}

#[test]
#[ignore = "takes minutes: scripts/soak.sh"]
fn with_a_daemon_that_lives_on() {
    soak(Daemon::Kept);
}

fn seconds(variable: &str, unless_set: u64) -> Duration {
    let seconds = std::env::var(variable).map_or(unless_set, |text| text.parse().expect("a number"));
    Duration::from_secs(seconds)
}

fn duration() -> Duration {
    seconds("GCGROUP_SOAK_SECONDS", 60)
}

/// Returns the time after which a daemon is killed.
fn life() -> Duration {
    seconds("GCGROUP_SOAK_LIFE", 20)
}

/// State of a running soak test.
struct Soak {
    /// The filesystem of the state directory; unmounted before the mount's directory is removed.
    small: Option<Over>,
    mount: Mount,
    daemon: Daemon,
    programs: Vec<Program>,
    random: Random,
    nr_started: u64,
    nr_killed: u64,
    nr_kills: u64,
    faults: Faults,
    /// Resident KiB at the end of each life of a daemon that knew most of the programs.
    resident: Vec<f64>,
}

fn soak(daemon: Daemon) {
    support::allow(duration());
    let config = Config::default().env("SIMGPU_DEVICES", GPUS).arg("--log=warn");
    let config = if daemon == Daemon::Supervised {
        config.arg("--supervise")
    } else {
        config
    };
    let mut soak = Soak {
        small: None,
        mount: Mount::with(config),
        daemon,
        programs: Vec::new(),
        random: Random::of(7),
        nr_started: 0,
        nr_killed: 0,
        nr_kills: 0,
        faults: Faults::default(),
        resident: Vec::new(),
    };
    // A fault fills the state directory, so it gets a small file system of its own.
    soak.mount.stop();
    soak.small = Some(Over::small(&soak.mount, STATE_KILOBYTES));
    soak.mount.restart();
    let before = soak.holdings_of_an_idle_daemon();
    let (over, nr_done, refusals) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::default());
    let (moved, recipe) = (Moved::default(), Recipe::of(&soak.mount));
    thread::scope(|scope| {
        let _end = supervise::End(&over);
        for number in 0..PEOPLE {
            let person = Person {
                root: soak.mount.path(),
                random: Random::of(100 + number),
                over: &over,
                nr_done: &nr_done,
                refusals: &refusals,
            };
            scope.spawn(|| person.live());
        }
        for number in 0..MOVERS {
            let mover = Mover {
                recipe: recipe.clone(),
                random: Random::of(200 + number),
                over: &over,
                moved: &moved,
            };
            scope.spawn(|| mover.live());
        }
        soak.live();
    });
    let refusals = refusals.into_inner().expect("no thread panicked");
    let Soak {
        nr_started,
        nr_killed,
        nr_kills,
        resident,
        ..
    } = &soak;
    let [nr_movers, nr_movers_killed, nr_faulty, verified, lost] = [
        &moved.programs,
        &moved.killed,
        &moved.faulty_drivers,
        &moved.verified_bytes,
        &moved.lost,
    ]
    .map(|count| count.load(Relaxed));
    eprintln!(
        "{daemon:?}: kills: {nr_kills} of the daemon, {nr_killed} of {nr_started} programs, {nr_movers_killed} in moves of \
         {nr_movers} that move; faults: {:?}, {nr_faulty} drivers that fail in moves; {} reads and writes, refused: \
         {refusals:?}; {} MiB verified after moves, losses: {lost}; kB {resident:?}",
        soak.faults.counts,
        nr_done.load(Relaxed),
        verified >> 20,
    );
    assert!(
        verified > 0 && lost == 0,
        "{verified} bytes verified, {lost} lost"
    );
    let lost = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::EINTR, 0];
    assert!(
        daemon == Daemon::Restarted || lost.iter().all(|errno| !refusals.contains_key(errno)),
        "{refusals:?}"
    );
    soak.come_to_rest();
    soak.assert_adds_up();
    soak.assert_nothing_is_left(&before);
}

impl Soak {
    fn pid(&self) -> Pid {
        match self.daemon {
            Daemon::Supervised => support::wait_for("a daemon runs", || supervise::daemon(&self.mount)),
            Daemon::Restarted | Daemon::Kept => self.mount.daemon().expect("the daemon runs"),
        }
    }

    /// Returns the daemon's holdings after everything that starts on first use has started.
    fn holdings_of_an_idle_daemon(&mut self) -> Holdings {
        let mut program = Program::start(&self.mount, &mut self.random);
        program.load.expect("ready");
        let pid = program.load.pid();
        fs::read(self.mount.file(pid, "gcgroup.stat")).expect("the file is readable");
        fs::read(self.mount.file("", "unmanaged")).expect("the file is readable");
        program.load.wait();
        let (over, moved) = (AtomicBool::new(false), Moved::default());
        let mut mover = Mover {
            recipe: Recipe::of(&self.mount),
            random: Random::of(1),
            over: &over,
            moved: &moved,
        };
        mover.one();
        wait_until("the program is no longer governed", || {
            governed_pids(&self.mount).is_empty()
        });
        let mut last = Holdings::of(self.pid());
        wait_until("the daemon's holdings are stable", || {
            thread::sleep(Duration::from_millis(100));
            let now = Holdings::of(self.pid());
            std::mem::replace(&mut last, now.clone()) == now
        });
        last
    }

    fn live(&mut self) {
        let end = Instant::now() + duration();
        let mut next_kill = Instant::now() + life();
        while Instant::now() < end {
            self.start_some();
            self.end_some();
            self.inject();
            if Instant::now() >= next_kill {
                // A daemon killed while its disk is full loses settings that it could not store.
                self.faults.undo();
                self.note_resident();
                self.kill_daemon();
                next_kill = Instant::now() + life();
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.faults.undo();
        self.note_resident();
    }

    /// Notes the daemon's memory, unless it has only begun to know the programs.
    fn note_resident(&mut self) {
        // The last daemon may have been killed just now.
        let (nr_known, kilobytes) = support::wait_for("a living daemon's memory is read", || {
            Some((governed_pids(&self.mount).len(), resident(self.pid())?))
        });
        if nr_known >= PROGRAMS * 9 / 10 {
            self.resident.push(kilobytes);
        }
    }

    fn start_some(&mut self) {
        for _ in 0..2 {
            if self.programs.len() < PROGRAMS {
                self.programs.push(Program::start(&self.mount, &mut self.random));
                self.nr_started += 1;
            }
        }
    }

    fn end_some(&mut self) {
        for index in (0..self.programs.len()).rev() {
            if !self.programs[index].load.is_running() {
                let mut ended = self.programs.swap_remove(index);
                let status = ended.load.wait();
                assert!(status.success(), "{status}: {}", ended.load.stderr());
            }
        }
        if self.programs.len() == PROGRAMS && self.random.below(8) == 0 {
            let index = self.random.below(PROGRAMS);
            let mut victim = self.programs.swap_remove(index);
            victim.load.signal(Signal::SIGKILL);
            let status = victim.load.wait();
            assert!(
                status.success() || status.signal() == Some(libc::SIGKILL),
                "{status}"
            );
            self.nr_killed += 1;
        }
    }

    fn kill_daemon(&mut self) {
        match self.daemon {
            Daemon::Supervised => kill(self.pid(), Signal::SIGKILL).expect("the daemon runs"),
            Daemon::Restarted => {
                self.mount.kill9();
                self.mount.restart();
            }
            Daemon::Kept => return,
        }
        self.nr_kills += 1;
    }
}
