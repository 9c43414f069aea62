//! Simulation in virtual time of a GPU that divides its time among processes with queued work, of processes
//! with fixed habits, and of the arbiter.

use gcgroup_abi::Gate;

use crate::arbiter::gpu::{Gpu, Order, Plan, Quotas, Tick};
use crate::arbiter::member::Seen;
use crate::arbiter::policy::{Policy, STRICT, WEIGHTED};
use crate::arbiter::quota::Meter;
use crate::arbiter::settings::Settings;
use crate::tree::Quota;

pub(super) const USEC: u64 = 1_000;
pub(super) const MSEC: u64 = 1_000_000;
pub(super) const SEC: u64 = 1_000_000_000;

/// Step of the simulation, nanoseconds.
const STEP: u64 = 20 * USEC;

/// Division of GPU time among contexts with work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hardware {
    /// Slices so short that all processes advance at once.
    Evenly,
    /// Round robin with slices of that many nanoseconds.
    Slices(u64),
}

/// The drivers' default, a fine division, and longer slices.
pub(super) const HARDWARE: [Hardware; 3] = [
    Hardware::Slices(2 * MSEC),
    Hardware::Evenly,
    Hardware::Slices(3 * MSEC),
];

/// One process: it works for `on` nanoseconds of GPU time, then pauses for `off` nanoseconds.
#[derive(Debug, Clone)]
pub(super) struct Player {
    priority: u32,
    on: u64,
    off: u64,
    /// GPU time of one kernel.
    kernel: u64,
    quota: Option<Meter>,
    /// Rest of the burst, and when the next one begins.
    left: u64,
    resumes: u64,
    queued: u64,
    submitted: u64,
    /// Its own estimate, exact if it was alone since the last kernel ended.
    queued_until: u64,
    busy_nsec: u64,
    used: u64,
    order: Order,
    /// Claims waiting threads, in changing numbers, and never goes on.
    is_liar: bool,
    /// Frozen until that time.
    frozen_until: u64,
}

impl Player {
    pub(super) fn new(priority: u32, kernel: u64) -> Self {
        Self {
            priority,
            on: u64::MAX,
            off: 0,
            kernel,
            quota: None,
            left: u64::MAX,
            resumes: 0,
            queued: 0,
            submitted: 0,
            queued_until: 0,
            busy_nsec: 0,
            used: 0,
            order: Order::OPEN,
            is_liar: false,
            frozen_until: 0,
        }
    }

    pub(super) fn liar(priority: u32) -> Self {
        Self {
            left: 0,
            is_liar: true,
            ..Self::new(priority, MSEC)
        }
    }

    pub(super) fn bursts(self, on: u64, off: u64) -> Self {
        Self {
            on,
            off,
            left: on,
            ..self
        }
    }

    pub(super) fn frozen(self, until: u64) -> Self {
        Self {
            frozen_until: until,
            ..self
        }
    }

    pub(super) fn quota(self, usec: u64, period_usec: u64) -> Self {
        let meter = Meter::new(Quota { usec, period_usec }, 0);
        Self {
            quota: Some(meter),
            ..self
        }
    }

    fn wants(&self, now: u64) -> bool {
        self.left > 0 && now >= self.resumes
    }

    fn waits(&self, now: u64) -> bool {
        let is_held = self.order.gate == Gate::Throttled || now < self.frozen_until;
        self.wants(now) && self.queued == 0 && is_held
    }

    /// Keeps a window queued (20 ms with an open gate), at least one kernel, if the gate lets it.
    fn submit(&mut self, now: u64) {
        let depth = match self.order.gate {
            _ if now < self.frozen_until => return,
            Gate::Throttled | Gate::Frozen => return,
            Gate::Run | Gate::Track => 20 * MSEC,
            Gate::Arbitrate => self.order.window,
        };
        while self.wants(now) && self.queued < depth.max(self.kernel) {
            let kernel = self.kernel.min(self.left);
            self.queued += kernel;
            self.left -= kernel;
            self.submitted += kernel;
            self.queued_until = self.queued_until.max(now) + kernel;
        }
    }

