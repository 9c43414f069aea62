//! Memory turns of simulated jobs, in virtual time. Each job works all the time; what it gets done is counted
//! as the time for which it would have run alone.

use std::collections::BTreeSet;

use super::*;
use crate::arbiter::place::Step;
use crate::arbiter::policy::Weigh;
use crate::arbiter::{Options, STRICT, Settings, WEIGHTED};

const MSEC: u64 = 1_000_000;
const SEC: u64 = 1_000 * MSEC;
const GIB: u64 = 1 << 30;
/// An H200: its memory, and bytes that move in a millisecond at 50 GB/s.
const CARD: u64 = 140 * GIB;
const RATE: u64 = 50_000_000;
/// Speed of a job that works over PCIe, percent.
const REMOTE: u64 = 10;
/// Step of the simulation, milliseconds.
const STEP: u64 = 5;

#[derive(Debug, Clone, Copy)]
struct Job {
    /// Number of the group that it is in, of priority 8; 0: none.
    group: u64,
    priority: u32,
    all: u64,
    resident: u64,
    /// Most that its hook brings in, and whether it never moves anything out.
    brings: u64,
    is_stuck: bool,
    /// Whether it has work, and whether it still lives.
    is_busy: bool,
    lives: bool,
    /// Nanoseconds of its work that are done.
    done: u64,
    share: Share,
}

impl Job {
    fn new(all: u64) -> Self {
        Self {
            group: 0,
            priority: 8,
            all,
            resident: 0,
            brings: u64::MAX,
            is_stuck: false,
            is_busy: true,
            lives: true,
            done: 0,
            share: Share::default(),
        }
    }

    fn priority(self, priority: u32) -> Self {
        Self { priority, ..self }
    }

    fn within(self, group: u64) -> Self {
        Self { group, ..self }
    }

    fn place(&self) -> Place {
        let group = Step {
            group: self.group,
            priority: 8,
        };
        let groups = [group];
        Place::new(&groups[..usize::from(self.group > 0)], self.priority)
    }

    /// Moves memory as the hook does, of which `free` is free on the device. Returns whether it moved any.
    fn moves(&mut self, free: u64) -> bool {
        let limit = match self.share.resident_limit {
            0 => NO_LIMIT,
            // No part of a block moves.
            1 => 0,
            limit => limit,
        };
        let before = self.resident;
        if self.resident > limit {
            let out = (self.resident - limit).min(RATE * STEP);
            self.resident -= if self.is_stuck { 0 } else { out };
        } else {
            let most = limit.min(self.all).min(self.brings).max(self.resident);
            self.resident += (most - self.resident).min(free).min(RATE * STEP);
        }
        self.resident != before
    }
}

struct Sim {
    jobs: Vec<Job>,
    turns: MemoryTurns<usize>,
    settings: Settings,
    weigh: Weigh,
    now: Time,
    news: Vec<MemoryNews>,
    /// Turns that have begun, by job.
    began: Vec<usize>,
}

impl Sim {
    fn new(jobs: &[Job]) -> Self {
        Self {
            jobs: jobs.to_vec(),
            turns: MemoryTurns::new(),
            settings: Settings::default(),
            weigh: WEIGHTED.weigh,
            now: 1_000 * SEC,
            news: Vec::new(),
            began: Vec::new(),
        }
    }

    fn step(&mut self) {
        self.now += STEP * MSEC;
        let mut moved = Vec::new();
        for at in 0..self.jobs.len() {
            let used: u64 = self.living().map(|(_, job)| job.resident).sum();
            let job = &mut self.jobs[at];
            moved.push(job.lives && job.moves(CARD.saturating_sub(used)));
        }
        let runs = |job: &Job| job.lives && job.is_busy && !job.share.is_parked;
        let nr = self.jobs.iter().filter(|job| runs(job)).count() as u64;
        for (job, moved) in self.jobs.iter_mut().zip(&moved) {
            if runs(job) && !moved {
                let speed = if job.resident >= job.all { 100 } else { REMOTE };
                job.done += STEP * MSEC * speed / 100 / nr;
            }
        }
        let is_any_out = self.living().any(|(_, job)| job.resident < job.all);
        if self.turns.is_due(self.now, is_any_out) {
            self.look();
        }
    }

