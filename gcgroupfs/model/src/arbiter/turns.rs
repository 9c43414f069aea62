//! Turns on one GPU: which class runs, and until when.
//!
//! A decision is a pure function of the time, of the classes that compete, of a view of each process, and of
//! the turns so far. It reads no clock, no process and no gate.

use super::contest::Class;
use super::parts::{part_of, scaled};
use super::policy::Time;
use super::settings::Settings;

/// A process as a decision sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct View {
    /// Whether it has the regular turn, or is of the class that has the extra one.
    pub has_turn: bool,
    pub has_extra: bool,
    /// Whether others have a larger part because they are fewer: its class runs one by one, so that little is
    /// queued when one of those begins.
    pub is_crowded: bool,
    /// Since when it has been held although it has demand.
    pub held_since: Option<Time>,
    /// When what its class used out of turn is repaid; in the past if nothing is owed.
    pub owes_until: Time,
    /// Its gate was opened and it has not begun: until when it may.
    pub awaited_until: Option<Time>,
}

/// When the turns began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Turns {
    pub regular: Time,
    /// That of the process, where those of a class run one by one.
    pub single: Time,
    /// One in-flight window beside the regular turn, for a class that has waited for the starvation interval
    /// and owes nothing.
    pub extra: Time,
}

/// Which class has the turns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// Index of the class that runs, and of the one that has an extra turn.
    pub regular: Option<usize>,
    /// Index of its process that runs, where those of the class run one by one.
    pub single: Option<usize>,
    pub extra: Option<usize>,
    /// As `single`, of the class that has the extra turn.
    pub extra_single: Option<usize>,
    pub turns: Turns,
    /// Whether every process may be held soon, and so should keep little queued.
    pub takes_turns: bool,
    /// When the decision changes if no process's demand changes; `None`: never.
    pub next: Option<Time>,
}

/// Input of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contest<'a> {
    /// The class with the next turn first.
    pub classes: &'a [Class],
    /// One for each process.
    pub views: &'a [View],
    pub settings: &'a Settings,
}

