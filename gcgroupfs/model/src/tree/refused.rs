//! The last refused allocations of a process and of a group.

use std::collections::VecDeque;

use gcgroup_abi::MAX_DEVICES;

use super::GroupId;

/// Number of refusals kept of each process and of each group.
const MOST: usize = 8;

/// Refusals of the same kind in this time are one entry, nanoseconds.
const TOGETHER: u64 = 1_000_000_000;

/// Reason for which an allocation was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// `memory.limit` of the process on the device.
    Device,
    /// `memory.limit` of the process as a whole.
    Process,
    /// `memory.limit` of a group, as a whole or on the device of that slot.
    Group(GroupId, Option<usize>),
    /// No limit: the memory of the device or of the host was used up.
    Memory,
}

/// Refused allocations of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
    /// Time of the last one, `CLOCK_MONOTONIC` in nanoseconds.
    pub(super) at: u64,
    /// How many.
    pub(super) count: u64,
    pub(super) device: usize,
    /// Bytes of the last one, as the process claims; 0 if unknown.
    pub(super) bytes: u64,
    pub(super) cause: Cause,
    /// The limit and the bytes charged against it, as of the note.
    pub(super) limit: u64,
    pub(super) used: u64,
}

/// The last refusals, the latest last.
#[derive(Debug, Default)]
pub(super) struct Refusals(VecDeque<Refused>);

impl Refusals {
    pub(super) fn note(&mut self, refused: Refused) {
        if let Some(last) = self.0.back_mut()
            && (last.device, last.bytes, last.cause) == (refused.device, refused.bytes, refused.cause)
            && refused.at.saturating_sub(last.at) < TOGETHER
        {
            *last = Refused {
                count: last.count.saturating_add(refused.count),
                ..refused
            };
            return;
        }
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(refused);
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Refused> {
        self.0.iter()
    }
}

/// Refusals of a process, and what of its counts has been noted.
#[derive(Debug, Default)]
pub(super) struct ProcessRefusals {
    pub(super) last: Refusals,
    /// First that of `OTHER_DEVICE`, the last slot; then by slot.
    slots: Vec<SlotRefusals>,
    /// Refusals by the process's limit.
    pub(super) seen_whole: u64,
    pub(super) oom_group: Option<OomGroup>,
}

/// Refusals on one device that have been noted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SlotRefusals {
    /// Counts seen: failures, refusals by the device's limit, refusals by groups.
    pub(super) seen: [u64; 3],
    /// The last request that a group refused, with the number of refused requests. A process repeats a
    /// request after it has made room, and counts one refusal if it gives up.
    pub(super) by_group: Option<Refused>,
}

/// The group to be killed if a process gives up after a refusal by a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct OomGroup {
    pub(super) group: GroupId,
    /// The slot of the device whose limit it was.
    pub(super) device: Option<usize>,
    /// Time of the refusal, `CLOCK_MONOTONIC` in nanoseconds.
    pub(super) at: u64,
}

impl ProcessRefusals {
    pub(super) fn slot_mut(&mut self, slot: usize) -> &mut SlotRefusals {
        let at = (slot + 1) % MAX_DEVICES;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, SlotRefusals::default());
        }
        &mut self.slots[at]
    }

    /// Notes a request that a group refused.
    pub(super) fn refuse(&mut self, refused: Refused) {
        let SlotRefusals { by_group, .. } = self.slot_mut(refused.device);
        let count = by_group.map_or(0, |before| before.count).saturating_add(1);
        *by_group = Some(Refused { count, ..refused });
    }
}

impl SlotRefusals {
    /// Returns the refusal by a group of which the process claims that it gave up `claimed` times, with as
    /// many of them as there were refused requests.
    pub(super) fn give_up(&mut self, claimed: u64) -> Option<Refused> {
        let requests = self.by_group.as_mut()?;
        let count = claimed.min(requests.count);
        requests.count -= count;
        Some(Refused { count, ..*requests })
    }
}

#[cfg(test)]
mod tests {
    use gcgroup_abi::OTHER_DEVICE;

    use super::*;

    #[test]
    fn process_with_one_device_has_two_slots() {
        let mut refusals = ProcessRefusals::default();
        refusals.slot_mut(0).seen = [1; 3];
        refusals.slot_mut(OTHER_DEVICE).seen = [2; 3];
        assert_eq!(refusals.slots.len(), 2);
        assert_eq!(refusals.slot_mut(0).seen, [1; 3]);
        refusals.slot_mut(OTHER_DEVICE - 1);
        assert_eq!(refusals.slots.len(), MAX_DEVICES);
    }
}
