//! Simulation in virtual time of a GPU that divides its time among processes with queued work, and of the
//! arbiter.

use gcgroup_abi::Gate;

use super::player::Player;
use crate::arbiter::gpu::Gpu;
use crate::arbiter::parts;
use crate::arbiter::place::Place;
use crate::arbiter::plan::{Plan, Tick};
use crate::arbiter::policy::{Policy, STRICT, WEIGHTED};
use crate::arbiter::settings::Settings;
use crate::arbiter::tree::Tree;

pub(super) const USEC: u64 = 1_000;
pub(super) const MSEC: u64 = 1_000_000;
pub(super) const SEC: u64 = 1_000_000_000;

/// Shortest and longest step of the simulation, nanoseconds.
const LEAST: u64 = USEC;
const LONGEST: u64 = 20 * MSEC;

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

/// Result of a simulation.
pub(super) struct Played {
    pub(super) used: Vec<u64>,
    /// GPU time that each has in an ideal division among those that want the GPU.
    pub(super) ideal: Vec<f64>,
    pub(super) nr_ticks: u64,
    /// Number of decisions by which processes were held.
    pub(super) nr_throttled: u64,
    /// For each, the longest time in which it wanted the GPU and had none.
    pub(super) hungriest: Vec<u64>,
}

pub(super) fn play(policy: &Policy, players: &mut [Player], length: u64) -> Played {
    play_on(HARDWARE[0], policy, players, length)
}

pub(super) fn play_on(hardware: Hardware, policy: &Policy, players: &mut [Player], length: u64) -> Played {
    let settings = Settings::default();
    let mut gpu = Gpu::new();
    // Processes register before they submit.
    let (mut at, mut nr_ticks, mut nr_throttled) = (tick(&mut gpu, policy, players, 0, &settings), 1, 0);
    let mut hungry_since = vec![0; players.len()];
    let mut hungriest = vec![0; players.len()];
    let mut now = 0;
    let (mut running, mut slice_ends) = (0, 0);
    let mut ends = false;
    let (mut ideal, mut wanting, mut all) = (vec![0.0; players.len()], Vec::new(), Vec::new());
    while now < length {
        let mut rings = std::mem::take(&mut ends);
        let mut looks: Vec<u64> = Vec::new();
        let acts = players.iter_mut().map(|player| u32::from(player.act(now)));
        if acts.sum::<u32>() > 0 {
            wanting.clear();
            at = tick(&mut gpu, policy, players, now, &settings);
        }
        for player in players.iter_mut() {
            let (was_idle, waited) = (!player.is_busy(), player.waits());
            looks.extend(player.submit(now));
            let begins = was_idle && player.is_busy() || !waited && player.waits();
            rings |= player.order.wants_bell && begins;
        }
        if rings || at.is_some_and(|at| at <= now) {
            at = tick(&mut gpu, policy, players, now, &settings);
            nr_ticks += 1;
            let held = players
                .iter()
                .filter(|player| player.order.gate == Gate::Throttled);
            nr_throttled += held.count() as u64;
            looks.push(now + LEAST);
        }
        let busy = players.iter().filter(|player| player.is_busy()).count() as u64;
        if let Hardware::Slices(length) = hardware
            && (!players[running].is_busy() || now >= slice_ends)
        {
            let mut others = (1..=players.len()).map(|step| (running + step) % players.len());
            if let Some(next) = others.find(|other| players[*other].is_busy()) {
                (running, slice_ends) = (next, now + length);
            }
        }
        let speed = match hardware {
            Hardware::Evenly => busy,
            Hardware::Slices(_) => 1,
        };
        let runs = |index: usize| hardware == Hardware::Evenly || index == running;
        looks.extend(players.iter().filter_map(|player| player.changes(now)));
        let ran = players.iter().enumerate().filter(|(index, _)| runs(*index));
        looks.extend(ran.filter_map(|(_, player)| Some(now + player.running()? * speed)));
        looks.extend((busy > 1 && hardware != Hardware::Evenly).then_some(slice_ends));
        looks.extend(at);
        let next = looks.into_iter().min().unwrap_or(length).min(now + LONGEST);
        let passed = next.saturating_sub(now).max(LEAST);
        let want: Vec<bool> = players
            .iter()
            .map(|player| player.is_busy() || player.wants(now) && !player.is_frozen(now))
            .collect();
        if want != wanting {
            wanting = want;
            let places: Vec<Place> = players.iter().map(|player| player.place).collect();
            let tree = Tree::new(&places);
            all = tree.of_processes(&parts::parts(&tree, |at| wanting[at], policy.weigh));
        }
        for (ideal, part) in ideal.iter_mut().zip(&all) {
            *ideal += parts::part_of(passed, *part) as f64;
        }
        now += passed;
        for (index, player) in players.iter_mut().enumerate() {
            if player.is_busy() {
                player.busy_nsec += passed;
                if runs(index) {
                    player.run(now, passed / speed, busy > 1);
                }
                ends |= !player.is_busy() && player.order.wants_end;
                hungry_since[index] = now;
            } else if !player.wants(now) {
                hungry_since[index] = now;
            }
            hungriest[index] = hungriest[index].max(now - hungry_since[index]);
        }
    }
    Played {
        used: players.iter().map(|player| player.used).collect(),
        ideal,
        nr_ticks,
        nr_throttled,
        hungriest,
    }
}

fn tick(
    gpu: &mut Gpu<(usize, u32)>,
    policy: &Policy,
    players: &mut [Player],
    now: u64,
    settings: &Settings,
) -> Option<u64> {
    for player in players.iter_mut() {
        if let Some((place, nsec)) = player.remainder.take() {
            gpu.charge_remainder(&place.groups().collect::<Vec<u64>>(), nsec);
        }
        player.looked = player.used;
    }
    let present = players.iter().enumerate().filter(|(_, player)| player.is_present);
    let seen: Vec<_> = present.map(|(at, player)| player.seen(at, now)).collect();
    let charges = gpu.measure(now, &seen, settings);
    let each = seen.iter().zip(charges);
    let quotas: Vec<_> = each
        .map(|(one, used)| players[one.id.0].charge(now, used.charged))
        .collect();
    let tick = Tick {
        now,
        seen: &seen,
        quotas: &quotas,
        policy,
        capacity: None,
    };
    let Plan { orders, next, .. } = gpu.decide(&tick, settings);
    for (one, order) in seen.iter().zip(orders) {
        players[one.id.0].order = order;
    }
    let meters = seen.iter().filter_map(|one| {
        let player = &players[one.id.0];
        let meter = player.quota.as_ref()?;
        match meter.is_over() {
            true => Some(meter.repaid()),
            false => gpu
                .has_demand(one.id)
                .then(|| meter.lasts(now).max(now + 200 * USEC)),
        }
    });
    meters.chain(next).min()
}

pub(super) fn share(played: &Played, of: usize) -> f64 {
    played.used[of] as f64 / played.used.iter().sum::<u64>() as f64
}

pub(super) fn assert_near(got: f64, expected: f64, tolerance: f64, what: &str) {
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
    let classes = [
        share(&played, 0),
        share(&played, 1) + share(&played, 2),
        share(&played, 3),
    ];
    for (got, weight) in classes.into_iter().zip([4.0, 4.0, 1.0]) {
        assert_near(got, weight / 9.0, 0.06, &format!("weight {weight}"));
    }
    // Their turns begin and end within slices of the hardware.
    assert_near(share(&played, 1), share(&played, 2), 0.25, "equal priorities");
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
