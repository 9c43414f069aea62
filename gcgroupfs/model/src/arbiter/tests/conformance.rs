//! Conformance tests that every policy of the table must pass, in the simulation.

use super::played::{HARDWARE, MSEC, Played, SEC, USEC, play, play_on};
use super::player::Player;
use crate::arbiter::policy::POLICIES;

fn sum(played: &Played) -> u64 {
    played.used.iter().sum()
}

#[test]
fn gpu_is_busy_while_any_process_has_work() {
    for policy in POLICIES {
        for hardware in HARDWARE {
            let mut players: Vec<_> = [2, 7, 8, 10]
                .map(|priority| Player::new(priority, MSEC / 4))
                .into();
            let busy = sum(&play_on(hardware, policy, &mut players, 2 * SEC));
            assert!(busy > 2 * SEC * 97 / 100, "{}, {hardware:?}: {busy}", policy.name);
            // The gaps of the process of higher priority are used, too, except while it counts as busy.
            let mut players = [
                Player::new(2, MSEC / 4).bursts(30 * MSEC, 30 * MSEC),
                Player::new(10, MSEC / 4),
            ];
            let busy = sum(&play_on(hardware, policy, &mut players, 2 * SEC));
            assert!(busy > 2 * SEC * 93 / 100, "{}, {hardware:?}: {busy}", policy.name);
        }
    }
}

#[test]
fn equal_priorities_share_equally() {
    for policy in POLICIES {
        for hardware in HARDWARE {
            // Turns beside a process of another priority begin and end within slices of the hardware.
            for (others, percent) in [(0, 5), (1, 30)] {
                let mut players = vec![Player::new(8, MSEC / 4); 3];
                players.extend(vec![Player::new(9, MSEC / 4); others]);
                let played = play_on(hardware, policy, &mut players, 3 * SEC);
                let equals = &played.used[..3];
                let (least, most) = (equals.iter().min().unwrap(), equals.iter().max().unwrap());
                let what = format!("{}, {hardware:?}, {others} others: {equals:?}", policy.name);
                assert!(*least > 0 && most - least < most * percent / 100, "{what}");
            }
        }
    }
}

#[test]
fn nested_groups_share_as_groups() {
    for policy in POLICIES {
        let one = |groups: &[(u64, u32)]| Player::new(8, MSEC / 4).within(groups, 8);
        let (outer, inner) = ([(1, 8)], [(1, 8), (2, 8)]);
        // Half for the process in the root; a group and a process beside it share the rest.
        let mut players = vec![one(&[]), one(&outer)];
        players.extend(vec![one(&inner); 3]);
        let played = play(policy, &mut players, 4 * SEC);
        let all = sum(&played) as f64;
        let groups = [&played.used[..1], &played.used[1..2], &played.used[2..]];
        for (used, part) in groups.into_iter().zip([0.5, 0.25, 0.25]) {
            let share = used.iter().sum::<u64>() as f64 / all;
            assert!((share - part).abs() < 0.03, "{}: {:?}", policy.name, played.used);
        }
        assert!(all > 4e9 * 0.97, "{}: {:?}", policy.name, played.used);
        // A group of higher priority comes first, whatever its members have among themselves.
        let mut players = [
            Player::new(8, MSEC / 4).within(&[(1, 4)], 15),
            Player::new(8, MSEC / 4).within(&[(2, 8)], 0),
        ];
        let played = play(policy, &mut players, 4 * SEC);
        let share = played.used[0] as f64 / sum(&played) as f64;
        assert!(share > 0.92, "{}: {share}", policy.name);
    }
}

#[test]
fn frozen_process_uses_nothing_and_holds_no_other() {
    for policy in POLICIES {
        for priority in [2, 8, 10] {
            let mut players = [
                Player::new(priority, MSEC / 4).frozen(2 * SEC),
                Player::new(8, MSEC / 4),
            ];
            let played = play(policy, &mut players, 2 * SEC);
            assert_eq!(played.used[0], 0, "{} {priority}", policy.name);
            assert!(
                played.used[1] > 2 * SEC * 99 / 100,
                "{} {priority}: {:?}",
                policy.name,
                played.used
            );
            // It has its turns again from the thaw on.
            let mut players = [
                Player::new(priority, MSEC / 4).frozen(SEC),
                Player::new(8, MSEC / 4),
            ];
            let played = play(policy, &mut players, 3 * SEC);
            assert!(
                played.used[0] > 0,
                "{} {priority}: {:?}",
                policy.name,
                played.used
            );
        }
    }
}

#[test]
fn quota_holds_at_every_priority_and_the_rest_is_used() {
    for policy in POLICIES {
        for priority in [2, 8, 10] {
            let mut players = [
                Player::new(priority, 100 * USEC).quota(20_000, 100_000),
                Player::new(8, 100 * USEC),
            ];
            let played = play(policy, &mut players, 5 * SEC);
            let what = format!("{} {priority}: {:?}", policy.name, played.used);
            assert!(played.used[0] < 5 * SEC * 21 / 100, "{what}");
            assert!(played.used[1] > 5 * SEC * 78 / 100, "{what}");
        }
    }
}

#[test]
fn sixteen_priorities_none_starves() {
    for policy in POLICIES {
        let mut players: Vec<_> = (0..16).map(|priority| Player::new(priority, MSEC / 4)).collect();
        let played = play(policy, &mut players, 10 * SEC);
        // What each has queued before its gate first closes is repaid.
        for (priority, hungriest) in played.hungriest.iter().enumerate() {
            assert!(*hungriest < 3 * SEC, "{} {priority}: {hungriest}", policy.name);
        }
    }
}

#[test]
fn false_waiters_cost_others_at_most_three_percent() {
    for policy in POLICIES {
        for nr_liars in [1, 10] {
            let mut players = vec![Player::new(8, MSEC / 2), Player::new(9, MSEC / 2)];
            let without = play(policy, &mut players, 10 * SEC).used;
            let mut players = vec![Player::new(8, MSEC / 2), Player::new(9, MSEC / 2)];
            players.extend((0..nr_liars).map(|_| Player::liar(2)));
            let with = play(policy, &mut players, 10 * SEC).used;
            for (with, without) in with.iter().zip(&without) {
                let what = format!("{}, {nr_liars} liars: {with} instead of {without}", policy.name);
                assert!(with * 100 >= without * 97, "{what}");
            }
        }
    }
}

#[test]
fn no_ticks_without_contention_or_quota() {
    for policy in POLICIES {
        let mut alone = [Player::new(8, MSEC).bursts(7 * MSEC, 3 * MSEC)];
        assert!(play(policy, &mut alone, 10 * SEC).nr_ticks <= 2);
        let mut equal = [
            Player::new(8, MSEC),
            Player::new(8, MSEC).bursts(7 * MSEC, 3 * MSEC),
        ];
        assert!(play(policy, &mut equal, 10 * SEC).nr_ticks <= 2);
        let mut one_is_idle = [
            Player::new(2, MSEC).bursts(7 * MSEC, 3 * MSEC),
            Player::new(10, MSEC).bursts(MSEC, 100 * SEC),
        ];
        assert!(play(policy, &mut one_is_idle, 10 * SEC).nr_ticks <= 50);
    }
}
