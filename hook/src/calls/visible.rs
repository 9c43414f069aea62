//! Sizes of a device's memory that the program is shown (`memory.visible`) instead of the driver's.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{NO_LIMIT, VISIBLE_LIMIT, VISIBLE_SWAP};

use crate::hook::Hook;
use crate::memory::room::Room;

/// Bytes of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

/// Facts that decide which sizes of one device the program is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visible {
    pub(crate) room: Room,
    /// Total if `memory.visible` is a number of bytes.
    pub(crate) bytes: Option<u64>,
    /// Bytes that the process holds on the device, and on the host if `memory.visible` is not `limit`.
    pub(crate) held: u64,
    /// Bytes that have been swapped out, and that may still be; 0 if `memory.visible` is `limit`.
    pub(crate) swapped: u64,
    pub(crate) swap_room: u64,
}

impl Visible {
    /// Returns what the program is shown of the device in slot `index`.
    pub(crate) fn on(hook: &Hook, index: usize) -> Self {
        let (usage, control) = (hook.session.usage(), hook.session.control());
        let of_device = control.devices.get(index);
        let overhead = of_device.map_or(0, |device| device.memory_overhead.load(Relaxed));
        let visible = of_device.map_or(VISIBLE_LIMIT, |device| device.memory_visible.load(Relaxed));
        let (swapped, swap_room) = match visible {
            VISIBLE_LIMIT => (0, 0),
            _ => hook.swap.visible(index),
        };
        let current = usage.memory_current(index).saturating_add(overhead);
        Self {
            room: Room::on(hook.memory, index),
            bytes: Some(visible).filter(|bytes| ![VISIBLE_LIMIT, VISIBLE_SWAP].contains(bytes)),
            held: current.saturating_add(swapped),
            swapped,
            swap_room,
        }
    }

    /// Returns what a process is shown that holds nothing and has only a limit.
    pub(crate) fn limit(bytes: u64) -> Self {
        Self {
            room: Room {
                total: bytes,
                free: bytes,
                is_shared: false,
            },
            bytes: None,
            held: 0,
            swapped: 0,
            swap_room: 0,
        }
    }

    /// Returns whether the driver's answer is passed on.
    pub(crate) fn is_drivers(&self) -> bool {
        self.room.total == NO_LIMIT && self.bytes.is_none() && self.swapped == 0 && self.swap_room == 0
    }

    /// Returns the sizes shown instead of the driver's. Free memory is never more than would be granted.
    pub(crate) fn apply(&self, driver: Sizes) -> Sizes {
        let swap = self.swapped.saturating_add(self.swap_room);
        let total = driver.total.min(self.room.total).saturating_add(swap);
        let free = driver.free.min(self.room.free).saturating_add(self.swap_room);
        match self.bytes {
            None => Sizes { total, free },
            Some(bytes) => Sizes {
                total: bytes,
                free: free.min(bytes.saturating_sub(self.held)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: Sizes = Sizes {
        total: 1000,
        free: 600,
    };

    fn shown(visible: Visible) -> (u64, u64) {
        let Sizes { total, free } = visible.apply(DRIVER);
        (total, free)
    }

    #[test]
    fn limit_never_shows_more_than_the_device_has() {
        assert_eq!(shown(Visible::limit(400)), (400, 400));
        assert_eq!(shown(Visible::limit(5000)), (1000, 600));
        assert_eq!(shown(Visible::limit(NO_LIMIT)), (1000, 600));
        assert!(Visible::limit(NO_LIMIT).is_drivers() && !Visible::limit(5000).is_drivers());
    }

    #[test]
    fn swap_adds_host_memory_in_use_and_left() {
        let limited = Visible {
            held: 150,
            swapped: 50,
            swap_room: 250,
            ..Visible::limit(400)
        };
        assert_eq!(shown(limited), (700, 650));
        let unlimited = Visible {
            swapped: 50,
            swap_room: 250,
            ..Visible::limit(NO_LIMIT)
        };
        assert_eq!(shown(unlimited), (1300, 850));
        assert!(!unlimited.is_drivers());
    }

    #[test]
    fn bytes_are_the_total_and_free_is_what_would_be_granted() {
        let visible = |bytes, held| Visible {
            bytes: Some(bytes),
            held,
            ..Visible::limit(400)
        };
        assert_eq!(shown(visible(300, 100)), (300, 200));
        assert_eq!(shown(visible(300, 301)), (300, 0));
        assert_eq!(shown(visible(5000, 0)), (5000, 400), "the limit still applies");
    }
}
