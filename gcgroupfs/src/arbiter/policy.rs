//! The policies: whose turn it is among processes of different priorities on one GPU.
//!
//! A policy is a pure function of the time, of what there is to know of the processes, and of the turns so far. It
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

/// Decides, once a tick, from the time, a view of each process with a context on the GPU, and the turns so far.
pub type Tick = fn(Time, &[View], Turns, &Settings) -> Decision;

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
    /// It was let go on and has not begun: until then it may.
    pub awaited_until: Option<Time>,
}

/// Which class runs, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub priority: u32,
    pub began: Time,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turns {
    pub regular: Option<Turn>,
    /// One window beside it, for those who have waited for too long.
    pub extra: Option<Turn>,
}

/// What a policy asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// For each view, whether it is to wait.
    pub holds: Vec<bool>,
    pub turns: Turns,
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
    awaited_until: Option<Time>,
}

impl Class {
    fn new(view: &View) -> Self {
        Self {
            priority: view.priority,
            weight: weight(view.priority),
            virtual_time: view.virtual_time,
            has_woken: view.has_woken,
            held_since: view.held_since,
            awaited_until: view.awaited_until,
        }
    }

    fn add(&mut self, view: &View) {
        self.weight += weight(view.priority);
        // One that uses little of the common turns must not draw them out for the others.
        self.virtual_time = self.virtual_time.max(view.virtual_time);
        self.has_woken |= view.has_woken;
        self.held_since = [self.held_since, view.held_since].into_iter().flatten().min();
        // One that has begun is enough.
        self.awaited_until = self
            .awaited_until
            .and_then(|one| Some(one.max(view.awaited_until?)));
    }

    /// How long `other` runs until a `window` is owed to this class beside it.
    fn until_owed(&self, window: u64, other: &Self) -> u64 {
        let owed = self
            .virtual_time
            .saturating_add(virtual_time(window, self.priority));
        let until = owed.saturating_sub(other.virtual_time) >> other.priority.min(MAX_PRIORITY);
        u64::try_from(until).unwrap_or(u64::MAX)
    }

    /// When a turn is over that is to last for `length`: not before there was time to begin.
    fn ends(&self, turn: &Turn, length: u64) -> Time {
        (turn.began + length).max(self.awaited_until.unwrap_or(0))
    }
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
            Some(class) => class.add(view),
            None => classes.insert(at, Class::new(view)),
        }
    }
    classes
}

fn class(classes: &[Class], turn: Option<Turn>) -> Option<(Turn, Class)> {
    let turn = turn?;
    let class = classes.iter().find(|class| class.priority == turn.priority)?;
    Some((turn, *class))
}

/// The extra turn at `now`, beside a regular one of the priority `regular`: the one there is until it is over, or that
/// of who has waited for too long. And when that changes.
fn extra(
    now: Time,
    classes: &[Class],
    turn: Option<Turn>,
    regular: u32,
    settings: &Settings,
) -> (Option<Turn>, Option<Time>) {
    let current = class(classes, turn)
        .map(|(turn, class)| (turn, class.ends(&turn, settings.window)))
        .filter(|(turn, end)| turn.priority != regular && now < *end);
    if let Some((turn, end)) = current {
        return (Some(turn), Some(end));
    }
    let Some(interval) = settings.starvation else {
        return (None, None);
    };
    let starves = classes
        .iter()
        .filter(|class| class.priority != regular)
        .filter_map(|class| Some((class.held_since? + interval, class.priority)))
        .min();
    match starves {
        Some((when, priority)) if when <= now => {
            let turn = Turn { priority, began: now };
            (Some(turn), Some(now + settings.window))
        }
        Some((when, _)) => (None, Some(when)),
        None => (None, None),
    }
}

