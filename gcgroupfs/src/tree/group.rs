//! One group: where it is, whose it is, what is asked of it, who is in it, and what only the daemon remembers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::events::{Events, Standing, nr_places};
use super::inherited::Inherited;
use super::{Access, GroupId, ProcessId, Settings, Sums};
use crate::error::{Error, Result};

/// How deep groups nest; one in the root is at depth 1.
pub const MAX_DEPTH: usize = 8;

/// The longest name, bytes.
const MAX_NAME: usize = 255;

/// Groups that one user, other than root, may have made.
pub(super) const MAX_PER_UID: usize = 1024;

/// Groups in all.
pub(super) const MAX_GROUPS: usize = 64 << 10;

/// How many there may be for others than root to make one more.
pub(super) const MAX_OTHERS: usize = 60 << 10;

/// A directory of processes and of other groups.
#[derive(Debug)]
pub struct Group {
    pub(super) id: GroupId,
    pub(super) name: String,
    pub(super) parent: Option<GroupId>,
    /// The uid of who made it.
    pub(super) maker: u32,
    /// Whether it goes when the last process and the last child group have gone.
    pub(super) is_transient: bool,
    pub(super) access: Access,
    pub(super) settings: Settings,
    pub(super) children: BTreeMap<String, GroupId>,
    /// The processes directly in it.
    pub(super) members: BTreeSet<ProcessId>,
    /// The processes in it and below.
    pub(super) nr_members: usize,
    /// Processes that are to come in next, or are between one program and the next; here and below.
    pub(super) nr_holds: usize,
    /// Processes that may use the GPU though they are not registered; here and below.
    pub(super) nr_ungoverned: usize,
    /// How many of these stand still, by place as [`Events`] has them.
    pub(super) nr_frozen: Vec<usize>,
    /// Bytes that these were last seen to hold, likewise; and those of them that are believed, which count above.
    held: Vec<u64>,
    passed: Vec<u64>,
    /// What holds in it, by itself and all above.
    pub(super) inherited: Arc<Inherited>,
    /// By device; the group as a whole is none.
    pub(super) counted: BTreeMap<Option<usize>, Box<Counted>>,
    /// Whether a peak has grown that has not been written down.
    pub(super) has_grown: bool,
    pub(super) events: Events,
}

