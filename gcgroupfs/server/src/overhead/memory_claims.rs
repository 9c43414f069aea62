//! Claims that NVML does not confirm: a process says that it has charged more on a device than NVML shows it
//! to hold.
//!
//! An honest process does so for up to 10 s: it charges before the driver is called, and the driver may take
//! seconds. It also does so for memory that is on the device only while in use: managed memory, and memory of
//! graphs.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use gcgroupfs_model::tree::{ProcessId, Untrusted};

/// Longer than an allocation may wait for the driver, or for other processes to make room.
const PATIENCE: Duration = Duration::from_secs(12);

/// Tolerance between ledger and driver: bytes, and a part of what is charged.
const MARGIN: u64 = 64 << 20;
const MARGIN_PART: u64 = 8;

/// The bytes that a process claims on a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryClaim {
    charged: u64,
    /// Charged, and on the device only while it is used.
    movable: u64,
}

impl MemoryClaim {
    pub(super) fn of(usage: Untrusted<'_>, device: usize) -> Self {
        Self {
            charged: usage.charged(device, u64::MAX),
            movable: usage.movable(device),
        }
    }

    /// Returns the bytes claimed beyond `held`, 0 within the tolerance. `None`: the process is not on the
    /// device.
    fn beyond(&self, held: Option<u64>) -> u64 {
        let beyond = match held {
            Some(held) => self.charged.saturating_sub(self.movable).saturating_sub(held),
            None => self.charged,
        };
        let margin = MARGIN.max(self.charged / MARGIN_PART);
        if beyond > margin { beyond } else { 0 }
    }
}

/// Times since which processes have claimed more than they hold, by device.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed(HashMap<(ProcessId, usize), Instant>);

impl Unconfirmed {
    pub(super) fn retain(&mut self, there: &HashSet<ProcessId>) {
        self.0.retain(|(id, _), _| there.contains(id));
    }

    /// Records what a process claimed before and after the device was asked. Returns the bytes claimed beyond
    /// `held` if they have been claimed for [`PATIENCE`].
    pub(super) fn note(
        &mut self,
        (id, device): (ProcessId, usize),
        claims: [MemoryClaim; 2],
        held: Option<u64>,
        now: Instant,
    ) -> Option<u64> {
        let beyond = claims
            .map(|claim| claim.beyond(held))
            .into_iter()
            .min()
            .unwrap_or(0);
        if beyond == 0 {
            self.0.remove(&(id, device));
            return None;
        }
        let since = *self.0.entry((id, device)).or_insert(now);
        (now.saturating_duration_since(since) >= PATIENCE).then_some(beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn claim(charged: u64, movable: u64) -> MemoryClaim {
        MemoryClaim { charged, movable }
    }

    #[test]
    fn lasting_unconfirmed_claim_is_reported() {
        let mut claims = Unconfirmed::default();
        let (place, start) = ((ProcessId(1), 0), Instant::now());
        let mut note = |seconds, claims_now: [u64; 2], held| {
            let claimed = claims_now.map(|charged| claim(charged, 0));
            claims.note(place, claimed, Some(held), start + Duration::from_secs(seconds))
        };
        assert_eq!(note(0, [GIB, GIB], 0), None, "it may be about to be there");
        assert_eq!(note(11, [GIB, GIB], 0), None);
        assert_eq!(note(12, [GIB, 2 * GIB], 0), Some(GIB));
        assert_eq!(note(13, [GIB, 0], 0), None, "it was none at one moment");
        assert_eq!(note(30, [GIB, GIB], 0), None, "so it begins anew");
        assert_eq!(note(50, [GIB, GIB], GIB - MARGIN), None);
    }

    #[test]
    fn managed_memory_is_unconfirmed_only_without_a_context() {
        assert_eq!(claim(GIB, GIB).beyond(Some(0)), 0);
        assert_eq!(claim(GIB, GIB).beyond(None), GIB);
        assert_eq!(claim(GIB, u64::MAX).beyond(Some(0)), 0);
        assert_eq!(claim(u64::MAX, 0).beyond(Some(0)), u64::MAX);
        assert_eq!(claim(MARGIN, 0).beyond(None), 0);
        assert_eq!(
            claim(8 * GIB, 0).beyond(Some(7 * GIB)),
            0,
            "the driver counts otherwise"
        );
    }
}
