//! Long kernels and graphs: what exceeds a turn or a quota is repaid.

use super::played::{HARDWARE, MSEC, SEC, USEC, assert_near, play, play_on, share};
use super::player::Player;
use crate::arbiter::policy::{STRICT, WEIGHTED};

/// A graph of 30 kernels of 5 ms is one submission.
const GRAPH: u64 = 150 * MSEC;

#[test]
fn strict_keeps_its_share_beside_long_kernels_and_graphs() {
    for hardware in [HARDWARE[0], HARDWARE[1]] {
        for kernel in [20 * MSEC, 100 * MSEC, GRAPH] {
            for nr_others in [1, 3] {
                let mut players = vec![Player::new(0, MSEC)];
                players.extend((0..nr_others).map(|_| Player::new(15, kernel)));
                let played = play_on(hardware, STRICT, &mut players, 60 * SEC);
                let what = format!(
                    "{hardware:?}, {nr_others} with kernels of {kernel}: {:?}",
                    played.used
                );
                assert!(share(&played, 0) >= 0.97, "{what}");
                let least = played.used.iter().min().unwrap();
                assert!(*least >= kernel, "{what}");
            }
        }
    }
}

#[test]
fn weights_hold_for_long_kernels_and_graphs() {
    for kernel in [100 * USEC, MSEC, 5 * MSEC, 20 * MSEC, 100 * MSEC, GRAPH] {
        for difference in [1, 2, 4] {
            let length = if kernel < 20 * MSEC { 15 * SEC } else { 60 * SEC };
            for [first, second] in [[kernel, kernel], [MSEC, kernel], [kernel, MSEC]] {
                let mut players = [Player::new(6, first), Player::new(6 + difference, second)];
                let played = play(WEIGHTED, &mut players, length);
                let ratio = played.used[0] as f64 / played.used[1] as f64;
                let what = format!("{difference} apart, kernels of {first} and {second}");
                assert_near(ratio, f64::from(1 << difference), 0.1, &what);
            }
        }
    }
}

#[test]
fn quotas_hold_for_long_kernels_and_graphs() {
    for kernel in [MSEC, 20 * MSEC, 60 * MSEC, 100 * MSEC, GRAPH] {
        for percent in [5, 10, 25, 50] {
            for nr_others in [0, 1, 2] {
                let mut players = vec![Player::new(8, kernel).quota(percent * 1000, 100_000)];
                players.extend((0..nr_others).map(|_| Player::new(8, MSEC)));
                let played = play(WEIGHTED, &mut players, 30 * SEC);
                let got = 100.0 * played.used[0] as f64 / (30 * SEC) as f64;
                let goal = percent as f64;
                // Two others leave it only a third of the GPU.
                let goal = if nr_others == 2 { goal.min(33.0) } else { goal };
                let what = format!("{percent} %, kernels of {kernel}, {nr_others} others");
                assert!((got - goal).abs() <= 2.0, "{what}: {got}");
            }
        }
    }
}

#[test]
fn short_kernels_between_long_ones_keep_quota_and_weight() {
    let mixed = [MSEC / 2, MSEC / 2, 60 * MSEC, MSEC / 2];
    let mut players = [
        Player::mixed(8, &mixed).quota(10_000, 100_000),
        Player::new(8, MSEC),
    ];
    let played = play(WEIGHTED, &mut players, 30 * SEC);
    let got = 100.0 * played.used[0] as f64 / (30 * SEC) as f64;
    assert!((got - 10.0).abs() <= 2.0, "{got}");
    let mut players = [Player::new(6, MSEC), Player::mixed(8, &mixed)];
    let played = play(WEIGHTED, &mut players, 60 * SEC);
    assert_near(played.used[0] as f64 / played.used[1] as f64, 4.0, 0.1, "2 apart");
}

#[test]
fn long_gap_in_the_guard_ends_with_the_process_of_higher_priority() {
    // The higher one works for ten seconds, then pauses for ten.
    let mut players = [
        Player::new(0, MSEC).bursts(10 * SEC, 10 * SEC),
        Player::new(15, 100 * MSEC),
    ];
    let played = play(STRICT, &mut players, 40 * SEC);
    assert!(played.used[1] > 19 * SEC, "{:?}", played.used);
    assert!(played.used[0] > 19 * SEC, "{:?}", played.used);
}
