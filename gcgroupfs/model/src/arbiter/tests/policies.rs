//! Tables of the decisions of each policy.

use crate::arbiter::policy::{Decision, POLICIES, Policy, STRICT, Turn, Turns, View, WEIGHTED, virtual_time};
use crate::arbiter::settings::Settings;

const MSEC: u64 = 1_000_000;

/// Returns the view of an idle process of that priority.
fn idle(priority: u32) -> View {
    View {
        priority,
        has_demand: false,
        has_woken: false,
        virtual_time: 0,
        held_since: None,
        owes_until: 0,
        awaited_until: None,
    }
}

/// Returns the view of a busy process that has used `had` milliseconds of GPU time.
fn busy(priority: u32, had: u64) -> View {
    View {
        has_demand: true,
        virtual_time: virtual_time(had * MSEC, priority),
        ..idle(priority)
    }
}

fn turn(priority: u32, began: u64) -> Turns {
    Turns {
        regular: Some(Turn { priority, began }),
        extra: None,
    }
}

fn tick(policy: &Policy, now: u64, views: &[View], turns: Turns) -> Decision {
    (policy.tick)(now, views, turns, &Settings::default())
}

fn holds(policy: &Policy, views: &[View]) -> Vec<bool> {
    tick(policy, 0, views, Turns::default()).holds
}

#[test]
fn strict_runs_highest_priority_busy_class() {
    for (views, expected) in [
        (vec![idle(2), idle(10)], vec![false, false]),
        (vec![busy(2, 0), idle(10)], vec![false, true]),
        (vec![busy(2, 9), busy(10, 0)], vec![false, true]),
        (vec![idle(2), busy(10, 0)], vec![false, false]),
        (
            vec![busy(5, 0), busy(3, 7), busy(3, 0), busy(4, 0)],
            vec![true, false, false, true],
        ),
        (vec![busy(5, 0), idle(3), busy(4, 0)], vec![true, false, false]),
    ] {
        assert_eq!(holds(STRICT, &views), expected, "{views:?}");
    }
}

#[test]
fn weighted_runs_class_with_least_virtual_time() {
    for (views, expected) in [
        (vec![idle(2), idle(10)], vec![false, false]),
        (vec![busy(2, 0), idle(10)], vec![false, true]),
        (vec![busy(2, 0), busy(10, 0)], vec![false, true]),
        // One millisecond at 8 counts as two at 7.
        (vec![busy(7, 19), busy(8, 10)], vec![false, true]),
        (vec![busy(7, 21), busy(8, 10)], vec![true, false]),
        // An idle process of higher priority is not held.
        (vec![idle(2), busy(10, 0)], vec![false, false]),
        (vec![busy(7, 30), idle(5), busy(8, 10)], vec![true, false, false]),
        // A class has the virtual time of its process that has used most.
        (
            vec![busy(7, 21), busy(7, 0), busy(8, 10)],
            vec![true, true, false],
        ),
    ] {
        assert_eq!(holds(WEIGHTED, &views), expected, "{views:?}");
    }
}

#[test]
fn equal_priorities_never_wait_for_each_other() {
    for policy in POLICIES.iter().copied() {
        let views = [busy(8, 0), busy(8, 1000), idle(8)];
        assert_eq!(holds(policy, &views), [false; 3]);
        assert!(!tick(policy, 0, &views, Turns::default()).takes_turns);
    }
}

#[test]
fn turn_length_is_share_of_cycle_at_least_a_window() {
    let window = Settings::default().window;
    for (views, length) in [
        (vec![busy(7, 0), busy(8, 10)], 40 * MSEC / 3),
        (vec![busy(7, 30), busy(8, 10)], 20 * MSEC / 3),
        (vec![busy(2, 5000), busy(10, 0)], window),
        (
            vec![busy(8, 0), busy(8, 0), busy(8, 0), busy(9, 100)],
            120 * MSEC / 7,
        ),
    ] {
        let decision = tick(WEIGHTED, 1000 * MSEC, &views, Turns::default());
        assert_eq!(decision.next, Some(1000 * MSEC + length), "{views:?}");
        assert!(decision.takes_turns);
    }
}

