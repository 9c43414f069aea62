//! Resources that are granted, and their words in the blocks.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{Control, NO_LIMIT, most_unused};

use super::node::Allowed;
use crate::tree::claims::device_total;
use crate::tree::device::Devices;
use crate::tree::enforce;
use crate::tree::process::Process;
use crate::tree::untrusted::{GrantRequest, GrantWords, UntrustedDevice};

/// A resource that processes charge themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) enum Resource {
    /// Bytes on a device, against `memory.limit`.
    Memory,
    /// Bytes of a device's memory that are on the host, against `memory.swap.max`. Grants are exactly what
    /// was asked for, since asking costs little compared with a move.
    Swap,
}

impl Resource {
    /// Returns the words with the bytes that the process has charged and may charge.
    pub(super) fn words(self, usage: UntrustedDevice<'_>) -> GrantWords<'_> {
        match self {
            Self::Memory => usage.memory_words(),
            Self::Swap => usage.swap_words(),
        }
    }

    /// Returns a process's unanswered request on a device, if there is one.
    pub(in crate::tree) fn asked(self, process: &Process, slot: usize) -> Option<GrantRequest> {
        let usage = process.usage().device(slot)?;
        let control = process.control().devices.get(slot)?;
        let (request, answer) = match self {
            Self::Memory => (usage.memory_request(), &control.grant_answer),
            Self::Swap => (usage.swap_request(), &control.swap_answer),
        };
        (request.number != answer.load(Relaxed)).then_some(request)
    }

    /// Returns the size of the resource on the device of a slot, in bytes.
    pub(super) fn total(self, slot: usize, devices: &Devices) -> u64 {
        match self {
            Self::Memory => device_total(slot, devices),
            Self::Swap => devices.host.memory,
        }
    }

    /// Returns the process's own limit in bytes. None for swap: host memory made ahead of moves is not
    /// bounded by the process's `memory.swap.max`.
    pub(super) fn own_limit(self, control: &Control, slot: usize) -> u64 {
        let on_device = control.devices.get(slot);
        let on_device = on_device.map_or(NO_LIMIT, |device| device.memory_limit.load(Relaxed));
        match self {
            Self::Memory => on_device.min(control.memory_limit.load(Relaxed)),
            Self::Swap => NO_LIMIT,
        }
    }

    /// Returns the most bytes that are granted beyond a request, and that a process may leave unused, under a
    /// limit of `limit` bytes.
    pub(super) fn most_unused(self, limit: u64) -> u64 {
        match self {
            Self::Memory => most_unused(limit),
            Self::Swap => 0,
        }
    }

    /// Publishes to a process the flags of `memory.high`, which bounds device memory only.
    pub(super) fn publish_high(self, control: &Control, slot: usize, flags: u32) {
        if self == Self::Memory {
            enforce::heed_high(control, slot, flags);
        }
    }

    /// Publishes to a process the limits of the groups above and the room left in them.
    pub(super) fn publish(self, control: &Control, slot: usize, allowed: &Allowed) {
        match self {
            Self::Memory => enforce::allow(control, slot, allowed.limit, allowed.room),
            Self::Swap => enforce::allow_swap(control, slot, allowed.room),
        }
    }
}
