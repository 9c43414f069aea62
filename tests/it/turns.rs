//! Tests memory turns: busy processes whose memory does not fit together have the GPU one after the other,
//! each with all of its memory there.

use std::fs;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Governed, Mount, artifacts, repository, stop, wait_until};

use crate::contended::{goes_on, program, share_word, wait_for_ratio};
use crate::driver::Dir;
use crate::simgpu::Program;

const MIB: u64 = 1 << 20;
/// Memory of the simulated GPU, whose contexts take none, and the bytes of a block.
const TOTAL: u64 = 128 * MIB;
const BLOCK: u64 = 8 * MIB;

/// Mounts a GPU on which turns are short.
fn mount() -> Mount {
    Mount::with(short(gpu()))
}

fn gpu() -> Config {
    Config::default()
        .env("SIMGPU_MEMORY", TOTAL)
        .env("SIMGPU_CONTEXT_MEMORY", 0)
}

fn short(config: Config) -> Config {
    let path = repository().join("tests/data/short_turns.toml");
    config
        .arg("--config")
        .arg(path.to_str().expect("the path is UTF-8"))
}

/// A program with blocks of memory that works, and verifies them, until it is asked for something else.
struct Job {
    program: Governed,
    blocks: u64,
}

impl Job {
    #[track_caller]
    fn idle(mount: &Mount, bytes: u64) -> Self {
        let mut command = mount.command(artifacts().load());
        command.arg("obey").env("GCGROUP_SWAP", "max");
        let mut program = Governed::spawn(command);
        program.expect("ready");
        let blocks = bytes / BLOCK;
        for _ in 0..blocks {
            let answer = program.ask(&format!("alloc linear {BLOCK}"));
            assert!(answer.starts_with("allocated "), "{answer}");
        }
        Self { program, blocks }
    }

    #[track_caller]
    fn busy(mount: &Mount, bytes: u64) -> Self {
        let mut job = Self::idle(mount, bytes);
        job.work();
        job
    }

    fn work(&mut self) {
        self.program.say("work 200");
    }

    /// Ends the work. Returns its answer to `command`.
    #[track_caller]
    fn ask(&mut self, command: &str) -> String {
        self.program.say(command);
        let answer = self.program.line().expect("the program answers");
        assert!(answer.starts_with("worked "), "{answer}");
        self.program.line().expect("the program answers")
    }

    /// Checks that no byte has changed.
    #[track_caller]
    fn verify(&mut self) {
        assert_eq!(self.ask("verify"), format!("verified {}", self.blocks));
    }

    fn pid(&self) -> i32 {
        self.program.pid()
    }

    fn dir<'m>(&self, mount: &'m Mount) -> Dir<'m> {
        Dir::of(mount, self.pid())
    }

    fn turn(&self, mount: &Mount) -> u64 {
        self.dir(mount).key("compute.stat", "memory_turn")
    }

    fn nr_turns(&self, mount: &Mount) -> u64 {
        self.dir(mount).key("compute.stat", "nr_memory_turns")
    }

    /// Returns whether it has the turn and all of its memory.
    fn owns(&self, mount: &Mount) -> bool {
        self.turn(mount) == 1 && self.dir(mount).number("memory.swap.current") == 0
    }
}

/// Waits until a job has had `more` more turns, each with all of its memory on the GPU.
#[track_caller]
fn takes_turns(mount: &Mount, jobs: &[&Job], more: u64) {
    for job in jobs {
        let goal = job.nr_turns(mount) + more;
        wait_until("the job has had its turns", || job.nr_turns(mount) >= goal);
        wait_until("the job has all of its memory in its turn", || job.owns(mount));
    }
}

/// Waits until there are no turns and the jobs have all of their memory.
#[track_caller]
fn run_together(mount: &Mount, jobs: &[&Job]) {
    for job in jobs {
        wait_until("the job runs without turns", || {
            job.turn(mount) == 0 && job.dir(mount).number("memory.swap.current") == 0
        });
        goes_on(mount, job.pid(), 0, 10_000);
    }
}

#[test]
fn jobs_that_do_not_fit_together_take_turns() {
    for bytes in [&[96 * MIB; 2][..], &[64 * MIB; 3]] {
        let mount = mount();
        let mut jobs: Vec<Job> = bytes.iter().map(|bytes| Job::busy(&mount, *bytes)).collect();
        takes_turns(&mount, &jobs.iter().collect::<Vec<_>>(), 2);
        for job in &jobs {
            let others = jobs.iter().map(Job::pid).filter(|pid| *pid != job.pid());
            let has_waited = |line: &str| {
                others
                    .clone()
                    .any(|pid| line.starts_with(&format!("{pid} gpu=0 for=memory usec=")))
            };
            let waits = mount.read(job.pid(), "gcgroup.waits");
            assert!(waits.lines().all(has_waited) && !waits.is_empty(), "{waits}");
        }
        assert!(
            mount.log().contains("busy processes take memory turns"),
            "{}",
            mount.log()
        );
        jobs.iter_mut().for_each(Job::verify);
    }
}