#[test]
fn turn_lasts_until_its_end_or_its_class_is_idle() {
    let views = [busy(7, 30), busy(8, 10)];
    let before = tick(WEIGHTED, 13 * MSEC, &views, turn(7, 0));
    assert_eq!(before.turns, turn(7, 0));
    let after = tick(WEIGHTED, 14 * MSEC, &views, turn(7, 0));
    assert_eq!(after.turns, turn(8, 14 * MSEC));
    let views = [idle(7), busy(8, 1000)];
    assert_eq!(tick(WEIGHTED, MSEC, &views, turn(7, 0)).holds, [false, false]);
}

#[test]
fn share_below_a_window_gets_a_turn_when_owed_a_window() {
    // 0.5 ms at 10 count as 128 ms at 2.
    for (had, others, priority) in [(0, 0, 2), (127, 0, 2), (129, 0, 10), (380, 1, 2), (390, 1, 10)] {
        let decision = tick(WEIGHTED, 40 * MSEC, &[busy(2, had), busy(10, others)], turn(2, 0));
        let regular = decision.turns.regular.map(|turn| turn.priority);
        assert_eq!(regular, Some(priority), "{had} {others}");
    }
}

#[test]
fn long_turn_takes_turns_only_in_its_last_cycle() {
    let now = 1000 * MSEC;
    for (had, began, takes_turns, next) in [
        (0, now, false, 108 * MSEC),
        (100, now, false, 8 * MSEC),
        (107, now, false, MSEC),
        (109, now, true, 20 * MSEC * 256 / 257),
        (109, now - 15 * MSEC, true, 19 * MSEC),
        (127, now - 15 * MSEC, true, 20 * MSEC * 256 / 257 - 15 * MSEC),
    ] {
        let decision = tick(WEIGHTED, now, &[busy(2, had), busy(10, 0)], turn(2, began));
        assert_eq!(decision.turns, turn(2, began), "{had}");
        assert_eq!(decision.takes_turns, takes_turns, "{had}");
        assert_eq!(decision.next, Some(now + next), "{had}");
        assert_eq!(decision.holds, [false, true]);
    }
}

#[test]
fn woken_higher_priority_preempts_unless_a_cycle_ahead() {
    for (had, priority) in [(10, 7), (20, 7), (30, 7), (40, 8)] {
        let woken = View {
            has_woken: true,
            ..busy(7, had)
        };
        let decision = tick(WEIGHTED, MSEC, &[woken, busy(8, 10)], turn(8, 0));
        assert_eq!(
            decision.turns.regular.map(|turn| turn.priority),
            Some(priority),
            "{had}"
        );
    }
}

#[test]
fn starved_class_gets_an_extra_window() {
    let settings = Settings::default();
    let starved = View {
        held_since: Some(0),
        ..busy(15, 1000)
    };
    let views = [busy(0, 1_000_000), starved, idle(15)];
    let at = settings.starvation_interval().unwrap();
    for policy in [WEIGHTED, STRICT] {
        let before = tick(policy, at - 1, &views, turn(0, at - 1));
        assert_eq!(before.holds, [false, true, true], "{policy:?}");
        assert_eq!(before.next, Some(at), "{policy:?}");
        let due = tick(policy, at, &views, before.turns);
        assert_eq!(due.holds, [false; 3], "{policy:?}");
        assert_eq!(due.next, Some(at + settings.window), "{policy:?}");
        let awaited = View {
            held_since: None,
            awaited_until: Some(at + 5 * MSEC),
            ..starved
        };
        let fed = View {
            awaited_until: None,
            ..awaited
        };
        for (view, length) in [(awaited, 5 * MSEC), (fed, settings.window)] {
            let during = tick(policy, at + length - 1, &[views[0], view], due.turns);
            assert!(!during.holds[1], "{policy:?} {view:?}");
            let over = tick(policy, at + length, &[views[0], view], during.turns);
            assert_eq!(over.holds, [false, true], "{policy:?} {view:?}");
        }
    }
    let never = Settings {
        starvation: 0,
        ..settings
    };
    let decision = (STRICT.tick)(u64::MAX / 2, &views, Turns::default(), &never);
    assert_eq!((decision.holds[1], decision.next), (true, None));
}
