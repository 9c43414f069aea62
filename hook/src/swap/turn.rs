//! Turns: where the busy processes of a device do not fit together, the daemon bounds the movable memory that
//! each may have there (`resident_limit`), and the process moves memory out and in to that bound. Threads are
//! held by the gate, which is no concern of this module.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{MAX_DEVICES, NO_LIMIT};

use super::Swap;

/// Part of a device, one in so many, that memory that moves in leaves free while there are turns: half of
/// what the daemon leaves of the device when it sets the bound.
const RESERVE_PART: u64 = 128;

/// Returns the bound on a device, bytes; `None` if there are no turns.
pub(super) fn resident_limit(swap: &Swap, index: usize) -> Option<u64> {
    let control = swap.control().devices.get(index)?;
    Some(control.resident_limit.load(Relaxed)).filter(|limit| *limit != 0)
}

/// Returns by how many bytes the bound is exceeded.
pub(super) fn excess(swap: &Swap, index: usize) -> u64 {
    let limit = resident_limit(swap, index).unwrap_or(NO_LIMIT);
    resident(swap, index).saturating_sub(limit)
}

/// Returns how many bytes the bound leaves.
pub(super) fn room(swap: &Swap, index: usize) -> u64 {
    match resident_limit(swap, index) {
        None | Some(NO_LIMIT) => NO_LIMIT,
        Some(limit) => limit.saturating_sub(resident(swap, index)),
    }
}

/// Returns the part of `free` bytes of a device that memory may take that moves in: while there are turns, a
/// reserve stays for contexts and small allocations of all processes.
pub(super) fn less_reserve(swap: &Swap, index: usize, free: u64) -> u64 {
    let (limit, control) = (resident_limit(swap, index), swap.control().devices.get(index));
    match control.filter(|_| limit.is_some()) {
        Some(control) => free.saturating_sub(control.memory_total.load(Relaxed) / RESERVE_PART),
        None => free,
    }
}

fn resident(swap: &Swap, index: usize) -> u64 {
    let usage = swap.usage().devices.get(index);
    usage.map_or(0, |usage| usage.swappable.load(Relaxed))
}

/// Returns whether the swap pool is to be kept, because the next turn needs it: while there are turns, and
/// the host has as much room again.
pub(super) fn keeps_pool(swap: &Swap) -> bool {
    let has_turns = (0..MAX_DEVICES).any(|index| resident_limit(swap, index).is_some());
    has_turns && swap.host.room() >= swap.pool.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::block;

    #[test]
    fn bound_leaves_what_is_not_resident() {
        let swap = Swap::of_test(NO_LIMIT);
        let (control, file) = block::unlimited(1);
        swap.adopt(&file);
        swap.usage().devices[0].swappable.store(100, Relaxed);
        for (limit, want) in [
            (0, (0, NO_LIMIT)),
            (NO_LIMIT, (0, NO_LIMIT)),
            (1, (99, 0)),
            (100, (0, 0)),
            (130, (0, 30)),
        ] {
            control.devices[0].resident_limit.store(limit, Relaxed);
            assert_eq!((excess(swap, 0), room(swap, 0)), want, "{limit}");
        }
    }
}