/// What a group has counted that its processes do not tell, and the most it was seen to hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Counted {
    /// Counts of processes that have left, and of the group itself.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) before: Sums,
    /// Counts that processes had when they came in from elsewhere.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) arrived: Sums,
    /// The highest `memory.current` that was seen since it was last reset, or what it was then.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) peak: u64,
    /// Whether it has been reset: then the peaks of processes say nothing of it.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) is_reset: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Group {
    pub(super) fn new(id: GroupId, parent: Option<GroupId>, name: &str, maker: u32, access: Access) -> Self {
        Self {
            id,
            name: name.to_owned(),
            parent,
            maker,
            is_transient: false,
            access,
            settings: Settings::default(),
            children: BTreeMap::new(),
            members: BTreeSet::new(),
            nr_members: 0,
            nr_holds: 0,
            nr_ungoverned: 0,
            nr_frozen: Vec::new(),
            held: Vec::new(),
            passed: Vec::new(),
            inherited: Inherited::nothing(),
            counted: BTreeMap::new(),
            has_grown: false,
            events: Events::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_populated() && self.children.is_empty()
    }

    /// Whether there is a process in it or below, also one that is not registered just now.
    pub(super) fn is_populated(&self) -> bool {
        self.nr_members > 0 || self.nr_holds > 0
    }

    pub(super) fn counted(&self, device: Option<usize>) -> Counted {
        self.counted
            .get(&device)
            .map_or_else(Counted::default, |counted| **counted)
    }

    pub(super) fn counted_mut(&mut self, device: Option<usize>) -> &mut Counted {
        self.counted.entry(device).or_default()
    }

    /// One of the processes, or of the groups in it, is seen to hold `now`, and not `before` any more; by place. Returns what
    /// the group was believed to hold before, and is now, where no more than `caps` is believed.
    pub(super) fn hold(&mut self, before: &[u64], now: &[u64], caps: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let length = before.len().max(now.len()).max(self.held.len());
        self.held.resize(length, 0);
        for at in 0..length {
            let of = |bytes: &[u64]| bytes.get(at).copied().unwrap_or(0);
            let held = of(&self.held).saturating_sub(of(before)).saturating_add(of(now));
            self.held[at] = held;
        }
        let passed = believed(&self.held, caps);
        (std::mem::replace(&mut self.passed, passed.clone()), passed)
    }

    /// Whether all that processes were seen to hold, each when it was last looked at, is more than the peak.
    pub(super) fn seems_higher(&self) -> bool {
        let mut places = self.passed.iter().enumerate();
        places.any(|(at, held)| *held > self.counted(at.checked_sub(1)).peak)
    }

    /// All processes have been looked at just now.
    pub(super) fn note_peaks(&mut self) {
        for at in 0..self.passed.len() {
            self.note_peak(at.checked_sub(1), self.passed[at]);
        }
    }

    /// It has held so much at one moment.
    pub(super) fn note_peak(&mut self, device: Option<usize>, bytes: u64) {
        if bytes > self.counted(device).peak {
            self.counted_mut(device).peak = bytes;
            self.has_grown = true;
        }
    }

    /// Whether it was asked, here or above, to stand still there, and everything in it does.
    pub(super) fn is_frozen(&self, device: Option<usize>) -> bool {
        let at = device.map_or(0, |device| device + 1);
        let nr_frozen = self.nr_frozen.get(at).copied().unwrap_or(0);
        self.inherited.freeze(device) && nr_frozen == self.nr_members && self.nr_ungoverned == 0
    }

    /// Counts changes of what `gcgroup.events` shows; whether there are any.
    pub(super) fn note_standing(&mut self, nr_devices: usize) -> bool {
        let mut changed = false;
        for at in 0..nr_places(nr_devices) {
            let standing = Standing {
                is_populated: self.is_populated(),
                is_frozen: self.is_frozen(at.checked_sub(1)),
                ..Standing::default()
            };
            changed |= self.events.set_standing(at, standing);
        }
        changed
    }
}

/// What is believed of what is held in a group, by place: what is too much on one device is too much of the whole.
pub(super) fn believed(held: &[u64], caps: &[u64]) -> Vec<u64> {
    let cap = |at: usize| caps.get(at).copied().unwrap_or(u64::MAX);
    let mut believed: Vec<u64> = held
        .iter()
        .enumerate()
        .map(|(at, held)| (*held).min(cap(at)))
        .collect();
    let devices = held.iter().zip(&believed).skip(1);
    let beyond = devices.fold(0, |sum: u64, (held, believed)| {
        sum.saturating_add(held - believed)
    });
    if let (Some(whole), Some(held)) = (believed.first_mut(), held.first()) {
        *whole = held.saturating_sub(beyond).min(cap(0));
    }
    believed
}

/// Checks that a group may have that name.
///
/// # Errors
/// `EINVAL` for one that is empty or has a slash or a newline in it, or nothing but digits, as processes' and
/// devices' directories have; `ENAMETOOLONG` beyond 255 bytes.
pub fn check_name(name: &str) -> Result<()> {
    if name.len() > MAX_NAME {
        return Err(Error::LongName);
    }
    if name.is_empty() || matches!(name, "." | "..") || name.contains(['/', '\n', '\0']) {
        return Err(Error::BadName("a group's name is one line without a slash"));
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::BadName(
            "names of digits are those of processes and devices",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_anything_but_numbers() {
        for name in ["a", "team-1", "1a", "\u{e9}", "a b", "...", &"x".repeat(255)] {
            check_name(name).unwrap();
        }
        for name in ["", "1", "007", "a/b", "a\nb", ".", "..", "/"] {
            assert_eq!(check_name(name).unwrap_err().errno(), libc::EINVAL, "{name:?}");
        }
        assert_eq!(
            check_name(&"x".repeat(256)).unwrap_err().errno(),
            libc::ENAMETOOLONG
        );
    }
}
