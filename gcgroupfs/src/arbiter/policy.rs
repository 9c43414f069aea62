//! The policies: whose turn it is among processes of different priorities on one GPU.
//!
//! A policy is a pure function of the time, of what there is to know of the processes, and of the turn so far. It
//! knows no clock, no process and no gate. Processes of one priority are one class: they have their turn together,
//! and the hardware slices time among them.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::Settings;
use crate::tree::MAX_PRIORITY;

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub type Time = u64;

/// By its name: in `compute.policy`, in the configuration, on the command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// GPU time in proportion 2^(8-priority) among those that are busy
    #[default]
    Weighted,
    /// The most important busy one runs, the others have the gaps
    Strict,
}

/// One row of the table of policies.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub policy: Policy,
    pub name: &'static str,
    pub tick: Tick,
}

/// Decides, once a tick, from the time, a view of each process with a context on the GPU, and the turn so far.
pub type Tick = fn(Time, &[View], Option<Turn>, &Settings) -> Decision;

/// Every policy there is.
pub const POLICIES: &[Entry] = &[
    Entry {
        policy: Policy::Weighted,
        name: "weighted",
        tick: weighted,
    },
    Entry {
        policy: Policy::Strict,
        name: "strict",
        tick: strict,
    },
];

impl Policy {
    pub fn entry(self) -> &'static Entry {
        // A test asks that every policy has its row.
        POLICIES
            .iter()
            .find(|entry| entry.policy == self)
            .unwrap_or(&POLICIES[0])
    }
}

/// What a policy may know of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// `compute.priority`: lower is more important.
    pub priority: u32,
    /// Whether it has work for the GPU, or has had until a moment ago.
    pub has_demand: bool,
    /// Whether it had none at the last tick.
    pub has_woken: bool,
    /// The GPU time it has had, divided by its weight.
    pub virtual_time: u128,
    /// Since when it has been held although it has demand.
    pub held_since: Option<Time>,
}

/// Which class runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub priority: u32,
    pub began: Time,
    /// One window out of turn, for those who have waited for too long.
    pub is_extra: bool,
}

/// What a policy asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// For each view, whether it is to wait.
    pub holds: Vec<bool>,
    pub turn: Option<Turn>,
    /// Whether everybody may be held soon, and so should keep little queued.
    pub takes_turns: bool,
    /// When it would decide otherwise, if nobody's demand changes; none: never.
    pub next: Option<Time>,
}

/// GPU time as it counts for one priority: nanoseconds times 2^priority, which is in proportion to nanoseconds
/// divided by the weight 2^(8-priority).
pub fn virtual_time(nsec: u64, priority: u32) -> u128 {
    u128::from(nsec) << priority.min(MAX_PRIORITY)
}

fn weight(priority: u32) -> u64 {
    1 << (MAX_PRIORITY - priority.min(MAX_PRIORITY))
}

/// All processes of one priority that have demand.
#[derive(Debug, Clone, Copy)]
struct Class {
    priority: u32,
    weight: u64,
    virtual_time: u128,
    has_woken: bool,
    held_since: Option<Time>,
}

/// The most important first.
fn classes(views: &[View]) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for view in views.iter().filter(|view| view.has_demand) {
        let at = classes.partition_point(|class| class.priority < view.priority);
        match classes
            .get_mut(at)
            .filter(|class| class.priority == view.priority)
        {
            Some(class) => {
                class.weight += weight(view.priority);
                // One that uses little of the common turns must not draw them out for the others.
                class.virtual_time = class.virtual_time.max(view.virtual_time);
                class.has_woken |= view.has_woken;
                class.held_since = [class.held_since, view.held_since].into_iter().flatten().min();
            }
            None => classes.insert(
                at,
                Class {
                    priority: view.priority,
                    weight: weight(view.priority),
                    virtual_time: view.virtual_time,
                    has_woken: view.has_woken,
                    held_since: view.held_since,
                },
            ),
        }
    }
    classes
}

/// When the next class will have waited for too long, and which.
fn starves(classes: &[Class], settings: &Settings) -> Option<(Time, u32)> {
    let interval = settings.starvation?;
    classes
        .iter()
        .filter_map(|class| Some((class.held_since? + interval, class.priority)))
        .min()
}

