//! Tables of the decisions of each policy.

use crate::arbiter::contest::{Class, Field, Standing};
use crate::arbiter::parts::{WHOLE, part_of, parts};
use crate::arbiter::place::{Place, Step};
use crate::arbiter::policy::{Policy, STRICT, WEIGHTED};
use crate::arbiter::settings::Settings;
use crate::arbiter::tree::Tree;
use crate::arbiter::turns::{Contest, Decision, Turns, View};

const MSEC: u64 = 1_000_000;

/// A process without a group.
#[derive(Debug, Clone, Copy)]
struct One {
    priority: u32,
    /// Whether it competes, and whether it did so at the decision before.
    is_busy: bool,
    was_busy: bool,
    /// GPU time that it has had, nanoseconds.
    had: u64,
    view: View,
}

/// Returns an idle process of that priority.
fn idle(priority: u32) -> One {
    One {
        priority,
        is_busy: false,
        was_busy: true,
        had: 0,
        view: View::default(),
    }
}

/// Returns a busy process that has used `had` milliseconds of GPU time.
fn busy(priority: u32, had: u64) -> One {
    One {
        is_busy: true,
        had: had * MSEC,
        ..idle(priority)
    }
}

/// Returns the process, of the class that has the turn.
fn runs(one: One) -> One {
    let view = View {
        has_turn: true,
        ..one.view
    };
    One { view, ..one }
}

/// Returns the classes that compete.
fn classes(policy: &Policy, ones: &[One], settings: &Settings) -> Vec<Class> {
    let places: Vec<Place> = ones.iter().map(|one| Place::new(&[], one.priority)).collect();
    let tree = Tree::new(&places);
    let parts = parts(&tree, |at| ones[at].is_busy, policy.weigh);
    let mut before = parts.clone();
    for (at, _) in ones.iter().enumerate().filter(|(_, one)| !one.was_busy) {
        before[tree.leaf(at)] = 0;
    }
    let mut before = Field::new(&tree, before, vec![Standing::default(); parts.len()]);
    before.settle(settings.cycle / 2);
    let mut standings = before.standings().to_vec();
    for (standing, part) in standings.iter_mut().zip(&parts) {
        standing.part = *part;
    }
    let mut field = Field::new(&tree, parts, standings);
    for (at, one) in ones.iter().enumerate().filter(|(_, one)| one.is_busy) {
        field.charge(at, one.had);
    }
    field.settle(settings.cycle / 2);
    field.classes(settings)
}

fn decide(policy: &Policy, now: u64, ones: &[One], turns: Turns) -> (Vec<Class>, Decision) {
    let settings = Settings::default();
    let classes = classes(policy, ones, &settings);
    let views: Vec<View> = ones.iter().map(|one| one.view).collect();
    let contest = Contest {
        classes: &classes,
        views: &views,
        settings: &settings,
    };
    let decision = contest.decide(now, turns);
    (classes, decision)
}

/// Returns which of the processes have the turn.
fn chosen(policy: &Policy, now: u64, ones: &[One], began: u64) -> Vec<usize> {
    let turns = Turns {
        regular: began,
        ..Turns::default()
    };
    let (classes, decision) = decide(policy, now, ones, turns);
    let mut leaves = decision
        .regular
        .map_or(Vec::new(), |at| classes[at].leaves.clone());
    leaves.sort_unstable();
    leaves
}

#[test]
fn strict_runs_highest_priority_busy_class() {
    for (ones, expected) in [
        (vec![idle(2), idle(10)], vec![]),
        (vec![busy(2, 0), idle(10)], vec![0]),
        (vec![busy(2, 9), busy(10, 0)], vec![0]),
        (vec![idle(2), busy(10, 0)], vec![1]),
        (vec![busy(5, 0), busy(3, 7), busy(3, 0), busy(4, 0)], vec![1, 2]),
        (vec![busy(5, 0), idle(3), busy(4, 0)], vec![2]),
    ] {
        assert_eq!(chosen(STRICT, 0, &ones, 0), expected, "{ones:?}");
    }
}