    fn run(&mut self, now: u64, nsec: u64) {
        let done = nsec.min(self.queued);
        let kernels = self.queued.div_ceil(self.kernel);
        self.queued -= done;
        if self.queued.div_ceil(self.kernel) != kernels {
            self.queued_until = now + self.queued;
        }
        self.used += done;
        if self.queued == 0 && self.left == 0 {
            self.left = self.on;
            self.resumes = now + self.off;
        }
    }
}

/// Result of a simulation.
pub(super) struct Played {
    pub(super) used: Vec<u64>,
    pub(super) nr_ticks: u64,
    /// For each, the longest time in which it wanted the GPU and had none.
    pub(super) hungriest: Vec<u64>,
}

pub(super) fn play(policy: &Policy, players: &mut [Player], length: u64) -> Played {
    play_on(HARDWARE[0], policy, players, length)
}

pub(super) fn play_on(hardware: Hardware, policy: &Policy, players: &mut [Player], length: u64) -> Played {
    let settings = Settings::default();
    let mut gpu = Gpu::new();
    let (mut at, mut nr_ticks) = (Some(0), 0);
    let mut hungry_since = vec![0; players.len()];
    let mut hungriest = vec![0; players.len()];
    let mut now = 0;
    let (mut running, mut slice_ends) = (0, 0);
    let mut ends = false;
    while now < length {
        let mut rings = std::mem::take(&mut ends);
        for player in players.iter_mut() {
            let (was_idle, waited) = (player.queued == 0, player.waits(now));
            player.submit(now);
            rings |= player.order.wants_bell && (waited || (was_idle && player.queued > 0));
        }
        if rings || at.is_some_and(|at| at <= now) {
            at = tick(&mut gpu, policy, players, now, &settings);
            nr_ticks += 1;
        }
        now += STEP;
        let queue = players.iter().filter(|player| player.queued > 0).count() as u64;
        if let Hardware::Slices(length) = hardware
            && (players[running].queued == 0 || now > slice_ends)
        {
            let mut others = (1..=players.len()).map(|step| (running + step) % players.len());
            if let Some(next) = others.find(|other| players[*other].queued > 0) {
                (running, slice_ends) = (next, now + length - STEP);
            }
        }
        for (index, player) in players.iter_mut().enumerate() {
            if player.queued > 0 {
                player.busy_nsec += STEP;
                let nsec = match hardware {
                    Hardware::Evenly => STEP / queue,
                    Hardware::Slices(_) if index == running => STEP,
                    Hardware::Slices(_) => 0,
                };
                player.run(now, nsec);
                ends |= player.queued == 0 && player.order.wants_end;
                hungry_since[index] = now;
            } else if !player.wants(now) {
                hungry_since[index] = now;
            }
            hungriest[index] = hungriest[index].max(now - hungry_since[index]);
        }
    }
    Played {
        used: players.iter().map(|player| player.used).collect(),
        nr_ticks,
        hungriest,
    }
}

fn tick(
    gpu: &mut Gpu<usize>,
    policy: &Policy,
    players: &mut [Player],
    now: u64,
    settings: &Settings,
) -> Option<u64> {
    let seen: Vec<_> = players
        .iter()
        .enumerate()
        .map(|(id, player)| Seen {
            id,
            priority: player.priority,
            busy_nsec: player.busy_nsec,
            is_busy: player.queued > 0,
            submitted_nsec: player.submitted,
            queued_until: player.queued_until,
            nr_waiting: match player.is_liar {
                true => 1 + u32::from((now / STEP).is_multiple_of(3)),
                false => u32::from(player.waits(now)),
            },
            is_frozen: now < player.frozen_until,
            is_watched: false,
        })
        .collect();
    let charges = gpu.measure(now, &seen);
    let mut quotas = vec![Quotas::default(); players.len()];
    for ((player, nsec), quotas) in players.iter_mut().zip(charges).zip(&mut quotas) {
        if let Some(meter) = &mut player.quota {
            meter.charge(now, nsec);
            quotas.has_any = true;
            quotas.over_until = meter.is_over().then(|| meter.ends());
        }
    }
    let tick = Tick {
        now,
        seen: &seen,
        quotas: &quotas,
        policy,
    };
    let Plan { orders, next } = gpu.decide(&tick, settings);
    for (player, order) in players.iter_mut().zip(orders) {
        player.order = order;
    }
    let meters = players.iter().enumerate().filter_map(|(id, player)| {
        let meter = player.quota.as_ref()?;
        match meter.is_over() {
            true => Some(meter.ends()),
            false => gpu.has_demand(id).then(|| meter.lasts(now).max(now + 200 * USEC)),
        }
    });
    meters.chain(next).min()
}

