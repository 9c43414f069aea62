//! Groups of different sizes, depths and priorities: each gets what its siblings leave it.

use std::collections::BTreeMap;

use gcgroup_abi::Gate;

use super::played::{HARDWARE, MSEC, Played, SEC, assert_near, play, play_on, share};
use super::player::{Act, Player};
use crate::arbiter::policy::{POLICIES, STRICT, WEIGHTED};

/// xorshift64*
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, most: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        u32::try_from(number).unwrap() % most
    }
}

/// Returns `number` players in a group of that number and priority.
fn group(id: u64, priority: u32, number: usize) -> Vec<Player> {
    vec![Player::new(8, MSEC / 4).within(&[(id, priority)], 8); number]
}

#[test]
fn groups_share_equally_whatever_their_size() {
    for policy in POLICIES {
        // Where all advance at once, the ends of turns are known less exactly.
        for (hardware, tolerance) in HARDWARE.into_iter().zip([0.06, 0.14, 0.08]) {
            for number in [2, 16] {
                let mut players = [group(1, 8, 1), group(2, 8, number)].concat();
                let played = play_on(hardware, policy, &mut players, 4 * SEC);
                let what = format!("{}, {hardware:?}, {number}: {:?}", policy.name, played.used);
                assert_near(share(&played, 0), 0.5, tolerance, &what);
                assert!(played.used.iter().sum::<u64>() > 4 * SEC * 97 / 100, "{what}");
            }
        }
    }
}

#[test]
fn bursty_members_take_no_more_than_their_groups_part() {
    let batch = |number| group(1, 8, number);
    let bursty = |number| -> Vec<Player> {
        let one = Player::new(8, MSEC / 4).within(&[(2, 8)], 8);
        vec![one.bursts(5 * MSEC, 20 * MSEC); number]
    };
    let mut players = [batch(1), bursty(16)].concat();
    let played = play(WEIGHTED, &mut players, 6 * SEC);
    assert_near(
        share(&played, 0),
        0.5,
        0.1,
        "a batch job beside sixteen bursty ones",
    );
    // Alone it would work for a fifth of the time.
    let mut players = [bursty(1), batch(16)].concat();
    let played = play(WEIGHTED, &mut players, 6 * SEC);
    assert!(share(&played, 0) > 0.09, "{:?}", played.used);
}

#[test]
fn equal_numbers_of_busy_processes_are_not_arbitrated() {
    for policy in POLICIES {
        let mut players = [group(1, 8, 2), group(2, 8, 2), group(3, 8, 2)].concat();
        let played = play(policy, &mut players, SEC);
        let gates = players.iter().map(|player| player.order.gate);
        assert!(
            gates.into_iter().all(|gate| gate == Gate::Track),
            "{}",
            policy.name
        );
        assert_eq!(played.nr_throttled, 0, "{}", policy.name);
        // Nor is a large group whose siblings have no work.
        let idle = Player::new(8, MSEC).within(&[(2, 8)], 8).bursts(MSEC, 100 * SEC);
        let mut players = [group(1, 8, 5), vec![idle.frozen(100 * SEC)]].concat();
        let played = play(policy, &mut players, SEC);
        assert_eq!(played.nr_throttled, 0, "{}", policy.name);
    }
}

/// Returns players in random groups up to three deep. Each works for 0.1 to 1 s of GPU time, or always, and
/// pauses.
fn random(random: &mut Random) -> Vec<Player> {
    let mut groups: Vec<Vec<(u64, u32)>> = vec![Vec::new()];
    let mut players = Vec::new();
    for id in 1..=2 + random.below(4) {
        let above = random.below(u32::try_from(groups.len()).unwrap());
        let above = groups[usize::try_from(above).unwrap()].clone();
        let group = [(id.into(), 7 + random.below(3))];
        groups.push([above, group.to_vec()].concat());
    }
    for groups in groups.iter().filter(|groups| groups.len() <= 3) {
        for _ in 0..random.below(4) {
            let priority = 7 + random.below(3);
            let player = Player::new(8, (MSEC / 4) << random.below(3)).within(groups, priority);
            let (on, off) = (100 + random.below(900), 100 + random.below(900));
            players.push(match random.below(2) {
                0 => player,
                _ => player.bursts(u64::from(on) * MSEC, u64::from(off) * MSEC),
            });
        }
    }
    players
}