#[test]
fn weighted_runs_class_with_least_virtual_time() {
    for (ones, expected) in [
        (vec![busy(2, 0), idle(10)], vec![0]),
        (vec![busy(2, 0), busy(10, 0)], vec![0]),
        // One millisecond at 8 counts as two at 7.
        (vec![busy(7, 19), busy(8, 10)], vec![0]),
        (vec![busy(7, 21), busy(8, 10)], vec![1]),
        (vec![idle(2), busy(10, 0)], vec![1]),
        (vec![busy(7, 30), idle(5), busy(8, 10)], vec![2]),
        // A class has the virtual time of its process that has used most.
        (vec![busy(7, 21), busy(7, 0), busy(8, 10)], vec![2]),
    ] {
        assert_eq!(chosen(WEIGHTED, 0, &ones, 0), expected, "{ones:?}");
    }
}

#[test]
fn turn_length_is_share_of_cycle_at_least_a_window() {
    let window = Settings::default().window;
    for (ones, length) in [
        (vec![busy(7, 0), busy(8, 10)], 40 * MSEC / 3),
        (vec![busy(7, 30), busy(8, 10)], 20 * MSEC / 3),
        (vec![busy(2, 5000), busy(10, 0)], window),
        (
            vec![busy(8, 0), busy(8, 0), busy(8, 0), busy(9, 100)],
            120 * MSEC / 7,
        ),
    ] {
        let (_, decision) = decide(WEIGHTED, 1000 * MSEC, &ones, Turns::default());
        let next = decision.next.map(|next| next.div_ceil(1000));
        assert_eq!(next, Some((1000 * MSEC + length).div_ceil(1000)), "{ones:?}");
        assert!(decision.takes_turns);
    }
}

#[test]
fn turn_lasts_until_its_end_or_its_class_is_idle() {
    let ones = [runs(busy(7, 30)), busy(8, 10)];
    assert_eq!(chosen(WEIGHTED, 13 * MSEC, &ones, 0), [0]);
    assert_eq!(chosen(WEIGHTED, 14 * MSEC, &ones, 0), [1]);
    let ones = [runs(idle(7)), busy(8, 1000)];
    assert_eq!(chosen(WEIGHTED, MSEC, &ones, 0), [1]);
}

#[test]
fn share_below_a_window_gets_a_turn_when_owed_a_window() {
    // 0.5 ms at 10 count as 128 ms at 2.
    for (had, others, expected) in [(0, 0, 0), (127, 0, 0), (129, 0, 1), (380, 1, 0), (390, 1, 1)] {
        let ones = [runs(busy(2, had)), busy(10, others)];
        assert_eq!(
            chosen(WEIGHTED, 40 * MSEC, &ones, 0),
            [expected],
            "{had} {others}"
        );
    }
}

#[test]
fn long_turn_takes_turns_only_in_its_last_cycle() {
    let now = 1000 * MSEC;
    let cycle = 20 * MSEC * 256 / 257;
    for (had, began, takes_turns, next) in [
        (0, now, false, 108 * MSEC),
        (100, now, false, 8 * MSEC),
        (107, now, false, MSEC),
        (109, now, true, cycle),
        (109, now - 15 * MSEC, true, 19 * MSEC),
        (127, now - 15 * MSEC, true, cycle - 15 * MSEC),
    ] {
        let turns = Turns {
            regular: began,
            ..Turns::default()
        };
        let (_, decision) = decide(WEIGHTED, now, &[runs(busy(2, had)), busy(10, 0)], turns);
        assert_eq!(decision.takes_turns, takes_turns, "{had}");
        let at = decision.next.unwrap();
        assert!(at.abs_diff(now + next) <= 1000, "{had}: {}", at - now);
    }
}