#[test]
fn jobs_run_together_again_when_everything_fits() {
    let mount = mount();
    let (mut one, mut other) = (Job::busy(&mount, 96 * MIB), Job::busy(&mount, 96 * MIB));
    takes_turns(&mount, &[&one, &other], 1);
    assert_eq!(one.ask("free all"), format!("freed {}", one.blocks));
    one.work();
    one.blocks = 0;
    run_together(&mount, &[&one, &other]);
    one.verify();
    other.verify();
}

#[test]
fn killed_owner_leaves_the_gpu_to_the_other() {
    let mount = mount();
    let (one, mut other) = (Job::busy(&mount, 96 * MIB), Job::busy(&mount, 96 * MIB));
    takes_turns(&mount, &[&other, &one], 1);
    kill(Pid::from_raw(one.pid()), Signal::SIGKILL).expect("the process runs");
    run_together(&mount, &[&other]);
    other.verify();
}

#[test]
fn idle_process_makes_room_for_the_busy_one() {
    let mount = mount();
    let mut idle = Job::idle(&mount, 96 * MIB);
    let mut busy = Job::busy(&mount, 96 * MIB);
    wait_until("the busy process has all of its memory", || {
        busy.dir(&mount).number("memory.swap.current") == 0
    });
    wait_until("there is no turn, and the idle process has made room", || {
        busy.turn(&mount) == 0 && idle.dir(&mount).number("memory.swap.current") >= 64 * MIB
    });
    goes_on(&mount, busy.pid(), 0, 10_000);
    assert_eq!(
        idle.program.ask("verify"),
        format!("verified {}", idle.blocks),
        "it can work at once"
    );
    busy.verify();
}

#[test]
fn higher_priority_has_the_turn_while_it_is_busy() {
    let mount = mount();
    mount.write("", "compute.policy", "strict");
    let (mut low, mut high) = (Job::busy(&mount, 96 * MIB), Job::idle(&mount, 96 * MIB));
    low.dir(&mount).write("compute.priority", 9);
    high.dir(&mount).write("compute.priority", 3);
    high.work();
    wait_until("the higher priority has the turn", || high.owns(&mount));
    wait_for_ratio(&mount, [high.pid(), low.pid()], |ratio| ratio > 4.0);
    high.verify();
    wait_until("the lower priority has all of its memory", || {
        low.dir(&mount).number("memory.swap.current") == 0
    });
    low.verify();
}

#[test]
fn nested_groups_have_turns_as_groups() {
    let mount = mount();
    let jobs = ["one", "two/inner/one", "two/inner/two"].map(|group| {
        fs::create_dir_all(mount.path().join(group)).expect("root may create groups");
        let job = Job::busy(&mount, 96 * MIB);
        mount.write(group, "gcgroup.procs", &job.pid().to_string());
        job
    });
    takes_turns(&mount, &jobs.each_ref(), 1);
    let truth = mount.truth();
    let nr_turns = || jobs.each_ref().map(|job| job.nr_turns(&mount));
    let before = nr_turns();
    // The time for which each has most of the memory, since turns include their moves. The work that is done
    // then depends on how busy the machine is.
    let (mut last, mut held) = (Instant::now(), [0; 3]);
    wait_until("the shares are as expected", || {
        let passed = std::mem::replace(&mut last, Instant::now()).elapsed().as_micros();
        let used = jobs.each_ref().map(|job| truth.used(job.pid(), 0));
        let owner = [0, 1, 2].into_iter().max_by_key(|at| used[*at]);
        held[owner.expect("there are three")] += passed;
        if nr_turns()
            .iter()
            .zip(&before)
            .any(|(now, before)| *now < before + 3)
        {
            return false;
        }
        let all = held.iter().sum::<u128>().max(1);
        let percent = held.map(|held| 100 * held / all);
        percent
            .iter()
            .zip([50, 25, 25])
            .all(|(percent, expected)| percent.abs_diff(expected) <= 6)
    });
}

#[test]
fn frozen_and_stopped_processes_do_not_keep_the_turn() {
    let mount = mount();
    let (mut one, mut other) = (Job::busy(&mount, 96 * MIB), Job::busy(&mount, 96 * MIB));
    takes_turns(&mount, &[&one, &other], 1);
    one.dir(&mount).write("compute.freeze", 1);
    wait_until("the process is frozen", || one.dir(&mount).is_frozen());
    goes_on(&mount, other.pid(), 0, 100_000);
    one.dir(&mount).write("compute.freeze", 0);
    takes_turns(&mount, &[&one, &other], 1);
    // It neither works nor moves memory; the other goes on with or without a turn.
    stop(Pid::from_raw(one.pid()));
    goes_on(&mount, other.pid(), 0, 100_000);
    one.program.signal(Signal::SIGCONT);
    goes_on(&mount, one.pid(), 0, 10_000);
    one.verify();
    other.verify();
}

