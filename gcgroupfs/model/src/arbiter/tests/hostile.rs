//! Attacks of a tenant: a group gets no more than its part of a GPU, whatever its processes do.

use super::played::{MSEC, SEC, USEC, play};
use super::player::{Act, Player};
use super::trees::Random;
use crate::arbiter::place::Place;
use crate::arbiter::policy::WEIGHTED;

/// The group of the tenant that attacks.
const ATTACKER: u64 = 2;

/// Returns a process in groups of priority 8.
fn within(groups: &[u64], priority: u32, kernel: u64) -> Player {
    let groups: Vec<(u64, u32)> = groups.iter().map(|group| (*group, 8)).collect();
    Player::new(8, kernel).within(&groups, priority).measuring()
}

fn place(groups: &[u64], priority: u32) -> Place {
    within(groups, priority, MSEC).place
}

/// Returns the script of a process that starts with each period and ends after `life`.
fn starts(first: u64, life: u64, period: u64) -> impl Iterator<Item = (u64, Act)> {
    let begins = (0..8 * SEC / period).map(move |at| first + at * period);
    begins.flat_map(move |at| [(at, Act::Start), (at + life, Act::End)])
}

/// Returns the script of a process that is frozen with each period for so long.
fn freezes(first: u64, length: u64, period: u64) -> impl Iterator<Item = (u64, Act)> {
    let begins = (0..8 * SEC / period).map(move |at| first + at * period);
    begins.map(move |at| (at, Act::Freeze(at + length)))
}