fn share(played: &Played, of: usize) -> f64 {
    played.used[of] as f64 / played.used.iter().sum::<u64>() as f64
}

fn assert_near(got: f64, expected: f64, tolerance: f64, what: &str) {
    assert!(
        (got - expected).abs() <= expected * tolerance,
        "{what}: {got} instead of {expected}"
    );
}

#[test]
fn busy_processes_share_in_proportion_to_weights() {
    let kernels = || [50 * USEC, MSEC, 5 * MSEC].into_iter();
    let each = HARDWARE
        .into_iter()
        .flat_map(|hardware| kernels().map(move |kernel| (hardware, kernel)));
    for (hardware, kernel) in each {
        for difference in [1, 2, 4] {
            let mut players = [Player::new(6, kernel), Player::new(6 + difference, kernel)];
            let played = play_on(hardware, WEIGHTED, &mut players, 8 * SEC);
            let weight = f64::from(1 << difference);
            let what = format!("{hardware:?}, {difference} apart, kernels of {kernel}");
            assert_near(share(&played, 0), weight / (weight + 1.0), 0.03, &what);
            assert!(
                played.used.iter().sum::<u64>() > 7 * SEC,
                "{what}: the GPU stood still"
            );
        }
    }
}

#[test]
fn four_processes_in_three_classes_share_by_weight() {
    let mut players = [
        Player::new(7, MSEC),
        Player::new(8, MSEC),
        Player::new(8, MSEC),
        Player::new(9, MSEC),
    ];
    let played = play(WEIGHTED, &mut players, 20 * SEC);
    for (index, weight) in [4.0, 2.0, 2.0, 1.0].into_iter().enumerate() {
        assert_near(
            share(&played, index),
            weight / 9.0,
            0.06,
            &format!("player {index}"),
        );
    }
}

#[test]
fn strict_gives_lower_priority_only_the_gaps() {
    let mut players = [
        Player::new(2, MSEC / 2).bursts(60 * MSEC, 40 * MSEC),
        Player::new(10, MSEC / 2),
    ];
    let played = play(STRICT, &mut players, 10 * SEC);
    // A burst of 60 ms and a pause of 40: a hundred of each in ten seconds, less what is in flight when a
    // burst begins.
    assert!(played.used[0] > 590 * 10 * MSEC, "{}", played.used[0]);
    assert!(played.used[1] > 370 * 10 * MSEC, "{}", played.used[1]);
}

#[test]
fn weighted_hardly_slows_higher_priority_and_uses_gaps() {
    let mut players = [
        Player::new(2, MSEC / 5).bursts(20 * MSEC, 20 * MSEC),
        Player::new(10, MSEC),
    ];
    let played = play(WEIGHTED, &mut players, 10 * SEC);
    // Alone it would have half of the time; each of its bursts may begin a window and a kernel late.
    assert!(played.used[0] > 465 * 10 * MSEC, "{}", played.used[0]);
    assert!(played.used[1] > 430 * 10 * MSEC, "{}", played.used[1]);
}

#[test]
fn quota_is_exact_over_time_for_short_and_long_kernels() {
    for percent in [25, 50, 75] {
        for kernel in [100 * USEC, 10 * MSEC] {
            let mut players = [Player::new(8, kernel).quota(percent * 1000, 100_000)];
            let played = play(WEIGHTED, &mut players, 10 * SEC);
            let share = played.used[0] as f64 / (10 * SEC) as f64;
            assert!(
                (share - percent as f64 / 100.0).abs() < 0.01,
                "{percent} %: {share}"
            );
        }
    }
}

#[test]
fn quota_does_not_count_the_neighbours_time() {
    let mut players = [
        Player::new(8, MSEC / 5).quota(25_000, 100_000),
        Player::new(8, MSEC / 5),
    ];
    let played = play(WEIGHTED, &mut players, 10 * SEC);
    assert_near(share(&played, 0), 0.25, 0.04, "one of two");
}
