//! What of a process, a group or the root survives the daemon: values to be written down.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::group::Counted;
use super::process::Process;
use super::{Access, Device, Group, GroupId, Settings, Sums, legacy};

/// One record. What is empty is left out, so that one of an earlier version, which had settings alone, is one too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    #[serde(flatten)]
    pub settings: Settings,
    /// The group that it is in; in the root, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// Of a group alone: without it, there is none any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made: Option<Made>,
    /// Of a process, whether it has been in another group before.
    #[serde(skip_serializing_if = "is_default")]
    pub has_moved: bool,
    /// Of the root and of groups: whom the directory belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// Of the root alone: the number of the next group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_group: Option<GroupId>,
    /// What has been counted, by the devices' UUIDs; of the entity as a whole by an empty one.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) counted: BTreeMap<String, Counted>,
    /// Of a process, what stays in the root and in its groups if it ends, likewise.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) counts: BTreeMap<String, Sums>,
    /// The program that has counted that, as [`Identity::image`](super::Identity::image) has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<(u64, u64)>,
    /// Of a process that was here when the last daemon ended and comes back: what it claims to hold is taken on trust until
    /// NVML is heard, since it may be more than the limits of now allow.
    #[serde(skip)]
    pub is_awaited: bool,
    /// Of a process that joins: its group is held for it ([`Tree::hold_group`](super::Tree::hold_group)), and is released by the
    /// join itself: a process that can be seen in a group can be moved out of it, and then the group can be removed.
    #[serde(skip)]
    pub is_held: bool,
}

/// How a group came to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Made {
    pub name: String,
    /// The uid of who made it.
    pub by: u32,
    /// Whether it goes when the last process and the last child group have gone.
    #[serde(skip_serializing_if = "is_default")]
    pub is_transient: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl From<Settings> for Saved {
    fn from(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }
}

impl Saved {
    /// Whether there is nothing to keep.
    pub fn is_default(&self) -> bool {
        is_default(self)
    }

    /// Whether there is anything to stay if the process ends.
    pub fn has_counts(&self) -> bool {
        !self.counts.is_empty()
    }

    /// Takes out what stays in the root and in groups when the process ends, since it has.
    pub fn take_counts(&mut self) -> BTreeMap<String, Sums> {
        self.image = None;
        std::mem::take(&mut self.counts)
    }

    /// Whether what has been counted was by another program than this one, as far as anybody knows.
    pub fn is_of_another(&self, image: Option<(u64, u64)>) -> bool {
        self.image.is_some() && image.is_some() && self.image != image
    }

    pub(super) fn of_process(process: &Process, devices: &[Device]) -> Self {
        let kept = [(None, &process.whole)]
            .into_iter()
            .chain((process.devices.iter().enumerate()).map(|(device, kept)| (Some(device), kept)));
        let counted = kept.map(|(device, kept)| {
            let mut counted = Counted::default();
            counted.before.nr_over_limit = kept.nr_over_limit;
            counted.before.nr_reclaim = kept.nr_reclaim;
            counted.peak = kept.peak;
            (device, counted)
        });
        let counts = legacy::counts(process, devices);
        Self {
            settings: process.settings.clone(),
            group: process.group,
            has_moved: process.has_moved,
            counted: by_uuid(counted, devices),
            image: process.identity.image.filter(|_| !counts.is_empty()),
            counts,
            ..Self::default()
        }
    }

    /// Gives a process back what it had.
    pub(super) fn restore(&self, process: &mut Process, devices: &[Device]) {
        process.has_moved = self.has_moved;
        for (device, counted) in by_index(&self.counted, devices) {
            if let Some(kept) = process.kept_mut(device) {
                kept.nr_over_limit = counted.before.nr_over_limit;
                kept.nr_reclaim = counted.before.nr_reclaim;
                kept.peak = counted.peak;
            }
        }
    }

    pub(super) fn of_group(group: &Group, devices: &[Device]) -> Self {
        let counted = group.counted.iter().map(|(device, counted)| (*device, **counted));
        Self {
            settings: group.settings.clone(),
            group: group.parent,
            made: Some(Made {
                name: group.name.clone(),
                by: group.maker,
                is_transient: group.is_transient,
            }),
            access: Some(group.access),
            counted: by_uuid(counted, devices),
            ..Self::default()
        }
    }

    /// Those that have left, whatever groups they were in, have counted so much.
    pub(super) fn of_root(departed: Sums) -> Self {
        let counted = Counted {
            before: departed,
            ..Counted::default()
        };
        Self {
            counted: by_uuid([(None, counted)].into_iter(), &[]),
            ..Self::default()
        }
    }

    /// What those that have left have counted, of the root's record.
    pub(super) fn departed(&self) -> Sums {
        self.counted
            .get("")
            .map(|counted| counted.before)
            .unwrap_or_default()
    }

    /// Gives a group back what it had.
    pub(super) fn restore_group(self, group: &mut Group, devices: &[Device]) {
        let counted = by_index(&self.counted, devices);
        group.counted = counted
            .map(|(device, counted)| (device, Box::new(counted)))
            .collect();
        group.is_transient = self.made.is_some_and(|made| made.is_transient);
        group.settings = self.settings;
    }
}

pub(super) fn by_uuid<T: Default + PartialEq>(
    values: impl Iterator<Item = (Option<usize>, T)>,
    devices: &[Device],
) -> BTreeMap<String, T> {
    let named = values.filter_map(|(device, value)| {
        let name = match device {
            None => String::new(),
            Some(device) => devices.get(device)?.uuid_text.clone(),
        };
        Some((name, value))
    });
    named.filter(|(_, value)| !is_default(value)).collect()
}

/// Of devices that are not there any more nothing is told.
pub(super) fn by_index<T: Copy>(
    values: &BTreeMap<String, T>,
    devices: &[Device],
) -> impl Iterator<Item = (Option<usize>, T)> {
    values.iter().filter_map(|(name, value)| {
        let device = match name.as_str() {
            "" => None,
            uuid => Some(devices.iter().position(|device| device.uuid_text == uuid)?),
        };
        Some((device, *value))
    })
}