    fn living(&self) -> impl Iterator<Item = (usize, &Job)> {
        self.jobs.iter().enumerate().filter(|(_, job)| job.lives)
    }

    fn look(&mut self) {
        let holder = |(id, job): (usize, &Job)| Holder {
            id,
            place: job.place(),
            is_busy: job.is_busy,
            holding: Holding {
                all: job.all,
                resident: job.resident,
                is_moving: false,
            },
        };
        let holders: Vec<_> = self.living().map(holder).collect();
        let began = self.turns.look(&Look {
            now: self.now,
            holders: &holders,
            capacity: CARD,
            weigh: self.weigh,
            settings: &self.settings,
        });
        self.began.extend(began);
        self.news.extend(self.turns.take_news());
        for (id, job) in self.jobs.iter_mut().enumerate() {
            job.share = self.turns.share(id);
        }
        let owners = self.jobs.iter().filter(|job| job.share.turn == MemoryTurn::Owner);
        assert!(owners.count() <= 1);
    }

    fn run(&mut self, seconds: u64) -> &mut Self {
        for _ in 0..seconds * 1000 / STEP {
            self.step();
        }
        self
    }

    /// Returns the part of its solo throughput that each job reaches within `seconds`, percent.
    fn shares(&mut self, seconds: u64) -> Vec<u64> {
        let before: Vec<u64> = self.jobs.iter().map(|job| job.done).collect();
        self.run(seconds);
        let done = self
            .jobs
            .iter()
            .zip(before)
            .map(|(job, before)| job.done - before);
        done.map(|done| done * 100 / (seconds * SEC)).collect()
    }

    fn has_turns(&self) -> bool {
        self.jobs.iter().any(|job| job.share.turn != MemoryTurn::None)
    }
}

fn options(text: &str) -> Settings {
    Settings::new(&toml::from_str::<Options>(text).unwrap())
}

#[test]
fn two_jobs_of_three_quarters_get_almost_half_each() {
    let mut sim = Sim::new(&[Job::new(CARD * 3 / 4); 2]);
    let shares = sim.run(10).shares(600);
    assert!(shares.iter().all(|share| *share >= 45), "{shares:?}");
    assert!(
        matches!(sim.news[..], [MemoryNews::Begun { processes: 2, .. }]),
        "{:?}",
        sim.news
    );
}

#[test]
fn three_jobs_of_half_get_a_fair_third_each() {
    let mut sim = Sim::new(&[Job::new(CARD / 2); 3]);
    let shares = sim.run(10).shares(900);
    assert!(shares.iter().all(|share| (29..=36).contains(share)), "{shares:?}");
}

#[test]
fn turns_are_in_proportion_to_weights_or_by_priority() {
    let jobs = [
        Job::new(CARD * 3 / 4).priority(8),
        Job::new(CARD * 3 / 4).priority(9),
    ];
    let mut sim = Sim::new(&jobs);
    let shares = sim.run(10).shares(1200);
    assert!((57..=70).contains(&shares[0]), "{shares:?}");
    assert!((28..=36).contains(&shares[1]), "{shares:?}");
    let mut sim = Sim::new(&jobs);
    sim.weigh = STRICT.weigh;
    let shares = sim.run(10).shares(100);
    assert!(shares[0] >= 99 && shares[1] == 0, "{shares:?}");
    sim.jobs[0].is_busy = false;
    let shares = sim.run(20).shares(100);
    assert!(shares[1] >= 99, "the idle job makes room: {shares:?}");
    sim.jobs[0].is_busy = true;
    let shares = sim.run(20).shares(100);
    assert!(shares[0] >= 99, "it comes first again: {shares:?}");
}

