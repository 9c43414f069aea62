//! Two hundred programs that come, use the GPUs, and go by themselves or by kill -9, for minutes; people who write whatever
//! they like; a daemon that is killed every twenty seconds. In the end everything adds up and nothing is left.
//! scripts/soak.sh says for how long.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::driver::governed_pids;
use crate::supervise;

/// Programs at a time.
const PROGRAMS: usize = 200;
/// The GPUs that they share.
const GPUS: usize = 2;
/// People who read and write.
const PEOPLE: u64 = 4;
/// The life of a daemon.
const LIFE: Duration = Duration::from_secs(20);
/// Names of groups in a directory.
const NAMES: usize = 4;
/// What a daemon may have more of memory, over one of the same age before.
const GROWTH: f64 = 1.5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Daemon {
    /// Followed by the next at once; no open file notices.
    Supervised,
    /// Killed, and started again by hand.
    Restarted,
    /// Left alone, to see what it costs in the long run.
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

fn duration() -> Duration {
    let seconds = std::env::var("GCGROUP_SOAK_SECONDS").map_or(60, |text| text.parse().expect("a number"));
    Duration::from_secs(seconds)
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % end as u64).expect("fits")
    }

    fn of_these<'a, T>(&mut self, these: &'a [T]) -> Option<&'a T> {
        (!these.is_empty()).then(|| &these[self.below(these.len())])
    }
}

/// A running `gcgroup-load roam`.
struct Program {
    load: Governed,
    /// Whether it goes on until it is told.
    stays: bool,
}

impl Program {
    fn start(mount: &Mount, random: &mut Random) -> Self {
        let stays = random.below(3) != 0;
        let rounds = if stays { 0 } else { 1 + random.below(500) };
        let mut command = mount.command(artifacts().load());
        command.args(["roam", "--pause-ms", "200", "--size", "512K"]);
        command.args(["--seed", &random.below(1 << 40).to_string()]);
        command.args(["--rounds", &rounds.to_string()]);
        command.args(["--device", &random.below(GPUS).to_string()]);
        let load = Governed::spawn(command);
        Self { load, stays }
    }
}

/// What a process has open, mapped and running, by kind.
#[derive(Debug, PartialEq, Eq, Clone)]
struct Holdings {
    descriptors: BTreeMap<String, usize>,
    /// But for those that close what strangers sent, which stay.
    threads: BTreeMap<String, usize>,
    blocks: usize,
}

impl Holdings {
    fn of(pid: Pid) -> Self {
        let count = |names: Vec<String>| {
            let mut counted = BTreeMap::new();
            for name in names {
                *counted.entry(name).or_default() += 1;
            }
            counted
        };
        let names = |directory: &str, name: fn(&Path) -> Option<String>| {
            let entries = fs::read_dir(format!("/proc/{pid}/{directory}")).expect("proc(5)");
            entries
                .flatten()
                .filter_map(|entry| name(&entry.path()))
                .collect::<Vec<_>>()
        };
        let kind = |path: &Path| {
            let target = fs::read_link(path).ok()?.display().to_string();
            // Sockets and pipes have numbers.
            Some(target.split(":[").next().unwrap_or_default().to_owned())
        };
        let comm = |path: &Path| Some(fs::read_to_string(path.join("comm")).ok()?.trim().to_owned());
        let mut threads = names("task", comm);
        threads.retain(|name| name != "closer");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("proc(5)");
        Self {
            descriptors: count(names("fd", kind)),
            threads: count(threads),
            blocks: maps.matches("/memfd:").count(),
        }
    }
}

/// Kilobytes of resident memory.
fn resident(pid: Pid) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    number.expect("Linux shows it")
}

/// What may be written to a control file, sense and nonsense.
fn values(file: &str) -> &'static [&'static str] {
    match file {
        "memory.limit" => &[
            "max",
            "max",
            "1M",
            "300K",
            "0",
            "64M",
            "-1",
            "18446744073709551615",
        ],
        "memory.swap.max" | "memory.reclaim" => &["0", "max", "1M"],
        "memory.peak" => &["0", "x"],
        "compute.freeze" => &["0", "0", "0", "1", "2"],
        "compute.priority" => &["0", "2", "8", "15", "16", "eight"],
        "compute.max" => &["max", "max", "50000 100000", "1000 1000", "1", "max 5000", "0 0"],
        "compute.policy" => &["weighted", "strict", "none"],
        _ => &["", "1"],
    }
}

