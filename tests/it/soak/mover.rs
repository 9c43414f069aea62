//! Programs whose memory moves to the host and back all the time. Some are killed in a move, and some use a
//! driver that fails in a move. All their bytes are verified repeatedly.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use support::{Governed, Mount, artifacts};

use super::random::Random;

const BLOCKS: u64 = 6;
const BLOCK: u64 = 4 << 20;

/// Longest time for an answer. Programs may be frozen and stopped meanwhile.
const PATIENCE: Duration = Duration::from_secs(240);

/// Memory limits that make some blocks move.
const LIMITS: [&str; 5] = ["1", "4M", "12M", "20M", "max"];

/// Driver calls that a move makes.
const CALLS: [&str; 6] = [
    "cuMemCreate",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemcpyAsync",
];

/// Counts over all movers.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) programs: AtomicU64,
    pub(super) killed: AtomicU64,
    pub(super) faulty_drivers: AtomicU64,
    pub(super) verified_bytes: AtomicU64,
    /// Number of blocks whose bytes differ from those written.
    pub(super) lost: AtomicU64,
}

/// How to start a governed program, for threads that do not have the mount.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    root: PathBuf,
    environment: Vec<(OsString, Option<OsString>)>,
}

impl Recipe {
    pub(super) fn of(mount: &Mount) -> Self {
        let command = mount.command(artifacts().load());
        let environment = command.get_envs();
        let owned = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
            (name.to_owned(), value.map(ToOwned::to_owned))
        };
        Self {
            root: mount.path(),
            environment: environment.map(owned).collect(),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(artifacts().load());
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

/// Starts one program after another.
pub(super) struct Mover<'a> {
    pub(super) recipe: Recipe,
    pub(super) random: Random,
    pub(super) over: &'a AtomicBool,
    pub(super) moved: &'a Moved,
}

impl Mover<'_> {
    pub(super) fn live(mut self) {
        while !self.over.load(Relaxed) {
            self.one();
        }
    }

    /// Runs one program from start to end.
    pub(super) fn one(&mut self) {
        let fault = (self.random.below(4) == 0).then(|| {
            let call = CALLS[self.random.below(CALLS.len())];
            // Mostly after the calls that the program itself makes for its blocks.
            format!("{call}=999@{}", 8 + self.random.below(40))
        });
        let mut command = self.recipe.command();
        command.arg("obey").env("GCGROUP_SWAP", "max");
        if let Some(fault) = &fault {
            command.env("SIMGPU_FAULTS", fault);
            self.moved.faulty_drivers.fetch_add(1, Relaxed);
        }
        let mut program = Governed::spawn(command);
        self.moved.programs.fetch_add(1, Relaxed);
        let is_done = self.use_it(&mut program, fault.as_deref());
        if is_done {
            let status = program.wait();
            assert!(status.success(), "{status}: {}", program.stderr());
        }
    }

    /// Uses a program. Returns whether it is to exit by itself.
    fn use_it(&mut self, program: &mut Governed, fault: Option<&str>) -> bool {
        // The program first reports what it is.
        while self.answer(program) != "ready" {}
        for _ in 0..BLOCKS {
            program.say(&format!("alloc linear {BLOCK}"));
            let answer = self.answer(program);
            // Limits are set meanwhile, and some drivers fail in any call.
            assert!(
                answer.starts_with("allocated ") || answer.starts_with("refused ") || fault.is_some(),
                "{answer}"
            );
        }
        let rounds = 1 + self.random.below(40);
        for _ in 0..rounds {
            if self.over.load(Relaxed) {
                break;
            }
            let limit = LIMITS[self.random.below(LIMITS.len())];
            // The directory may be missing shortly after the daemon was killed.
            let _ = fs::write(self.directory(program).join("memory.limit"), limit);
            if self.random.below(20) == 0 {
                thread::sleep(Duration::from_micros(self.random.below(20_000) as u64));
                program.signal(Signal::SIGKILL);
                program.wait();
                self.moved.killed.fetch_add(1, Relaxed);
                return false;
            }
            program.say("verify");
            let answer = self.answer(program);
            match answer.strip_prefix("verified ").map(str::parse::<u64>) {
                Some(Ok(blocks)) => drop(self.moved.verified_bytes.fetch_add(blocks * BLOCK, Relaxed)),
                // The failed call was the program's own.
                _ if fault.is_some() && answer.contains("CUDA_ERROR_UNKNOWN") => return false,
                _ => {
                    self.moved.lost.fetch_add(1, Relaxed);
                    panic!("answer {answer:?} with the fault {fault:?}: {}", program.stderr());
                }
            }
        }
        true
    }

    fn directory(&self, program: &Governed) -> PathBuf {
        self.recipe.root.join(program.pid().to_string())
    }

    /// Returns the program's next answer. After one second without an answer, repeatedly moves the program
    /// out of its group and undoes the settings that delay it.
    fn answer(&self, program: &mut Governed) -> String {
        let begun = Instant::now();
        loop {
            if let Some(line) = program.line_now() {
                return line;
            }
            assert!(
                program.is_running(),
                "the program has ended: {}",
                program.stderr()
            );
            assert!(begun.elapsed() < PATIENCE, "no answer: {}", program.stderr());
            if begun.elapsed() > Duration::from_secs(1) {
                self.let_go(program);
                thread::sleep(Duration::from_millis(100));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn let_go(&self, program: &Governed) {
        let directory = self.directory(program);
        let _ = fs::write(self.recipe.root.join("gcgroup.procs"), program.pid().to_string());
        for directory in [directory.clone(), directory.join("0"), directory.join("1")] {
            for (file, value) in super::rest::FREE {
                let _ = fs::write(directory.join(file), value);
            }
        }
    }
}
