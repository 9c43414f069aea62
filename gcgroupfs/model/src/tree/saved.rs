//! Persistent state of processes, groups and the root, as serialised values.

use std::collections::BTreeMap;

use gcgroup_abi::Pressure;
use serde::{Deserialize, Serialize};

use super::context_sizes::Sizes;
use super::creation::{Creation, is_default};
use super::exited::Program;
use super::group::Counted;
use super::held_time::HeldTime;
use super::process::Process;
use super::suspension::Exchange;
use super::{Access, Device, Devices, Ending, Exited, Group, GroupId, Origins, Settings, Sums, usage};

/// Values of the configuration's groups that have been carried out: by path, and by control file or part of
/// the access.
pub(super) type Configured = BTreeMap<String, BTreeMap<String, String>>;

/// One record. Empty fields are omitted, so that records of earlier versions, which had settings only, are
/// valid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    #[serde(flatten)]
    pub settings: Settings,
    /// The group of a process, or the parent of a group; `None` for the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// Set for groups only; without it, the group does not exist.
    #[serde(rename = "made", skip_serializing_if = "Option::is_none")]
    pub creation: Option<Creation>,
    /// True if a process has been moved between groups.
    #[serde(skip_serializing_if = "is_default")]
    pub has_moved: bool,
    /// Owner and mode of the root or a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// The number of the next group; set for the root only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_group: Option<GroupId>,
    /// Sizes of contexts; set for the root only.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) contexts: Vec<Sizes>,
    /// Groups of the configuration; set for the root only.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) configured: Configured,
    /// Counts by device UUID; "" is the whole.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) counted: BTreeMap<String, Counted>,
    /// Counts of a process that go to its groups and the root when it ends, by device UUID; "" is the whole.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) counts: BTreeMap<String, Sums>,
    /// The program that has produced `counts`, as in [`Identity::image`](super::Identity::image).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<(u64, u64)>,
    /// Set for processes only: the program, unless it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) program: Option<Box<Program>>,
    /// Set when a program ends, until the next record of the process: the line of the record of ended
    /// processes that is written next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exited: Option<Box<Exited>>,
    /// True for a process that the driver may have locked.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) is_locked: bool,
    /// UUIDs of the two GPUs that change places when the process is resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exchange: Option<[String; 2]>,
    /// True for a process of the previous daemon that registers again. What it claims to hold is
    /// trusted until NVML answers, since it may exceed the limits of now.
    #[serde(skip)]
    pub is_awaited: bool,
    /// Set for a process that joins: its group is held for it
    /// ([`Tree::hold_group`](super::Tree::hold_group)), and is released by the join itself: a process that
    /// can be seen in a group can be moved out of it, and then the group can be removed.
    #[serde(skip)]
    pub is_held: bool,
    /// Set for a process that joins for the first time.
    #[serde(skip)]
    pub origins: Origins,
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
    /// Returns whether nothing needs to be stored.
    pub fn is_default(&self) -> bool {
        is_default(self)
    }

    /// Returns whether there are counts that outlive the process.
    pub fn has_counts(&self) -> bool {
        !self.counts.is_empty()
    }

    /// Removes and returns the counts that go to the groups and the root when the process ends.
    pub fn take_counts(&mut self) -> BTreeMap<String, Sums> {
        (self.image, self.program) = (None, None);
        std::mem::take(&mut self.counts)
    }

    /// Returns whether a program is described that has not ended as far as the record knows.
    pub fn has_program(&self) -> bool {
        self.program.is_some()
    }

    /// Returns the record of the end of the program, which was in the group at `path`; `None` if none is
    /// described.
    pub fn exited(&self, path: String, ending: Ending) -> Option<Exited> {
        let Program {
            identity,
            byte_seconds,
            energy_nanojoules,
            memory_wait_usec,
            peak,
        } = self.program.as_deref()?.clone();
        let gpus = self.counts.iter().filter(|(uuid, _)| !uuid.is_empty());
        let gpus = gpus.map(|(uuid, sums)| (uuid.clone(), sums.usage_nsec));
        Some(Exited {
            identity,
            group: path,
            end: ending.time,
            how: ending.how,
            by: ending.by,
            peak,
            byte_seconds,
            gpus: gpus.filter(|(_, nsec)| *nsec != 0).collect(),
            energy_nanojoules,
            memory_wait_usec,
            sums: self.counts.get("").copied().unwrap_or_default(),
            ..Exited::default()
        })
    }

    /// Returns what the program's memory use over time adds to that of its groups.
    pub(super) fn byte_seconds(&self) -> u128 {
        self.program.as_ref().map_or(0, |program| program.byte_seconds)
    }

    /// Returns whether the counts are known to be from another program than `image`.
    pub fn is_of_another(&self, image: Option<(u64, u64)>) -> bool {
        self.image.is_some() && image.is_some() && self.image != image
    }

    pub(super) fn of_process(process: &Process, devices: &Devices) -> Self {
        let kept = [(None, &process.whole)]
            .into_iter()
            .chain((process.devices.iter().enumerate()).map(|(device, kept)| (Some(device), kept)));
        let counted = kept.map(|(device, kept)| {
            let mut counted = Counted::default();
            counted.before.nr_high = kept.nr_high;
            counted.before.nr_over_limit = kept.nr_over_limit;
            counted.before.nr_reclaim = kept.nr_reclaim;
            counted.before.nr_idle = kept.nr_idle;
            counted.before.nr_memory_turns = kept.nr_memory_turns;
            counted.before.held_usec = kept.held.usec();
            counted.peak = kept.peak;
            (device, counted)
        });
        let counts = counts(process, devices);
        Self {
            settings: process.settings.clone(),
            group: process.group,
            has_moved: process.has_moved,
            is_locked: process.suspension.is_locked,
            exchange: process.suspension.exchange.and_then(|exchange| {
                let uuid = |slot: usize| devices.get(slot).map(|device| device.uuid_text.clone());
                Some([uuid(exchange.from)?, uuid(exchange.to)?])
            }),
            counted: by_uuid(counted, devices),
            image: process.identity.image.filter(|_| !counts.is_empty()),
            program: Some(Box::new(Program {
                identity: process.identity.clone(),
                byte_seconds: process.byte_seconds.get(),
                energy_nanojoules: process.energy.nanojoules(),
                memory_wait_usec: process.stalls.own.some_usec(Pressure::Memory),
                peak: usage::peak(process, None, devices),
            })),
            counts,
            ..Self::default()
        }
    }

    /// Restores a process's state.
    pub(super) fn restore(&self, process: &mut Process, devices: &[Device]) {
        process.has_moved = self.has_moved;
        process.suspension.is_locked = self.is_locked;
        process.suspension.exchange = self.exchange.as_ref().and_then(|[from, to]| {
            let slot = |uuid: &String| devices.iter().position(|device| device.uuid_text == *uuid);
            let (from, to) = (slot(from)?, slot(to)?);
            Some(Exchange { from, to })
        });
        for (device, counted) in by_index(&self.counted, devices) {
            if let Some(kept) = process.kept_mut(device) {
                kept.nr_high = counted.before.nr_high;
                kept.nr_over_limit = counted.before.nr_over_limit;
                kept.nr_reclaim = counted.before.nr_reclaim;
                kept.nr_idle = counted.before.nr_idle;
                kept.nr_memory_turns = counted.before.nr_memory_turns;
                kept.held = HeldTime::from_usec(counted.before.held_usec);
                kept.peak = counted.peak;
            }
        }
    }

    pub(super) fn of_group(group: &Group, devices: &[Device]) -> Self {
        let counted = group.counted.iter().map(|(device, counted)| (*device, **counted));
        Self {
            settings: group.settings.clone(),
            group: group.parent,
            creation: Some(Creation {
                name: group.name.clone(),
                by: group.maker,
                is_transient: group.is_transient,
                job: group.job.clone(),
                is_job: group.is_job,
                is_requested: group.is_requested,
                retained: None,
                byte_seconds: group.byte_seconds,
            }),
            access: Some(group.access),
            counted: by_uuid(counted, devices),
            ..Self::default()
        }
    }

    /// Returns a record of the root with the counts of all processes that have left.
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

    /// Returns the counts of processes that have left, from the root's record.
    pub(super) fn departed(&self) -> Sums {
        self.counted
            .get("")
            .map(|counted| counted.before)
            .unwrap_or_default()
    }

    /// Restores a group's state.
    pub(super) fn restore_group(self, group: &mut Group, devices: &[Device]) {
        let counted = by_index(&self.counted, devices);
        group.counted = counted
            .map(|(device, counted)| (device, Box::new(counted)))
            .collect();
        group.settings = self.settings;
    }
}

/// Returns the counts that outlive a process, by device UUID; "" is the whole.
fn counts(process: &Process, devices: &Devices) -> BTreeMap<String, Sums> {
    let places = [None].into_iter().chain((0..devices.len()).map(Some));
    let counts = places.map(|device| (device, Sums::of(process, device, devices).departed()));
    by_uuid(counts, devices)
}

/// Returns the values that are not the default, by device UUID; "" is the whole.
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

/// Returns the values by device index, without those of devices that do not exist now.
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