/// An attack: its name, and its process of that number with kernels of that length.
type Attack = (&'static str, fn(u64, u64) -> Player);

const ATTACKS: &[Attack] = &[
    ("many processes", |_, kernel| within(&[ATTACKER], 8, kernel)),
    ("starts and ends", |at, kernel| {
        let script = starts(at * 5 * MSEC, 60 * MSEC, 80 * MSEC);
        within(&[ATTACKER], 8, kernel).script(script)
    }),
    ("freezes and thaws, one after the other", |at, kernel| {
        let script = freezes(at * MSEC, 14 * MSEC, 16 * MSEC);
        within(&[ATTACKER], 8, kernel).script(script)
    }),
    ("freezes and thaws at once", |_, kernel| {
        within(&[ATTACKER], 8, kernel).script(freezes(0, 8 * MSEC, 16 * MSEC))
    }),
    ("quotas of processes that are used up", |_, kernel| {
        within(&[ATTACKER], 8, kernel).quota(1000, 20_000)
    }),
    ("moves among groups that were empty", |at, kernel| {
        let to = within(&[ATTACKER, 7], 8, kernel);
        within(&[ATTACKER, 3 + at % 4], 8, kernel).commutes(3 * MSEC, &to)
    }),
    ("moves between two depths", |at, kernel| {
        let to = within(&[ATTACKER], 8, kernel);
        within(&[ATTACKER, 3], 8, kernel).commutes((7 + at) * MSEC, &to)
    }),
    ("nested groups", |at, kernel| {
        let inner = (0..at.min(6)).map(|depth| 100 + depth);
        let groups: Vec<u64> = [ATTACKER].into_iter().chain(inner).collect();
        within(&groups, 8, kernel)
    }),
    ("priorities that change all the time", |at, kernel| {
        let priority = |round: u64| u32::try_from((round + at) % 16).unwrap();
        let act = move |round| Act::Move(place(&[ATTACKER], priority(round)));
        let script = (0..1500).map(move |round| (round * 2 * MSEC, act(round)));
        within(&[ATTACKER], 8, kernel).script(script)
    }),
    ("bursts after pauses of many lengths", |at, kernel| {
        within(&[ATTACKER], 8, kernel).bursts(kernel.max(2 * MSEC), (20 + 3 * at) * MSEC)
    }),
];

/// Returns the part of two seconds that a busy process in a group of its own has used beside these processes
/// of another group, and over the ideal division what they have used.
fn beside_a_busy_tenant(others: impl Iterator<Item = Player>) -> [f64; 2] {
    let mut players = vec![within(&[1], 8, MSEC / 4)];
    players.extend(others);
    let played = play(WEIGHTED, &mut players, 2 * SEC);
    let used: u64 = played.used[1..].iter().sum();
    let ideal: f64 = played.ideal[1..].iter().sum();
    [played.used[0] as f64 / (2 * SEC) as f64, used as f64 / ideal]
}

#[test]
fn attacker_gains_nothing_from_a_busy_tenant() {
    for (what, player) in ATTACKS {
        for (number, kernel) in [
            (1, 10 * MSEC),
            (4, MSEC / 4),
            (4, 4 * MSEC),
            (16, MSEC / 4),
            (16, 10 * MSEC),
        ] {
            let [victim, _] = beside_a_busy_tenant((0..number).map(|at| player(at, kernel)));
            let what = format!("{what}, {number} with kernels of {} us: {victim}", kernel / USEC);
            assert!(victim > 0.43, "{what}");
        }
    }
}

#[test]
fn honest_processes_of_short_life_have_their_groups_part() {
    for (number, life, period) in [(1, 60, 80), (4, 60, 80), (4, 200, 1000), (16, 200, 1000)] {
        for kernel in [MSEC / 4, 10 * MSEC] {
            let lives = (0..number).map(|at| {
                let script = starts(at * period * MSEC / number, life * MSEC, period * MSEC);
                within(&[ATTACKER], 8, kernel).script(script)
            });
            let [_, group] = beside_a_busy_tenant(lives);
            let what = format!(
                "{number} live {life} ms, kernels of {} us: {group}",
                kernel / USEC
            );
            assert!((0.97..1.06).contains(&group), "{what}");
        }
    }
}

#[test]
fn equal_groups_whose_processes_pause_leave_no_time_unused() {
    let bursts = [(20, 30), (100, 5), (3, 200)];
    for (at, (on, off)) in bursts.into_iter().enumerate() {
        for (other_on, other_off) in bursts[at..].iter().copied().chain([(2000, 1)]) {
            let member = |group, kernel| within(&[group], 8, kernel);
            // Processes of a third group could make the numbers unequal, so there are decisions.
            let mut players = [
                member(3, MSEC).bursts(1, 100 * SEC),
                member(3, MSEC).bursts(1, 100 * SEC),
                member(1, MSEC).bursts(on * MSEC, off * MSEC),
                member(2, 5 * MSEC).bursts(other_on * MSEC, other_off * MSEC),
            ];
            let played = play(WEIGHTED, &mut players, 4 * SEC);
            let used: u64 = played.used.iter().sum();
            let ideal: f64 = played.ideal.iter().sum();
            assert!(
                used as f64 > 0.98 * ideal,
                "{on} {off} {other_on} {other_off}: {used} of {ideal}"
            );
        }
    }
}

#[test]
fn single_processes_of_equal_groups_hardly_wait() {
    let bursts = [(20, 30), (100, 5), (3, 200), (1, 1), (2, 7)];
    for (at, (on, off)) in bursts.into_iter().enumerate() {
        for (other_on, other_off) in bursts[at..].iter().copied().chain([(2000, 1)]) {
            let member = |group| within(&[group], 8, MSEC / 4);
            let mut players = [
                member(1).bursts(on * MSEC, off * MSEC),
                member(2).bursts(other_on * MSEC, other_off * MSEC),
            ];
            let played = play(WEIGHTED, &mut players, 2 * SEC);
            let nr = played.nr_throttled;
            assert!(nr < 10, "{on} {off} {other_on} {other_off}: {nr}");
        }
    }
}

/// Returns a process of a tenant that starts, ends, moves, freezes and changes its priority at random.
fn random(tenant: u64, random: &mut Random) -> Player {
    let somewhere = |random: &mut Random| {
        let depth = random.below(4);
        let groups = (0..depth).map(|_| tenant * 10 + u64::from(random.below(4)));
        let groups: Vec<u64> = [tenant].into_iter().chain(groups).collect();
        place(&groups, 6 + random.below(5))
    };
    let msec = |random: &mut Random, most: u32| u64::from(1 + random.below(most)) * MSEC;
    let (mut at, mut script) = (0, Vec::new());
    let kernel = (MSEC / 4) << random.below(5);
    let mut player = within(&[tenant], 8, kernel);
    player.place = somewhere(random);
    while at < 5 * SEC {
        at += msec(random, 120);
        match random.below(4) {
            0 => script.push((at, Act::Move(somewhere(random)))),
            1 => script.push((at, Act::Freeze(at + msec(random, 60)))),
            2 => {
                script.push((at, Act::End));
                at += msec(random, 60);
                script.push((at, Act::Start));
            }
            _ => {}
        }
    }
    let player = player.script(script);
    match random.below(2) {
        0 => player,
        _ => player.bursts(msec(random, 40), msec(random, 80)),
    }
}

#[test]
fn random_arrivals_and_moves_give_no_tenant_more_than_its_part() {
    for seed in 1..=6 {
        let mut numbers = Random(seed);
        let mut players = Vec::new();
        for tenant in 1..=3 {
            let number = 1 + numbers.below(8);
            players.extend((0..number).map(|_| random(tenant, &mut numbers)));
        }
        let tenants: Vec<Option<u64>> = players.iter().map(|player| player.place.at(0).0).collect();
        let played = play(WEIGHTED, &mut players, 5 * SEC);
        for tenant in 1..=3 {
            let own = (0..players.len()).filter(|at| tenants[*at] == Some(tenant));
            let (used, ideal) = own.fold((0.0, 0.0), |(used, ideal), at| {
                (used + played.used[at] as f64, ideal + played.ideal[at])
            });
            // A kernel of 4 ms may have begun before each of the others' bursts.
            let most = ideal * 1.1 + (100 * MSEC) as f64;
            assert!(used < most, "{seed}, {tenant}: {used} instead of {ideal}");
        }
    }
}
