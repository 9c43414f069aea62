//! Tests group limits while a supervised daemon is killed repeatedly: they hold to the byte, and allocations
//! within them are not refused.

use std::fs::{self, File};
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use support::{Config, Mount, Truth, wait_until};

use crate::driver::DriverShell;
use crate::supervise::{End, kill9};

const MIB: u64 = 1 << 20;
const KILLS: usize = 30;
/// Most blocks that a process of `shuffle` holds.
const HELD: u64 = 8;
const LIMIT: u64 = 96 * MIB;
/// Well below the time that a process waits for a daemon before a refusal.
const SOON: Duration = Duration::from_secs(4);

/// A group of three processes with a GPU of its own.
struct Team {
    name: &'static str,
    gpu: usize,
    /// Largest block size in bytes.
    most: u64,
    shells: Vec<DriverShell>,
}

impl Team {
    fn new(mount: &Mount, name: &'static str, gpu: usize, most: u64) -> Self {
        fs::create_dir(mount.path().join(name)).expect("the directory can be made");
        mount.write(name, "memory.limit", &LIMIT.to_string());
        let shells = (0..3).map(|_| {
            let mut shell = DriverShell::start(mount);
            mount.write(name, "gcgroup.procs", &shell.pid().to_string());
            assert_eq!(shell.ask(&format!("gpu {gpu}")), "ok");
            shell
        });
        let shells = shells.collect();
        Self {
            name,
            gpu,
            most,
            shells,
        }
    }
}

/// Counts of the answers to processes of one group.
#[derive(Default)]
struct Answers {
    nr_rounds: AtomicU64,
    nr_refused: AtomicU64,
}

/// Allocates and frees until told to stop.
fn shuffle(shell: &mut DriverShell, most: u64, over: &AtomicBool, answers: &Answers) {
    while !over.load(Relaxed) {
        let answer = shell.ask(&format!("shuffle 400 {most}"));
        let mut words = answer
            .split(' ')
            .skip(1)
            .map(|word| word.parse::<u64>().expect("a count"));
        let (given, refused) = (
            words.next().expect("the bytes given"),
            words.next().expect("the refused requests"),
        );
        assert!(given + refused > 0, "{answer}");
        answers.nr_refused.fetch_add(refused, Relaxed);
        answers.nr_rounds.fetch_add(1, Relaxed);
    }
}

/// Returns `memory.current` from a single read(2): a second read after a kill would continue in the new text.
fn at_once(mount: &Mount, directory: &str) -> u64 {
    let mut text = [0; 32];
    let mut file = File::open(mount.file(directory, "memory.current")).expect("the file opens");
    let length = file.read(&mut text).expect("the file is readable");
    let text = std::str::from_utf8(&text[..length]).expect("text");
    text.trim_end()
        .parse()
        .unwrap_or_else(|_| panic!("no number: {text:?}"))
}

/// Reads the files of a team and the usage in the simulated GPU until told to stop. Returns the highest
/// usage.
fn watch(mount: &Mount, team: (&str, usize, &[i32]), over: &AtomicBool, nr_reads: &AtomicU64) -> u64 {
    let ((name, gpu, pids), truth) = (team, Truth::of(&mount.simgpu_dir()));
    let mut highest = 0;
    while !over.load(Relaxed) {
        for _ in 0..100 {
            let used = truth.used_at_once(gpu).unwrap_or(0);
            assert!(used <= LIMIT, "{name}: {used} bytes are in use");
            highest = used.max(highest);
        }
        let current = at_once(mount, name);
        assert!(current <= LIMIT, "{name}: {current} bytes are charged");
        assert_eq!(mount.number(name, "memory.limit", ""), LIMIT);
        assert!(mount.read(name, "memory.events").contains("oom "));
        let mut listed = mount.read(name, "gcgroup.procs");
        listed.push('\n');
        for pid in pids {
            assert!(listed.contains(&format!("{pid}\n")), "{pid} of {listed}");
            at_once(mount, &pid.to_string());
        }
        nr_reads.fetch_add(1, Relaxed);
    }
    highest
}

#[test]
fn group_limits_hold_over_kills_without_false_refusals() {
    let mount = Mount::with(Config::default().arg("--supervise").env("SIMGPU_DEVICES", 2));
    // In the first team everything that three processes may hold fits, although no memory is granted in
    // advance; in the second it does not fit.
    let mut teams = [
        Team::new(&mount, "roomy", 0, LIMIT / 3 / HELD),
        Team::new(&mount, "crowded", 1, LIMIT / 8),
    ];
    let (over, nr_reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let answers = [Answers::default(), Answers::default()];
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        let _end = End(&over);
        for (team, answers) in teams.iter_mut().zip(&answers) {
            let (mount, over, nr_reads, name, gpu) = (&mount, &over, &nr_reads, team.name, team.gpu);
            let pids: Vec<_> = team.shells.iter().map(DriverShell::pid).collect();
            scope.spawn(move || {
                let highest = watch(mount, (name, gpu, &pids), over, nr_reads);
                eprintln!("{name}: {highest} bytes of {LIMIT} were in use at most");
                assert!(
                    highest > LIMIT / 4,
                    "{name}: only {highest} bytes were seen in use"
                );
            });
            for shell in &mut team.shells {
                let most = team.most;
                scope.spawn(move || shuffle(shell, most, over, answers));
            }
        }
        let counts = || {
            let rounds = answers.each_ref().map(|answers| answers.nr_rounds.load(Relaxed));
            (rounds, nr_reads.load(Relaxed))
        };
        for number in 0..KILLS {
            let ([roomy, crowded], reads) = counts();
            // Every third kill follows at once, while processes are registering again.
            wait_until("the members and the reader have made progress", || {
                let ([roomy_now, crowded_now], reads_now) = counts();
                number % 3 == 2
                    || roomy_now >= roomy + 6 && crowded_now >= crowded + 6 && reads_now >= reads + 6
            });
            let begun = Instant::now();
            kill9(&mount);
            mount.number("roomy", "memory.current", "");
            longest = longest.max(begun.elapsed());
        }
        let ([roomy, crowded], reads) = counts();
        wait_until("the members and the reader progress after the last kill", || {
            let ([roomy_now, crowded_now], reads_now) = counts();
            roomy_now >= roomy + 6 && crowded_now >= crowded + 6 && reads_now >= reads + 6
        });
    });
    let [roomy, crowded] = answers.map(|answers| answers.nr_refused.into_inner());
    eprintln!("refused {roomy} and {crowded}; the longest restart {longest:?}");
    assert!(crowded > 0, "no request was refused in the crowded group");
    // Two consecutive kills count as one interruption.
    if 2 * longest < SOON {
        assert_eq!(
            roomy, 0,
            "requests were refused below the limit; the longest restart took {longest:?}"
        );
        assert_eq!(mount.number("roomy", "memory.events", "oom"), 0);
    }
    for Team { name, shells, .. } in &mut teams {
        let (last, _) = shells.split_last_mut().expect("three");
        assert_eq!(mount.number(*name, "memory.current", ""), 0);
        assert_eq!(
            last.ask(&format!("alloc linear {}", LIMIT + 1)),
            "error 2",
            "{name}"
        );
        assert_eq!(
            last.ask(&format!("alloc linear {LIMIT}")),
            "ok 0",
            "{name}: the freed memory cannot be allocated"
        );
        assert_eq!(last.ask("alloc linear 1"), "error 2", "{name}");
    }
}
