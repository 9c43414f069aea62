//! Scheduling policies: which process has the turn among processes of different priorities on one GPU.
//!
//! A policy is a pure function of the time, of a view of each process, and of the turns so far. It reads no
//! clock, no process and no gate. Processes of one priority form one class: they share a turn, and the
//! hardware slices time among them.

use std::sync::LazyLock;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::settings::Settings;

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub type Time = u64;

/// Largest `compute.priority`, which is the lowest priority.
pub const MAX_PRIORITY: u32 = 15;

/// A scheduling policy: a row of [`POLICIES`].
#[derive(Debug)]
pub struct Policy {
    /// Name in `compute.policy`, in the configuration, in the journal and on the command line.
    pub name: &'static str,
    /// Meaning of the priorities, for the manual.
    pub doc: &'static str,
    pub tick: Tick,
    /// Whether the busy process of the highest priority always has the memory turn; otherwise turns are in
    /// proportion to weights.
    pub orders_memory_by_priority: bool,
}

/// Decides once a tick from the time, a view of each process with a context on the GPU, and the turns so far.
pub(super) type Tick = fn(Time, &[View], Turns, &Settings) -> Decision;

/// All policies; the first is the default.
pub const POLICIES: &[&Policy] = &[WEIGHTED, STRICT];

pub const WEIGHTED: &Policy = &Policy {
    name: "weighted",
    doc: "busy processes get GPU time in proportion to 2^(8-priority)",
    tick: weighted,
    orders_memory_by_priority: false,
};

pub const STRICT: &Policy = &Policy {
    name: "strict",
    doc: "the busy process of the highest priority runs, others use the gaps",
    tick: strict,
    orders_memory_by_priority: true,
};

impl Policy {
    /// Returns the policy of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        POLICIES.iter().copied().find(|policy| policy.name == name)
    }
}

/// Returns the names of all policies, for people to read: `weighted or strict`.
pub fn names() -> &'static str {
    static NAMES: LazyLock<String> = LazyLock::new(|| listed(|policy| policy.name.to_owned()));
    &NAMES
}

/// Returns the names of all policies with what they do, for the manual.
pub fn described() -> String {
    listed(|policy| format!("{} ({})", policy.name, policy.doc))
}

fn listed(text: fn(&Policy) -> String) -> String {
    let texts: Vec<String> = POLICIES.iter().map(|policy| text(policy)).collect();
    texts.join(" or ")
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Policy {}

impl Default for &'static Policy {
    fn default() -> Self {
        WEIGHTED
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name)
    }
}

impl<'de> Deserialize<'de> for &'static Policy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        Policy::named(&name)
            .ok_or_else(|| D::Error::custom(format_args!("expected {}, got {name:?}", names())))
    }
}

/// A process as a policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// `compute.priority`: a lower number is a higher priority.
    pub priority: u32,
    /// Whether it has work for the GPU, or is expected to have some soon.
    pub has_demand: bool,
    /// Whether it had no demand at the last tick.
    pub has_woken: bool,
    /// GPU time used, divided by its weight.
    pub virtual_time: u128,
    /// Since when it has been held although it has demand.
    pub held_since: Option<Time>,
    /// When what its class used out of turn is repaid; in the past if nothing is owed.
    pub owes_until: Time,
    /// Its gate was opened and it has not begun: until when it may.
    pub awaited_until: Option<Time>,
}

/// The class that runs, by priority, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub priority: u32,
    pub began: Time,
}

/// The classes that have a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turns {
    pub regular: Option<Turn>,
    /// One in-flight window beside the regular turn, for a class that has waited for the starvation interval
    /// and owes nothing.
    pub extra: Option<Turn>,
}

/// Result of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// For each view, whether it must wait.
    pub holds: Vec<bool>,
    pub turns: Turns,
    /// Whether every process may be held soon, and so should keep little queued.
    pub takes_turns: bool,
    /// When the decision changes if no process's demand changes; `None`: never.
    pub next: Option<Time>,
}