#[test]
fn woken_higher_priority_preempts_unless_a_cycle_ahead() {
    for (had, expected) in [(10, 0), (20, 0), (30, 0), (40, 1)] {
        let woken = One {
            was_busy: false,
            ..busy(7, had)
        };
        let ones = [woken, runs(busy(8, 10))];
        assert_eq!(chosen(WEIGHTED, MSEC, &ones, 0), [expected], "{had}");
    }
}

#[test]
fn starved_class_gets_an_extra_window() {
    let settings = Settings::default();
    let at = settings.starvation_interval(2).unwrap();
    let starved = |view: View| One {
        view,
        ..busy(15, 1000)
    };
    for policy in [WEIGHTED, STRICT] {
        let decide = |now: u64, view: View, extra: u64| {
            let turns = Turns {
                regular: now,
                extra,
                ..Turns::default()
            };
            let (classes, decision) = decide(policy, now, &[runs(busy(0, 900)), starved(view)], turns);
            let of = |at: Option<usize>| at.map(|at| classes[at].leaves[0]);
            assert_eq!(of(decision.regular), Some(0), "{policy:?}");
            (of(decision.extra), decision.next)
        };
        let held = View {
            held_since: Some(0),
            ..View::default()
        };
        assert_eq!(decide(at - 1, held, 0), (None, Some(at)), "{policy:?}");
        assert_eq!(
            decide(at, held, 0),
            (Some(1), Some(at + settings.window)),
            "{policy:?}"
        );
        let awaited = View {
            has_extra: true,
            awaited_until: Some(at + 5 * MSEC),
            ..View::default()
        };
        let fed = View {
            awaited_until: None,
            ..awaited
        };
        for (view, length) in [(awaited, 5 * MSEC), (fed, settings.window)] {
            assert_eq!(
                decide(at + length - 1, view, at).0,
                Some(1),
                "{policy:?} {view:?}"
            );
            assert_eq!(decide(at + length, view, at).0, None, "{policy:?} {view:?}");
        }
    }
}

/// Returns the parts of processes in percent.
fn percent(policy: &Policy, places: &[(&[(u64, u32)], u32)]) -> Vec<u64> {
    let step = |(group, priority): &(u64, u32)| Step {
        group: *group,
        priority: *priority,
    };
    let place = |(groups, priority): &(&[(u64, u32)], u32)| {
        let steps: Vec<Step> = groups.iter().map(step).collect();
        Place::new(&steps, *priority)
    };
    let places: Vec<Place> = places.iter().map(place).collect();
    let tree = Tree::new(&places);
    let parts = tree.of_processes(&parts(&tree, |_| true, policy.weigh));
    assert!(parts.iter().all(|part| *part <= WHOLE));
    let percent = |part: &u64| (part_of(1000, *part) + 5) / 10;
    parts.iter().map(percent).collect()
}

#[test]
fn groups_divide_what_they_get_among_their_members() {
    let (a, b): (&[_], &[_]) = (&[(1, 8)], &[(2, 8)]);
    let (high, low): (&[_], &[_]) = (&[(1, 7)], &[(2, 8)]);
    let inner: &[_] = &[(2, 8), (3, 7)];
    for (places, weighted, strict) in [
        (vec![(a, 8), (b, 8), (b, 8)], vec![50, 25, 25], vec![50, 25, 25]),
        (vec![(a, 8), (b, 7), (b, 8)], vec![50, 33, 17], vec![50, 50, 0]),
        (vec![(high, 15), (low, 0)], vec![67, 33], vec![100, 0]),
        (
            vec![(&[][..], 8), (b, 3), (b, 3)],
            vec![50, 25, 25],
            vec![50, 25, 25],
        ),
        (
            vec![(a, 8), (inner, 8), (b, 8)],
            vec![50, 33, 17],
            vec![50, 50, 0],
        ),
    ] {
        assert_eq!(percent(WEIGHTED, &places), weighted, "{places:?}");
        assert_eq!(percent(STRICT, &places), strict, "{places:?}");
    }
}
