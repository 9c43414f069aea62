//! Events: what happens to processes and groups, as `gcgroupfs events` shows it. The daemon keeps the last
//! ones.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

use crate::text::word;

/// Number of events that are kept.
const MAX: usize = 4096;

/// Something that has happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Higher than that of any earlier event, also of earlier daemons.
    pub number: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// Kind of event: one word.
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// User of the process, owner of the group, or user that made the change.
    pub uid: u32,
    /// Path of the group; `None` for the root, and if it is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<usize>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The event in words, as it is shown to a client.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub line: String,
}

impl Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(pid) = self.pid {
            write!(f, " {pid}")?;
        }
        if let Some(comm) = &self.comm {
            write!(f, " ({})", word(comm))?;
        }
        write!(f, " of user {}", self.uid)?;
        if let Some(group) = &self.group {
            write!(f, " in /{}", word(group))?;
        }
        if let Some(gpu) = self.gpu {
            write!(f, " on GPU {gpu}")?;
        }
        match self.text.as_str() {
            "" => Ok(()),
            text => write!(f, ": {text}"),
        }
    }
}

/// The last events. When there are too many, the user with the most loses the oldest.
#[derive(Debug)]
pub struct LastEvents {
    all: VecDeque<Event>,
    nr_of: HashMap<u32, usize>,
    next: u64,
}

impl LastEvents {
    /// Begins with the number `next`.
    pub fn new(next: u64) -> Self {
        Self {
            all: VecDeque::new(),
            nr_of: HashMap::new(),
            next,
        }
    }

    /// Adds an event, which gets its number.
    pub fn push(&mut self, event: Event) {
        *self.nr_of.entry(event.uid).or_default() += 1;
        self.all.push_back(Event {
            number: self.next,
            ..event
        });
        self.next += 1;
        if self.all.len() <= MAX {
            return;
        }
        let most = self.nr_of.iter().max_by_key(|(_, nr)| **nr).map(|(uid, _)| *uid);
        let oldest = self.all.iter().position(|event| Some(event.uid) == most);
        if let Some(gone) = oldest.and_then(|oldest| self.all.remove(oldest))
            && let Some(nr) = self.nr_of.get_mut(&gone.uid)
        {
            *nr -= 1;
            if *nr == 0 {
                self.nr_of.remove(&gone.uid);
            }
        }
    }

    /// Returns the events with higher numbers than `number`, the oldest first.
    pub fn after(&self, number: u64) -> impl Iterator<Item = &Event> {
        let first = self.all.partition_point(|event| event.number <= number);
        self.all.range(first..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(uid: u32) -> Event {
        Event {
            uid,
            what: "set".to_owned(),
            ..Event::default()
        }
    }

    #[test]
    fn user_with_many_events_displaces_none_of_others() {
        let mut last = LastEvents::new(7);
        last.push(event(1));
        (0..3 * MAX).for_each(|_| last.push(event(2)));
        assert_eq!(last.after(0).count(), MAX);
        assert_eq!(
            last.after(0).next().map(|event| (event.uid, event.number)),
            Some((1, 7))
        );
        let newest = 7 + 3 * MAX as u64;
        assert_eq!(
            last.after(newest - 2)
                .map(|event| event.number)
                .collect::<Vec<_>>(),
            [newest - 1, newest]
        );
        assert_eq!(last.after(newest).count(), 0);
    }

    #[test]
    fn names_of_programs_and_groups_stay_on_one_line() {
        let event = Event {
            pid: Some(7),
            comm: Some("a\nb".to_owned()),
            group: Some("c d".to_owned()),
            gpu: Some(1),
            text: "x".to_owned(),
            ..event(3)
        };
        assert_eq!(
            event.to_string(),
            "set 7 (a\\012b) of user 3 in /c\\040d on GPU 1: x"
        );
    }
}