/// Returns the part of the time that was used other than ideally: by the children of the root, and by the
/// processes.
fn errors(players: &[Player], played: &Played) -> [f64; 2] {
    let all: u64 = played.used.iter().sum();
    let mut children: BTreeMap<(Option<u64>, usize), f64> = BTreeMap::new();
    let mut of_processes = 0.0;
    for (at, player) in players.iter().enumerate() {
        let error = played.used[at] as f64 - played.ideal[at];
        of_processes += error.abs();
        let (group, _) = player.place.at(0);
        *children.entry((group, group.map_or(at, |_| 0))).or_default() += error;
    }
    let of_children: f64 = children.values().map(|error| error.abs()).sum();
    [of_children, of_processes].map(|error| error / 2.0 / all as f64)
}

#[test]
fn random_trees_divide_time_as_an_ideal_hierarchy() {
    for seed in 1..=8 {
        let mut players = random(&mut Random(seed));
        let played = play(WEIGHTED, &mut players, 5 * SEC);
        let [of_children, of_processes] = errors(&players, &played);
        let what = format!(
            "{seed}: {of_children} {of_processes} {:?} {:?}",
            played.used, played.ideal
        );
        assert!(of_children < 0.05 && of_processes < 0.08, "{what}");
        let ideal: f64 = played.ideal.iter().sum();
        assert!(played.used.iter().sum::<u64>() as f64 > ideal * 0.97, "{what}");
    }
}

#[test]
fn bursts_beside_a_large_group_are_as_short_as_beside_one_process() {
    for (on, off, kernel) in [(20, 30, MSEC), (5, 20, MSEC / 4), (2, 5, MSEC)] {
        let p99 = [1, 16].map(|number| {
            let one = Player::new(8, MSEC / 5).within(&[(1, 8)], 8);
            let mut players = vec![one.bursts(on * MSEC, off * MSEC)];
            players.extend(vec![Player::new(8, kernel).within(&[(2, 8)], 8); number]);
            play(WEIGHTED, &mut players, 4 * SEC);
            // What was queued before the arbiter had seen anything is left out.
            let all = &players[0].bursts;
            let mut bursts = all[all.len() / 3..].to_vec();
            bursts.sort_unstable();
            bursts[bursts.len() * 99 / 100]
        });
        assert!(p99[1] * 10 <= p99[0] * 11, "{on} {off} {kernel}: {p99:?}");
    }
}

#[test]
fn members_of_a_large_group_divide_its_time_equally() {
    let mut players = [group(1, 8, 1), group(2, 8, 8)].concat();
    let played = play(WEIGHTED, &mut players, 6 * SEC);
    let members = &played.used[1..];
    let (least, most) = (members.iter().min().unwrap(), members.iter().max().unwrap());
    assert!(most - least < most / 10, "{members:?}");
}

#[test]
fn many_waiting_classes_get_little_in_all() {
    // Each group is a class for each of its members, since their priorities differ.
    let pair = |id| [8, 9].map(|priority| Player::new(8, MSEC / 4).within(&[(id, 9)], priority));
    let mut players = vec![Player::new(0, MSEC / 4)];
    players.extend((1..=15).flat_map(pair));
    let played = play(STRICT, &mut players, 4 * SEC);
    assert!(share(&played, 0) > 0.7, "{:?}", played.used);
}

#[test]
fn moved_process_competes_with_its_new_siblings_from_then_on() {
    // What it has had in the root is nothing to the members of its new group.
    let member = |priority| Player::new(8, MSEC / 4).within(&[(1, 8)], priority);
    let mut players = [
        Player::new(8, MSEC / 4).script([(2 * SEC, Act::Move(member(8).place))]),
        member(7).frozen(1_800 * MSEC),
        Player::new(9, MSEC / 4),
    ];
    let played = play(WEIGHTED, &mut players, 5 * SEC);
    // 2/3 for 1.8 s, 2/5 for 0.2 s, and then 1/3 of 2/3; the other one has 2/5 and then 2/3 of 2/3.
    for (used, expected) in played.used.into_iter().zip([1.947e9, 1.413e9]) {
        assert_near(used as f64, expected, 0.05, "GPU time");
    }
}

#[test]
fn moves_within_a_group_take_nothing_from_its_siblings() {
    for policy in POLICIES {
        let inner = |group| Player::new(8, 2 * MSEC).within(&[(2, 8), (group, 8)], 8);
        let mut players = vec![Player::new(8, MSEC / 4).within(&[(1, 8)], 8)];
        players.extend((0..6).map(|at| inner(3 + at % 3).commutes(3 * MSEC, &inner(6))));
        let played = play(policy, &mut players, 4 * SEC);
        assert_near(share(&played, 0), 0.5, 0.06, policy.name);
    }
}
