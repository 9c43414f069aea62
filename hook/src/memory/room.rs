//! Bytes that limits leave of a device.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::NO_LIMIT;

use super::Memory;
use super::page_counter::{device_limit, group_room, process_limit};

/// Bytes that limits leave of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) total: u64,
    pub(crate) free: u64,
    /// Whether a group has a limit, which other processes share.
    pub(crate) is_shared: bool,
}

impl Room {
    /// Without a limit the driver's answer is passed on.
    const ALL: Self = Self {
        total: NO_LIMIT,
        free: NO_LIMIT,
        is_shared: false,
    };

    /// Returns the smallest limit on the device with that slot, and the smallest remainder of any limit.
    pub(crate) fn on(memory: &Memory, index: usize) -> Self {
        let (control, usage) = (memory.control(), memory.usage());
        let Some(set) = control.devices.get(index) else {
            return Self::ALL;
        };
        let device = set.memory_limit.load(Relaxed);
        let whole = control.memory_limit.load(Relaxed);
        let groups = set.group_limit.load(Relaxed);
        if [device, whole, groups] == [NO_LIMIT; 3] {
            return Self::ALL;
        }
        // Contexts and modules count as used.
        let left_of = |limit: u64, usable: u64, current: u64| {
            if limit == NO_LIMIT {
                NO_LIMIT
            } else {
                usable.saturating_sub(current)
            }
        };
        let on_device = left_of(device, device_limit(control, index), usage.memory_current(index));
        let on_process = left_of(whole, process_limit(control), memory.page_counter.sum());
        Self {
            total: device.min(whole).min(groups),
            free: on_device.min(on_process).min(group_room(usage, control, index)),
            is_shared: groups != NO_LIMIT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::block;

    fn governed() -> (&'static Memory, &'static gcgroup_abi::Control) {
        let memory = Memory::of_test(NO_LIMIT);
        let (control, file) = block::unlimited(2);
        memory.adopt(&file);
        (memory, control)
    }

    #[test]
    fn drivers_answer_is_passed_on_without_a_limit() {
        let (memory, _) = governed();
        assert_eq!(Room::on(memory, 0), Room::ALL);
    }

    #[test]
    fn group_room_is_unused_grant_plus_what_groups_have_left() {
        let (memory, control) = governed();
        control.devices[0].group_limit.store(1000, Relaxed);
        control.devices[0].group_room.store(300, Relaxed);
        memory.usage().devices[0].memory_granted.store(200, Relaxed);
        memory.usage().devices[0].memory_current.store(150, Relaxed);
        let room = Room {
            total: 1000,
            free: 350,
            is_shared: true,
        };
        assert_eq!(Room::on(memory, 0), room);
        assert_eq!(Room::on(memory, 1), Room::ALL);
        control.devices[0].memory_limit.store(400, Relaxed);
        assert_eq!(
            Room::on(memory, 0),
            Room {
                total: 400,
                free: 250,
                is_shared: true,
            }
        );
    }

    #[test]
    fn total_is_the_smallest_limit_and_free_the_least_remainder() {
        let (memory, control) = governed();
        control.devices[0].memory_limit.store(1000, Relaxed);
        control.memory_limit.store(1200, Relaxed);
        let page_counter = &memory.page_counter;
        page_counter.charge(0, 100);
        page_counter.charge(1, 600);
        assert_eq!(
            Room::on(memory, 0),
            Room {
                total: 1000,
                free: 500,
                is_shared: false,
            }
        );
        control.devices[0].memory_overhead.store(60, Relaxed);
        assert_eq!(
            Room::on(memory, 0),
            Room {
                total: 1000,
                free: 440,
                is_shared: false,
            }
        );
    }

    #[test]
    fn usage_above_the_limit_leaves_zero_free() {
        let (memory, control) = governed();
        control.devices[1].memory_limit.store(50, Relaxed);
        memory.usage().devices[1].memory_current.store(80, Relaxed);
        assert_eq!(Room::on(memory, 1).free, 0);
    }
}
