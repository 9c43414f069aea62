//! `nvmlDeviceGetMemoryInfo`: total and free as `memory.visible` says. Used is `memory.current`, and in a
//! group with a limit all that is not free.

use super::seen::Seen;
use crate::calls::visible::Sizes;
use crate::driver::cuda::CUresult;
use crate::driver::interpose::Next;
use crate::driver::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};
use crate::driver::out_pointer::rewrite;

/// `nvmlDeviceGetMemoryInfo`. If the device itself is short of memory, and no group has a limit, used and
/// free add up to less than the total.
pub(crate) fn info(of: nvmlDevice_t, memory: *mut nvmlMemory_t, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(seen) = Seen::on(of)? {
        rewrite(memory, |told| told_v1(told, seen));
    }
    Ok(())
}

/// `nvmlDeviceGetMemoryInfo_v2`: used, free and reserved add up to the total.
pub(crate) fn info_v2(of: nvmlDevice_t, memory: *mut nvmlMemory_v2_t, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(seen) = Seen::on(of)? {
        rewrite(memory, |told| {
            let nvmlMemory_v2_t {
                total, free, used, ..
            } = told;
            let nvmlMemory_t { total, free, used } = told_v1(nvmlMemory_t { total, free, used }, seen);
            nvmlMemory_v2_t {
                total,
                free,
                used,
                reserved: total - used - free,
                ..told
            }
        });
    }
    Ok(())
}

/// Returns the values for version 1: free is at most total minus used.
fn told_v1(told: nvmlMemory_t, seen: Seen) -> nvmlMemory_t {
    let Sizes { total, free } = seen.visible.apply(Sizes {
        total: told.total,
        free: told.free,
    });
    let used = match seen.visible.room.is_shared {
        true => total.saturating_sub(free),
        false => seen.visible.held.min(total),
    };
    let free = free.min(total - used);
    nvmlMemory_t { total, free, used }
}

#[cfg(test)]
mod tests {
    use super::super::seen::Own;
    use super::*;
    use crate::calls::visible::Visible;
    use crate::memory::room::Room;

    const CARD: nvmlMemory_t = nvmlMemory_t {
        total: 1000,
        free: 600,
        used: 400,
    };

    fn told(limit: u64, current: u64) -> (u64, u64, u64) {
        told_with(limit, current, (0, false))
    }

    /// `others`: bytes that other processes hold of the limit, and whether they share it.
    fn told_with(limit: u64, current: u64, (others, is_shared): (u64, bool)) -> (u64, u64, u64) {
        let limited = Visible::limit(limit);
        let room = Room {
            free: limit.saturating_sub(current + others),
            is_shared,
            ..limited.room
        };
        let seen = Seen {
            visible: Visible {
                room,
                held: current,
                ..limited
            },
            current,
            own: Own { pid: 1, outside: 0 },
        };
        let nvmlMemory_t { total, used, free } = told_v1(CARD, seen);
        (total, used, free)
    }

    #[test]
    fn total_is_the_limit_and_used_is_what_is_charged() {
        assert_eq!(told(500, 100), (500, 100, 400));
    }

    #[test]
    fn used_in_a_group_is_all_that_is_not_free() {
        assert_eq!(told_with(500, 100, (250, true)), (500, 350, 150));
        assert_eq!(
            told_with(900, 100, (0, true)),
            (900, 300, 600),
            "others hold the rest"
        );
    }

    #[test]
    fn values_never_exceed_the_device() {
        assert_eq!(told(5000, 100), (1000, 100, 600));
        assert_eq!(told(900, 100), (900, 100, 600), "others hold the rest");
    }

    #[test]
    fn usage_above_the_limit_leaves_zero_free() {
        assert_eq!(told(50, 80), (50, 50, 0));
    }
}