#[test]
fn daemon_killed_and_restarted_goes_on_with_turns() {
    let mut mount = mount();
    let (mut one, mut other) = (Job::busy(&mount, 96 * MIB), Job::busy(&mount, 96 * MIB));
    takes_turns(&mount, &[&one, &other], 1);
    mount.kill9();
    // Without a daemon, both go on after the grace time.
    for job in [&one, &other] {
        goes_on(&mount, job.pid(), 0, 10_000);
    }
    mount.restart();
    for job in [&one, &other] {
        wait_until("the process has registered again", || mount.governs(job.pid()));
    }
    takes_turns(&mount, &[&one, &other], 1);
    one.verify();
    other.verify();
}

#[test]
fn limits_and_reclaims_between_turns_are_obeyed() {
    let mount = mount();
    let (mut one, mut other) = (Job::busy(&mount, 96 * MIB), Job::busy(&mount, 96 * MIB));
    takes_turns(&mount, &[&one, &other], 1);
    let dir = one.dir(&mount);
    dir.write("memory.limit", 24 * MIB);
    wait_until("the memory over the limit is swapped out", || {
        dir.number("memory.current") <= 24 * MIB
    });
    // Together they fit now.
    wait_until("the jobs run without turns", || {
        one.turn(&mount) == 0 && other.turn(&mount) == 0
    });
    goes_on(&mount, one.pid(), 0, 10_000);
    dir.write("memory.limit", "max");
    takes_turns(&mount, &[&one, &other], 1);
    dir.write("memory.reclaim", 32 * MIB);
    goes_on(&mount, one.pid(), 0, 10_000);
    goes_on(&mount, other.pid(), 0, 10_000);
    one.verify();
    other.verify();
}

#[test]
fn processes_that_wait_for_each_other_go_on() {
    let mount = Mount::with(short(gpu().env("GCGROUP_SWAP", "max")));
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4096).expect("the file can grow");
    let [mut one, mut other] = [program(&mount, 8), program(&mount, 8)];
    for program in [&mut one, &mut other] {
        share_word(program, file.path());
        program.run(&format!(
            "for _ in range(12): got(c_uint64, 'cuMemAlloc_v2', {BLOCK})"
        ));
    }
    let (wait, write) = ("cu.cuStreamWaitValue32_v2", "cu.cuStreamWriteValue32_v2");
    // Each needs work of the other, also of a process that waits for its turn, and while memory moves.
    for round in 1..=10 {
        let (first, second) = (2 * round - 1, 2 * round);
        let spins = "*[launch(spin, 20000) for _ in range(10)]";
        one.0.say(&format!(
            "any(({wait}(0, flag, {first}, 0), {spins}, {write}(0, flag, {second}, 0), cu.cuCtxSynchronize()))"
        ));
        other.0.say(&format!(
            "any(({spins}, {write}(0, flag, {first}, 0), {wait}(0, flag, {second}, 0), cu.cuCtxSynchronize()))"
        ));
        for program in [&mut one, &mut other] {
            assert_eq!(program.0.line().as_deref(), Some("False"), "{round}");
        }
    }
    let turns = |program: &Program| Dir::of(&mount, program.pid()).key("compute.stat", "nr_memory_turns");
    assert!(turns(&one) + turns(&other) > 0);
}

#[test]
fn without_host_memory_jobs_run_without_turns() {
    let meminfo = tempfile::NamedTempFile::new().expect("a file");
    let path = meminfo.path().to_str().expect("the path is UTF-8");
    let tell = |available: u64| {
        let text = format!("MemTotal: 8388608 kB\nMemAvailable: {} kB\n", available >> 10);
        fs::write(meminfo.path(), text).expect("the file is writable");
    };
    tell(6 << 30);
    let mount = Mount::with(short(gpu().env("GCGROUP_MEMINFO", path)));
    let mut one = Job::idle(&mount, 96 * MIB);
    let mut other = Job::idle(&mount, 96 * MIB);
    // The reserve alone is left.
    tell(512 << 20);
    one.work();
    other.work();
    for job in [&one, &other] {
        goes_on(&mount, job.pid(), 0, 50_000);
    }
    wait_until("turns are given up", || {
        mount.log().contains("no memory turns for")
    });
    for job in [&one, &other] {
        wait_until("the job has no part in turns", || job.turn(&mount) == 0);
        goes_on(&mount, job.pid(), 0, 50_000);
    }
    one.verify();
    other.verify();
}

#[test]
fn turns_can_be_turned_off() {
    let mount = Mount::with(gpu().without_turns());
    let (mut one, mut other) = (Job::busy(&mount, 96 * MIB), Job::busy(&mount, 96 * MIB));
    for job in [&one, &other, &one, &other] {
        goes_on(&mount, job.pid(), 0, 200_000);
        assert_eq!((job.turn(&mount), job.nr_turns(&mount)), (0, 0));
    }
    assert_eq!(one.dir(&mount).number("memory.swap.current"), 0);
    one.verify();
    other.verify();
}