/// Returns GPU time scaled for a priority: nanoseconds times 2^priority, which is proportional to nanoseconds
/// divided by the weight 2^(8-priority).
pub(super) fn virtual_time(nsec: u64, priority: u32) -> u128 {
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
    owes_until: Time,
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
            owes_until: view.owes_until,
            awaited_until: view.awaited_until,
        }
    }

    fn add(&mut self, view: &View) {
        self.weight += weight(view.priority);
        // The maximum, so that a process that uses little of the common turns does not prolong them for the
        // others.
        self.virtual_time = self.virtual_time.max(view.virtual_time);
        self.has_woken |= view.has_woken;
        self.held_since = [self.held_since, view.held_since].into_iter().flatten().min();
        self.owes_until = self.owes_until.max(view.owes_until);
        // Pending only while no process of the class has begun.
        self.awaited_until = self
            .awaited_until
            .and_then(|one| Some(one.max(view.awaited_until?)));
    }

    /// Returns how many nanoseconds `other` runs until a `window` is owed to this class.
    fn until_owed(&self, window: u64, other: &Self) -> u64 {
        let owed = self
            .virtual_time
            .saturating_add(virtual_time(window, self.priority));
        let until = owed.saturating_sub(other.virtual_time) >> other.priority.min(MAX_PRIORITY);
        u64::try_from(until).unwrap_or(u64::MAX)
    }

    /// Returns when a turn of `length` nanoseconds ends: not before its processes had time to begin.
    fn ends(&self, turn: &Turn, length: u64) -> Time {
        (turn.began + length).max(self.awaited_until.unwrap_or(0))
    }
}

/// Returns the classes with demand, highest priority (lowest number) first.
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

/// Returns the classes of other priorities than `priority`.
fn others(classes: &[Class], priority: u32) -> Vec<Class> {
    let others = classes.iter().filter(|class| class.priority != priority);
    others.copied().collect()
}

/// Returns the extra turn at `now`, and when it changes: the current extra turn `turn` until it ends, then
/// one for the class that has waited for the starvation interval and owes nothing. `classes`: all but that of
/// the regular turn.
fn extra(
    now: Time,
    classes: &[Class],
    turn: Option<Turn>,
    settings: &Settings,
) -> (Option<Turn>, Option<Time>) {
    let current = class(classes, turn)
        .map(|(turn, class)| (turn, class.ends(&turn, settings.window)))
        .filter(|(_, end)| now < *end);
    if let Some((turn, end)) = current {
        return (Some(turn), Some(end));
    }
    let Some(interval) = settings.starvation_interval() else {
        return (None, None);
    };
    let due = |class: &Class| Some((class.held_since? + interval).max(class.owes_until));
    let starves = classes
        .iter()
        .filter_map(|class| Some((due(class)?, class.priority)))
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

/// Policy `strict`: the busy class of the highest priority runs; the others fill the gaps.
fn strict(now: Time, views: &[View], turns: Turns, settings: &Settings) -> Decision {
    let classes = classes(views);
    let Some(best) = classes.first().map(|class| class.priority) else {
        return Decision::open(views.len());
    };
    let (extra, next) = extra(now, &others(&classes, best), turns.extra, settings);
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

/// Policy `weighted`: classes take turns. A turn lasts for the class's share of the cycle, and the class with
/// the least virtual time is next, so an overrun or an early start after waking is paid back. A class whose
/// share is less than a window has no turn until it is owed a window; until then a shorter burst of another
/// class is neither interrupted nor kept short in its queue.
fn weighted(now: Time, views: &[View], turns: Turns, settings: &Settings) -> Decision {
    let classes = classes(views);
    let current = class(&classes, turns.regular);
    let sum: u64 = classes.iter().map(|class| class.weight).sum();
    let share = |class: &Class| {
        let share = u128::from(settings.cycle) * u128::from(class.weight) / u128::from(sum);
        u64::try_from(share).unwrap_or(settings.cycle)
    };
    let slice = |class: &Class| share(class).max(settings.window);
    // How long `class` still runs until `other` is due.
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
    // A class of higher priority that wakes goes first, unless it has had a cycle's share more than the
    // running class.
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
    let (extra, next) = extra(now, &others(&classes, turn.priority), turns.extra, settings);
    let runs = |view: &View| {
        view.priority == turn.priority || extra.is_some_and(|turn| turn.priority == view.priority)
    };
    let others = classes.iter().filter(|other| other.priority != turn.priority);
    let end = others.map(|other| until_due(&class, other)).min().map(|until| {
        let end = class.ends(&turn, slice(&class));
        end.max(now.saturating_add(until))
    });
    // Until a cycle before its end, a long turn is treated as if there were no other classes.
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
    /// Returns the decision in which no process waits.
    pub fn open(nr_views: usize) -> Self {
        Self {
            holds: vec![false; nr_views],
            turns: Turns::default(),
            takes_turns: false,
            next: None,
        }
    }
}