/// Somebody who reads and writes what there is.
struct Person<'a> {
    root: PathBuf,
    random: Random,
    over: &'a AtomicBool,
    nr_done: &'a AtomicU64,
    /// What it was refused, by errno.
    refusals: &'a Mutex<BTreeMap<i32, String>>,
}

impl Person<'_> {
    fn live(mut self) {
        while !self.over.load(Relaxed) {
            if let Err(error) = self.act() {
                let number = error.raw_os_error().unwrap_or(0);
                let mut refusals = self.refusals.lock().expect("nobody panics");
                refusals.entry(number).or_insert_with(|| error.to_string());
            }
            self.nr_done.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn act(&mut self) -> io::Result<()> {
        match self.random.below(12) {
            0 => return self.make_group(),
            1 => {
                return match self.group()? {
                    // Without a daemon it may be a directory like any other.
                    root if root == self.root => Ok(()),
                    group => fs::remove_dir(group),
                };
            }
            2 => return self.move_somebody(),
            _ => {}
        }
        let mut path = self.root.clone();
        loop {
            let names = names(&path)?;
            let Some(name) = self.random.of_these(&names) else {
                return Ok(());
            };
            path.push(name);
            if !fs::metadata(&path)?.is_dir() {
                break;
            }
        }
        let file = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let value = self.random.of_these(values(&file)).copied();
        match (self.random.below(3), value) {
            (0, Some(value)) => {
                let mut file = OpenOptions::new().write(true).open(&path)?;
                file.write(value.as_bytes()).map(drop)
            }
            _ => fs::read(&path).map(drop),
        }
    }

    /// The root, or a group in it or deeper.
    fn group(&mut self) -> io::Result<PathBuf> {
        let groups = groups(&self.root)?;
        Ok(self
            .random
            .of_these(&groups)
            .cloned()
            .unwrap_or(self.root.clone()))
    }

    fn make_group(&mut self) -> io::Result<()> {
        let parent = if self.random.below(2) == 0 {
            self.group()?
        } else {
            self.root.clone()
        };
        fs::create_dir(parent.join(format!("group{}", self.random.below(NAMES))))
    }

    fn move_somebody(&mut self) -> io::Result<()> {
        let pids = fs::read_to_string(self.root.join("gcgroup.procs"))?;
        let pids: Vec<_> = pids.lines().collect();
        let Some(pid) = self.random.of_these(&pids) else {
            return Ok(());
        };
        fs::write(self.group()?.join("gcgroup.procs"), pid)
    }
}

/// Every group below a directory, parents first.
fn groups(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in names(path)? {
        // Processes and GPUs have numbers.
        if name.to_string_lossy().starts_with("group") {
            let group = path.join(name);
            // It may have gone since.
            let below = groups(&group).unwrap_or_default();
            found.push(group);
            found.extend(below);
        }
    }
    Ok(found)
}

fn names(path: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Tells, where a panic passes, what those are doing that are still there.
struct Left(PathBuf);

impl Drop for Left {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
        let pids = names(&self.0).unwrap_or_default().into_iter();
        for pid in pids.filter(|name| name.to_string_lossy().parse::<u32>().is_ok()) {
            let directory = self.0.join(&pid);
            let files = [
                "compute.freeze",
                "compute.priority",
                "compute.max",
                "gcgroup.events",
                "gcgroup.stat",
                "compute.stat",
                "memory.events",
            ];
            let told: Vec<_> = files.map(|file| read(directory.join(file))).into();
            let tasks = Path::new("/proc").join(&pid).join("task");
            let waits: Vec<_> = names(&tasks)
                .unwrap_or_default()
                .iter()
                .map(|task| read(tasks.join(task).join("syscall")))
                .collect();
            eprintln!(
                "{}: {} {}",
                pid.display(),
                told.concat().replace('\n', " "),
                waits.concat()
            );
        }
    }
}

/// Everything at once.
struct Soak {
    mount: Mount,
    daemon: Daemon,
    programs: Vec<Program>,
    random: Random,
    nr_started: u64,
    nr_killed: u64,
    nr_kills: u64,
    /// Kilobytes of each daemon, at the end of its life.
    resident: Vec<f64>,
}

fn soak(daemon: Daemon) {
    let config = Config::default().env("SIMGPU_DEVICES", GPUS).arg("--log=warn");
    let config = if daemon == Daemon::Supervised {
        config.arg("--supervise")
    } else {
        config
    };
    let mut soak = Soak {
        mount: Mount::with(config),
        daemon,
        programs: Vec::new(),
        random: Random::of(7),
        nr_started: 0,
        nr_killed: 0,
        nr_kills: 0,
        resident: Vec::new(),
    };
    let before = soak.holdings_of_an_idle_daemon();
    let (over, nr_done, refusals) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::default());
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
        soak.live();
    });
    let refusals = refusals.into_inner().expect("nobody panicked");
    let Soak {
        nr_started,
        nr_killed,
        nr_kills,
        resident,
        ..
    } = &soak;
    eprintln!(
        "{daemon:?}: {nr_started} programs, {nr_killed} killed; {nr_kills} daemons killed; {} reads and writes, refused: \
         {refusals:?}; kB {resident:?}",
        nr_done.load(Relaxed)
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
            Daemon::Supervised => support::wait_for("a daemon", || supervise::daemon(&self.mount)),
            Daemon::Restarted | Daemon::Kept => self.mount.daemon().expect("it runs"),
        }
    }

    /// Once everything that starts when it is first needed has been.
    fn holdings_of_an_idle_daemon(&mut self) -> Holdings {
        let mut program = Program::start(&self.mount, &mut self.random);
        program.load.expect("ready");
        let pid = program.load.pid();
        fs::read(self.mount.file(pid, "gcgroup.stat")).expect("reads");
        fs::read(self.mount.file("", "unmanaged")).expect("reads");
        program.load.wait();
        wait_until("it has gone", || governed_pids(&self.mount).is_empty());
        let mut last = Holdings::of(self.pid());
        wait_until("the daemon is at rest", || {
            thread::sleep(Duration::from_millis(100));
            let now = Holdings::of(self.pid());
            std::mem::replace(&mut last, now.clone()) == now
        });
        last
    }

    fn live(&mut self) {
        let end = Instant::now() + duration();
        let mut next_kill = Instant::now() + LIFE;
        while Instant::now() < end {
            self.start_some();
            self.end_some();
            if Instant::now() >= next_kill {
                self.resident.push(resident(self.pid()));
                self.kill_daemon();
                next_kill = Instant::now() + LIFE;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.resident.push(resident(self.pid()));
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
            Daemon::Supervised => kill(self.pid(), Signal::SIGKILL).expect("it runs"),
            Daemon::Restarted => {
                self.mount.kill9();
                self.mount.restart();
            }
            Daemon::Kept => return,
        }
        self.nr_kills += 1;
    }

    /// Everybody is let go, comes to a point where it has ended its work, and stays there.
    fn come_to_rest(&mut self) {
        let _left = Left(self.mount.path());
        // Those that come to their own end do.
        let everybody = || {
            let root = self.mount.path();
            let pids = governed_pids(&self.mount).into_iter().map(|pid| pid.to_string());
            // Each has what holds for it as a whole, and what holds on one GPU.
            pids.map(|pid| root.join(pid))
                .chain(groups(&root).expect("the mount lists"))
                .flat_map(|directory| {
                    let gpus = (0..GPUS).map(|gpu| directory.join(gpu.to_string()));
                    gpus.chain([directory.clone()]).collect::<Vec<_>>()
                })
                .collect::<Vec<_>>()
        };
        let mut is_let_go = || {
            for directory in everybody() {
                // Who is least important among two hundred would have its turn in the end, and not soon.
                for (file, value) in [
                    ("compute.freeze", "0"),
                    ("compute.max", "max"),
                    ("compute.priority", "8"),
                ] {
                    // It may have ended.
                    let _ = fs::write(directory.join(file), value);
                }
            }
            let ended: Vec<_> = self
                .programs
                .iter_mut()
                .filter(|program| !program.stays)
                .collect();
            ended.into_iter().all(|program| {
                program.load.close_stdin();
                !program.load.is_running()
            })
        };
        wait_until("those that end by themselves have", &mut is_let_go);
        self.programs.retain(|program| program.stays);
        for program in &mut self.programs {
            program.load.say("");
        }
        for program in &mut self.programs {
            program.load.expect("held");
        }
        let mut pids: Vec<_> = self.programs.iter().map(|program| program.load.pid()).collect();
        pids.sort_unstable();
        wait_until("everybody has a directory, and nobody else", || {
            let mut governed = governed_pids(&self.mount);
            governed.sort_unstable();
            governed == pids
        });
    }

    /// What the files show is what the simulated GPUs have given.
    fn assert_adds_up(&self) {
        let truth = self.mount.truth();
        let current = |directory: String| self.mount.number(directory, "memory.current", "");
        for program in &self.programs {
            let pid = program.load.pid();
            for gpu in 0..GPUS {
                wait_until("a process's usage is what it has", || {
                    current(format!("{pid}/{gpu}")) == truth.used(pid, gpu)
                });
            }
            assert_eq!(current(pid.to_string()), truth.used(pid, 0) + truth.used(pid, 1));
        }
        let members = self
            .programs
            .iter()
            .map(|program| current(program.load.pid().to_string()));
        assert_eq!(current(String::new()), members.sum::<u64>());
        assert_eq!(
            current(String::new()),
            truth.used_by_all(0) + truth.used_by_all(1)
        );
        let mut nr_members = 0;
        for group in groups(&self.mount.path()).expect("the mount lists") {
            let number = |directory: &Path| {
                let text = fs::read_to_string(directory.join("memory.current")).expect("reads");
                text.trim().parse::<u64>().expect("a number")
            };
            let own = fs::read_to_string(group.join("gcgroup.procs")).expect("reads");
            let own: Vec<_> = own
                .lines()
                .map(|pid| number(&self.mount.path().join(pid)))
                .collect();
            let children = groups(&group).expect("lists");
            let children = children.iter().filter(|child| child.parent() == Some(&group));
            let sum = own.iter().sum::<u64>() + children.map(|child| number(child)).sum::<u64>();
            assert_eq!(number(&group), sum, "{}", group.display());
            nr_members += own.len();
        }
        eprintln!("{:?}: {nr_members} of them in groups", self.daemon);
        assert!(nr_members > 0);
        let used: Vec<_> = (0..GPUS).map(|gpu| truth.used_by_all(gpu)).collect();
        eprintln!(
            "{:?}: {} programs hold {used:?} bytes",
            self.daemon,
            self.programs.len()
        );
        assert!(used.iter().all(|used| *used > 0));
    }

    fn assert_nothing_is_left(mut self, before: &Holdings) {
        for (number, mut program) in self.programs.drain(..).enumerate() {
            if number % 2 == 0 {
                program.load.signal(Signal::SIGKILL);
                program.load.wait();
            } else {
                assert!(program.load.wait().success(), "{}", program.load.stderr());
            }
        }
        wait_until("their directories have gone", || {
            governed_pids(&self.mount).is_empty()
        });
        assert_eq!(self.mount.number("", "memory.current", ""), 0);
        let truth = self.mount.truth();
        assert_eq!(truth.used_by_all(0) + truth.used_by_all(1), 0);
        assert_eq!(self.mount.read("", "unmanaged"), "");
        for group in groups(&self.mount.path()).expect("lists").iter().rev() {
            fs::remove_dir(group).expect("nobody is in it");
        }
        wait_until("the daemon has what an idle one has", || {
            let now = Holdings::of(self.pid());
            if now != *before {
                thread::sleep(Duration::from_millis(200));
            }
            now == *before
        });
        let (first, last) = (self.resident[0], self.resident[self.resident.len() - 1]);
        assert!(
            last <= first * GROWTH,
            "kB at the end of each life: {:?}",
            self.resident
        );
        let state = fs::metadata(self.mount.state_dir().join("settings.jsonl"))
            .expect("is there")
            .len();
        assert!(state < 2 << 20, "{state} bytes of settings");
        assert_eq!(
            self.mount.log().matches("panicked").count(),
            0,
            "{}",
            self.mount.log()
        );
    }
}