impl Contest<'_> {
    fn views<'a>(&'a self, class: &'a Class) -> impl Iterator<Item = &'a View> {
        class.leaves.iter().filter_map(|leaf| self.views.get(*leaf))
    }

    /// Returns when a turn of `length` nanoseconds ends: not before its processes had time to begin, while
    /// none of them has.
    fn ends(&self, class: &Class, began: Time, length: u64) -> Time {
        let awaited = self.views(class).map(|view| view.awaited_until);
        let awaited = awaited.reduce(|one, other| Some(one?.max(other?))).flatten();
        (began + length).max(awaited.unwrap_or(0))
    }

    fn is_crowded(&self, class: &Class) -> bool {
        class.leaves.len() > 1 && self.views(class).any(|view| view.is_crowded)
    }

    /// Returns the length of a turn. That of a crowded class is short, so that others with less virtual time
    /// wait no longer.
    fn slice(&self, class: &Class) -> u64 {
        match self.is_crowded(class) {
            true => self.quantum(),
            false => part_of(self.settings.cycle, class.part).max(self.settings.window),
        }
    }

    fn quantum(&self) -> u64 {
        (self.settings.cycle / 8).max(self.settings.window)
    }

    /// Returns the process of the class that runs, where they run one by one, and since when: the one that
    /// has had least.
    fn single(&self, now: Time, class: &Class, began: Time) -> (Option<usize>, Time) {
        if !self.is_crowded(class) {
            return (None, now);
        }
        let mut leaves = class.leaves.iter().copied();
        let has_turn = |leaf: &usize| self.views.get(*leaf).is_some_and(|view| view.has_turn);
        let nr_running = self.views(class).filter(|view| view.has_turn).count();
        match leaves.clone().find(has_turn) {
            Some(leaf) if nr_running == 1 && now < began + self.quantum() => (Some(leaf), began),
            _ => (leaves.next(), now),
        }
    }

    /// Returns the class that has the extra turn at `now`, when that began, and when it changes: the current
    /// one until its turn ends, then the one that has waited for the starvation interval and owes nothing.
    /// `regular`: the class that has the regular turn.
    fn extra(&self, now: Time, regular: usize, began: Time) -> (Option<usize>, Time, Option<Time>) {
        let others = || self.classes.iter().enumerate().filter(|(at, _)| *at != regular);
        let current = others().find(|(_, class)| self.views(class).any(|view| view.has_extra));
        let current = current.map(|(at, class)| (at, self.ends(class, began, self.settings.window)));
        if let Some((at, end)) = current.filter(|(_, end)| now < *end) {
            return (Some(at), began, Some(end));
        }
        let Some(interval) = self.settings.starvation_interval(self.classes.len()) else {
            return (None, now, None);
        };
        let due = |class: &Class| {
            let since = self.views(class).filter_map(|view| view.held_since).min()?;
            let owes = self.views(class).map(|view| view.owes_until).max()?;
            Some((since + interval).max(owes))
        };
        let starves = others().filter_map(|(at, class)| Some((due(class)?, at))).min();
        match starves {
            Some((when, at)) if when <= now => (Some(at), now, Some(now + self.settings.window)),
            Some((when, _)) => (None, now, Some(when)),
            None => (None, now, None),
        }
    }

    /// Decides. A turn lasts for the class's share of the cycle, and the class with the least virtual time is
    /// next, so an overrun or an early start after waking is paid back. A class whose share is less than a
    /// window has no turn until it is owed a window; until then a shorter burst of another class is neither
    /// interrupted nor kept short in its queue.
    pub(super) fn decide(&self, now: Time, turns: Turns) -> Decision {
        let Contest {
            classes, settings, ..
        } = *self;
        let has_turn = |class: &Class| self.views(class).any(|view| view.has_turn);
        let current = classes.iter().position(has_turn);
        let is_alone = classes.len() == 1;
        let woken = current.and_then(|current| {
            let goes_first = |other: &Class| is_woken_before(other, &classes[current], settings);
            classes.iter().position(goes_first)
        });
        let goes_on = |class: &Class| is_alone || now < self.ends(class, turns.regular, self.slice(class));
        let (regular, began) = match (current, woken) {
            (_, Some(woken)) => (woken, now),
            (Some(current), None) if goes_on(&classes[current]) => (current, turns.regular),
            _ => (0, now),
        };
        let Some(class) = classes.get(regular) else {
            return Decision::default();
        };
        let (single, single_began) = self.single(now, class, turns.single);
        let single_ends = single.map(|_| single_began + self.quantum());
        let (extra, extra_began, changes) = self.extra(now, regular, turns.extra);
        let until_due = |other: &Class| {
            let (own, other) = class.apart(other)?;
            Some(own.until_due(other))
        };
        let extra_single = extra.and_then(|at| {
            let class = classes.get(at).filter(|class| self.is_crowded(class))?;
            let has_extra = |leaf: &&usize| self.views.get(**leaf).is_some_and(|view| view.has_extra);
            class
                .leaves
                .iter()
                .find(has_extra)
                .or(class.leaves.first())
                .copied()
        });
        let end = classes.iter().filter_map(until_due).min().map(|until| {
            let end = self.ends(class, began, self.slice(class));
            end.max(now.saturating_add(until))
        });
        // Until a cycle before its end, a long turn is treated as if there were no other classes.
        let is_last = |end: &Time| *end <= now.saturating_add(settings.cycle);
        let narrows = end.map(|end| if is_last(&end) { end } else { end - settings.cycle });
        Decision {
            regular: Some(regular),
            single,
            extra,
            extra_single,
            turns: Turns {
                regular: began,
                single: single_began,
                extra: extra_began,
            },
            takes_turns: single.is_some() || end.as_ref().is_some_and(is_last),
            next: narrows.into_iter().chain(changes).chain(single_ends).min(),
        }
    }
}

/// Returns whether a class has woken and does not wait for the end of the current turn: one of the same
/// priority that has had no more than the class that runs, or one of a higher priority that has had neither a
/// cycle nor a window of that class more.
fn is_woken_before(other: &Class, current: &Class, settings: &Settings) -> bool {
    let apart = other.apart(current).filter(|(other, _)| other.has_woken);
    apart.is_some_and(|(other, current)| match other.priority < current.priority {
        true => {
            let most = u128::from(settings.cycle).max(scaled(settings.window, current.part()));
            other.virtual_time <= current.virtual_time.saturating_add(most)
        }
        false => other.priority == current.priority && other.tag <= current.virtual_time,
    })
}