#[test]
fn jobs_that_start_together_have_first_turns_within_twice_the_moves() {
    const JOBS: usize = 10;
    // The second does not fit, so not all of a job is on the device in its turn.
    for bytes in [CARD * 3 / 4, CARD * 5 / 4] {
        let mut sim = Sim::new(&[Job::new(bytes); JOBS]);
        let move_nsec = bytes.min(CARD) / RATE * MSEC;
        sim.run(2 * JOBS as u64 * move_nsec / SEC);
        let owners: BTreeSet<usize> = sim.began.iter().copied().collect();
        assert_eq!(owners.len(), sim.jobs.len(), "{:?}", sim.began);
    }
}

#[test]
fn jobs_that_fit_together_run_together() {
    let mut sim = Sim::new(&[Job::new(CARD / 2); 2]);
    assert_eq!(sim.run(10).shares(100), [50, 50]);
    assert!(sim.began.is_empty() && sim.jobs.iter().all(|job| job.share == Share::default()));
}

#[test]
fn turns_end_when_everything_fits() {
    for ends in [
        |job: &mut Job| job.lives = false,
        |job: &mut Job| (job.all, job.resident) = (CARD / 8, job.resident.min(CARD / 8)),
    ] {
        let mut sim = Sim::new(&[Job::new(CARD * 3 / 4); 2]);
        sim.run(10);
        assert!(sim.has_turns());
        // In any phase of a turn: also while memory moves.
        for (at, seconds) in [(0, 10), (1, 11)] {
            let mut sim = Sim::new(&[Job::new(CARD * 3 / 4); 2]);
            sim.run(seconds);
            while sim.turns.turn.as_ref().is_none_or(|turn| turn.moving.is_none()) {
                sim.step();
            }
            ends(&mut sim.jobs[at]);
            sim.run(5);
            assert!(!sim.has_turns());
            let living: Vec<_> = sim.living().map(|(_, job)| *job).collect();
            let is_free = |job: &Job| job.share == Share::default() && job.resident == job.all;
            assert!(living.iter().all(is_free), "{living:?}");
            assert_eq!(sim.news.last(), Some(&MemoryNews::Ended));
        }
    }
}

#[test]
fn idle_owner_loses_its_turn_early_and_keeps_it_through_pauses() {
    let mut sim = Sim::new(&[Job::new(CARD * 3 / 4); 2]);
    sim.run(100);
    let owner = sim.turns.turn.as_ref().unwrap().owner;
    sim.jobs[owner].is_busy = false;
    sim.run(1);
    assert_eq!(sim.turns.turn.as_ref().unwrap().owner, owner, "a pause");
    sim.run(10);
    assert!(!sim.has_turns());
    let other = &sim.jobs[1 - owner];
    assert_eq!(other.resident, other.all, "the idle job makes room");
    sim.jobs[1 - owner].is_busy = false;
    let before = sim.jobs.clone();
    sim.run(100);
    for (before, after) in before.iter().zip(&sim.jobs) {
        assert_eq!(
            before.resident, after.resident,
            "nothing moves without a busy job"
        );
    }
}

#[test]
fn short_work_of_an_idle_job_moves_nothing() {
    let mut sim = Sim::new(&[Job::new(CARD * 3 / 4); 2]);
    sim.jobs[1].is_busy = false;
    sim.run(10);
    let resident = sim.jobs[1].resident;
    sim.jobs[1].is_busy = true;
    for _ in 0..50 / STEP {
        sim.step();
    }
    sim.jobs[1].is_busy = false;
    sim.run(10);
    assert!(sim.began.is_empty());
    assert_eq!(sim.jobs[1].resident, resident);
}