/// The most important busy class runs freely. The others have the gaps, and a window beside it when they have
/// waited for too long.
fn strict(now: Time, views: &[View], turn: Option<Turn>, settings: &Settings) -> Decision {
    let classes = classes(views);
    let Some(best) = classes.first().map(|class| class.priority) else {
        return Decision::open(views.len());
    };
    let starves = starves(&classes, settings);
    let extra = turn
        .filter(|turn| turn.is_extra && now < turn.began + settings.window)
        .or_else(|| {
            let (_, priority) = starves.filter(|(when, _)| *when <= now)?;
            Some(Turn {
                priority,
                began: now,
                is_extra: true,
            })
        });
    Decision {
        holds: views
            .iter()
            .map(|view| view.priority > best && extra.is_none_or(|turn| turn.priority != view.priority))
            .collect(),
        turn: extra,
        takes_turns: false,
        next: match extra {
            Some(turn) => Some(turn.began + settings.window),
            None => starves.map(|(when, _)| when),
        },
    }
}

/// Classes take turns. Turns are as long as their shares of the cycle, and who has had least for its weight is next;
/// so what a turn ran over, or a wake-up ran ahead, is paid back.
fn weighted(now: Time, views: &[View], turn: Option<Turn>, settings: &Settings) -> Decision {
    let classes = classes(views);
    let (Some(best), is_alone) = (classes.first(), classes.len() == 1) else {
        return Decision::open(views.len());
    };
    let sum: u64 = classes.iter().map(|class| class.weight).sum();
    let slice = |class: &Class| {
        let share = u128::from(settings.cycle) * u128::from(class.weight) / u128::from(sum);
        u64::try_from(share)
            .unwrap_or(settings.cycle)
            .max(settings.window)
    };
    let ends = |turn: &Turn, class: &Class| {
        turn.began
            + if turn.is_extra {
                settings.window
            } else {
                slice(class)
            }
    };
    let starves = starves(&classes, settings);
    let cycle = (u128::from(settings.cycle) << MAX_PRIORITY) / u128::from(sum);

    // The turn so far, of a class that still has demand.
    let current = turn.and_then(|turn| {
        let class = classes.iter().find(|class| class.priority == turn.priority)?;
        Some((turn, class))
    });
    let least = classes
        .iter()
        .min_by_key(|class| (class.virtual_time, class.priority))
        .unwrap_or(best);
    let new = |class: &Class, is_extra| {
        let priority = class.priority;
        (
            Turn {
                priority,
                began: now,
                is_extra,
            },
            *class,
        )
    };
    let woken = current.and_then(|(turn, class)| {
        let may_pass = |other: &&Class| {
            other.has_woken
                && other.priority < class.priority
                && other.virtual_time <= class.virtual_time.saturating_add(cycle)
        };
        classes.iter().find(may_pass).filter(|_| !turn.is_extra)
    });
    let starving = starves
        .filter(|(when, _)| *when <= now)
        .and_then(|(_, priority)| classes.iter().find(|class| class.priority == priority));
    let (turn, class) = match (current, woken, starving) {
        (Some((turn, class)), ..) if is_alone => (turn, *class),
        (Some((turn, class)), ..) if turn.is_extra && now < ends(&turn, class) => (turn, *class),
        (_, Some(woken), _) => new(woken, false),
        (_, None, Some(starving)) => new(starving, true),
        (Some((turn, class)), None, None) if now < ends(&turn, class) => (turn, *class),
        _ => new(least, false),
    };
    let end = (!is_alone).then(|| ends(&turn, &class));
    Decision {
        holds: views
            .iter()
            .map(|view| view.priority != turn.priority && (view.has_demand || view.priority > turn.priority))
            .collect(),
        turn: Some(turn),
        takes_turns: !is_alone,
        next: end.map(|end| {
            let starves = starves.map(|(when, _)| when).filter(|when| *when > now);
            starves.map_or(end, |when| end.min(when))
        }),
    }
}

impl Decision {
    /// Nobody waits.
    pub fn open(nr_views: usize) -> Self {
        Self {
            holds: vec![false; nr_views],
            turn: None,
            takes_turns: false,
            next: None,
        }
    }
}