/// The most important busy class runs freely. The others have the gaps.
fn strict(now: Time, views: &[View], turns: Turns, settings: &Settings) -> Decision {
    let classes = classes(views);
    let Some(best) = classes.first().map(|class| class.priority) else {
        return Decision::open(views.len());
    };
    let (extra, next) = extra(now, &classes, turns.extra, best, settings);
    Decision {
        holds: views
            .iter()
            .map(|view| view.priority > best && extra.is_none_or(|turn| turn.priority != view.priority))
            .collect(),
        turns: Turns { regular: None, extra },
        takes_turns: false,
        next,
    }
}

/// Classes take turns. Turns are as long as their shares of the cycle, and who has had least for its weight is next;
/// so what a turn ran over, or a wake-up ran ahead, is paid back. Whose share is less than a window has no turn until
/// it is owed one: a burst that is shorter than it takes to owe it is not interrupted, nor kept short in its queue.
fn weighted(now: Time, views: &[View], turns: Turns, settings: &Settings) -> Decision {
    let classes = classes(views);
    let current = class(&classes, turns.regular);
    let sum: u64 = classes.iter().map(|class| class.weight).sum();
    let share = |class: &Class| {
        let share = u128::from(settings.cycle) * u128::from(class.weight) / u128::from(sum);
        u64::try_from(share).unwrap_or(settings.cycle)
    };
    let slice = |class: &Class| share(class).max(settings.window);
    // How long the class runs, from now on, until another is due.
    let until_due = |class: &Class, other: &Class| {
        if other.priority == class.priority || share(other) >= settings.window {
            0
        } else {
            other.until_owed(settings.window, class)
        }
    };
    let is_due = |other: &Class| current.is_none_or(|(_, class)| until_due(&class, other) == 0);
    let Some(least) = classes
        .iter()
        .min_by_key(|class| (!is_due(class), class.virtual_time, class.priority))
    else {
        return Decision::open(views.len());
    };
    let is_alone = classes.len() == 1;
    let cycle = (u128::from(settings.cycle) << MAX_PRIORITY) / u128::from(sum);
    // Who wakes and is more important goes first, unless it has had a cycle's share more than who runs.
    let woken = current.and_then(|(_, class)| {
        classes.iter().find(|other| {
            other.has_woken
                && other.priority < class.priority
                && other.virtual_time <= class.virtual_time.saturating_add(cycle)
        })
    });
    let new = |class: &Class| {
        let priority = class.priority;
        (Turn { priority, began: now }, *class)
    };
    let (turn, class) = match (current, woken) {
        (_, Some(woken)) => new(woken),
        (Some((turn, class)), None) if is_alone || now < class.ends(&turn, slice(&class)) => (turn, class),
        _ => new(least),
    };
    let (extra, next) = extra(now, &classes, turns.extra, turn.priority, settings);
    let runs = |view: &View| {
        view.priority == turn.priority || extra.is_some_and(|turn| turn.priority == view.priority)
    };
    let others = classes.iter().filter(|other| other.priority != turn.priority);
    let end = others.map(|other| until_due(&class, other)).min().map(|until| {
        let end = class.ends(&turn, slice(&class));
        end.max(now.saturating_add(until))
    });
    // Until shortly before it ends, a long turn is as if there were no others.
    let is_last = |end: &Time| *end <= now.saturating_add(settings.cycle);
    let changes = end.map(|end| if is_last(&end) { end } else { end - settings.cycle });
    Decision {
        holds: views
            .iter()
            .map(|view| !runs(view) && (view.has_demand || view.priority > turn.priority))
            .collect(),
        turns: Turns {
            regular: Some(turn),
            extra,
        },
        takes_turns: end.as_ref().is_some_and(is_last),
        next: changes.into_iter().chain(next.filter(|_| !is_alone)).min(),
    }
}

impl Decision {
    /// Nobody waits.
    pub fn open(nr_views: usize) -> Self {
        Self {
            holds: vec![false; nr_views],
            turns: Turns::default(),
            takes_turns: false,
            next: None,
        }
    }
}