#[test]
fn without_room_elsewhere_jobs_run_as_without_turns() {
    let mut sim = Sim::new(&[Job::new(CARD * 3 / 4); 2]);
    sim.jobs[0].is_stuck = true;
    let done = sim.run(1).shares(300);
    assert!(done[0] >= 40 && done[1] > 0, "{done:?}");
    let rests = |sim: &Sim| {
        let is_rest = |news: &&MemoryNews| matches!(news, MemoryNews::Rests(_));
        sim.news.iter().filter(is_rest).count()
    };
    assert!((1..=3).contains(&rests(&sim)), "{:?}", sim.news);
    // Tried again, ever more rarely, until it succeeds.
    sim.run(3600);
    assert!((5..=12).contains(&rests(&sim)), "{:?}", sim.news);
    sim.jobs[0].is_stuck = false;
    let done = sim.run(600).shares(600);
    assert!(done.iter().all(|done| *done >= 45), "{done:?}");
}

#[test]
fn owner_that_leaves_memory_out_has_its_turns() {
    let mut sim = Sim::new(&[Job::new(CARD * 3 / 4); 2]);
    sim.jobs[1].brings = CARD / 2;
    let turns = sim.run(300).began.len();
    assert!(turns >= 4, "{turns}");
    assert!(!sim.news.iter().any(|news| matches!(news, MemoryNews::Rests(_))));
    assert!(sim.shares(600)[0] >= 40);
}

#[test]
fn move_percent_zero_turns_turns_off() {
    let mut sim = Sim::new(&[Job::new(CARD * 3 / 4); 2]);
    sim.settings = options("memory_turn_move_percent = 0");
    sim.run(100);
    assert!(sim.began.is_empty() && sim.jobs.iter().all(|job| job.share == Share::default()));
    sim.settings = Settings::default();
    sim.run(100);
    assert!(sim.has_turns());
    sim.settings = options("memory_turn_move_percent = 0");
    sim.run(1);
    assert!(sim.jobs.iter().all(|job| job.share == Share::default()));
}

#[test]
fn quantum_makes_moves_a_part_of_the_turn() {
    let settings = Settings::default();
    for (move_msec, seconds) in [(0, 1), (50, 1), (100, 2), (2_000, 40), (3_000, 60), (9_000, 60)] {
        assert_eq!(quantum(move_msec * MSEC, &settings), seconds * SEC, "{move_msec}");
    }
    // The longest turn prevails where the two bounds contradict each other.
    let settings = options("memory_turn_least_usec = 2000000\nmemory_turn_most_usec = 1000000");
    assert_eq!(quantum(9 * SEC, &settings), SEC);
}

/// Returns the part of all work that a job has done in five minutes beside so many of another group, percent.
/// One of these ends when `ends` says so, and another one starts.
fn part_beside(number: usize, ends: impl Fn(&Sim, usize) -> bool) -> u64 {
    let other = Job::new(CARD * 3 / 4).within(2);
    let mut jobs = vec![Job::new(CARD * 3 / 4).within(1)];
    jobs.extend(vec![other; number]);
    let mut sim = Sim::new(&jobs);
    for _ in 0..300_000 / STEP {
        sim.step();
        for at in 1..sim.jobs.len() {
            if sim.jobs[at].lives && ends(&sim, at) {
                (sim.jobs[at].lives, sim.jobs[at].resident) = (false, 0);
                sim.jobs.push(other);
            }
        }
    }
    let done: u64 = sim.jobs.iter().map(|job| job.done).sum();
    100 * sim.jobs[0].done / done
}

#[test]
fn group_has_its_part_whether_its_jobs_end_or_not() {
    type Ends = fn(&Sim, usize) -> bool;
    let ends: [(&str, Ends); 3] = [
        ("never", |_, _| false),
        ("after its turn", |sim, at| {
            sim.began.contains(&at) && sim.jobs[at].share.turn != MemoryTurn::Owner
        }),
        ("in its turn", |sim, at| sim.jobs[at].done > 10 * SEC),
    ];
    for (when, ends) in ends {
        for number in [1, 4] {
            let part = part_beside(number, ends);
            assert!((44..=56).contains(&part), "{number}, each ends {when}: {part} %");
        }
    }
}
