//! Estimates of what processes hold beyond their ledgers, where the driver does not tell: in containers it
//! shows 0 bytes for each process, or none of them, and under MPS it shows no bytes.
//!
//! The bytes in use on the device, less all that is known, belong to the contexts of these processes. Each
//! process is charged an equal part.

use std::collections::HashMap;

use super::Held;
use gcgroupfs_model::tree::Ledger;

/// Most bytes that are estimated for a process. Contexts of real devices take up to 600 MiB.
const MOST: u64 = 1 << 30;

/// Answer of a device about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// Bytes; `None`: the process is not on the device.
    Bytes(Option<u64>),
    /// The process is there, and its bytes are not known.
    Unknown,
    /// Nothing is known, and the process has no context there.
    Nothing,
}

impl Shown {
    /// Returns what `held` shows of a process. `is_blind`: it shows no governed process at all.
    pub(super) fn of(held: Option<&Held>, pid: u32, has_context: bool, is_blind: bool) -> Self {
        match held.map(|held| held.get(&pid)) {
            Some(Some(Some(0))) if has_context => Self::Unknown,
            Some(Some(Some(bytes))) => Self::Bytes(Some(*bytes)),
            Some(None) if !(has_context && is_blind) => Self::Bytes(None),
            _ if has_context => Self::Unknown,
            _ => Self::Nothing,
        }
    }
}

/// Bytes in use on each device without any process.
#[derive(Debug, Default)]
pub(super) struct Idle(HashMap<usize, u64>);

impl Idle {
    /// Notes the bytes in use on a device that has no process.
    pub(super) fn note(&mut self, device: usize, used: Option<u64>) {
        if let Some(used) = used {
            self.0.insert(device, used);
        }
    }

    /// Returns the bytes that each process in `unknown` is estimated to hold beyond its allocations. `used`
    /// is what the device has in use, `known` what it shows of other processes.
    pub(super) fn share(&self, device: usize, used: u64, known: u64, unknown: &[Ledger]) -> Option<u64> {
        let idle = self.0.get(&device).copied().unwrap_or(0);
        let allocated = unknown
            .iter()
            .map(Ledger::allocations)
            .fold(known, u64::saturating_add);
        let rest = used.saturating_sub(idle).saturating_sub(allocated);
        Some(rest.checked_div(unknown.len() as u64)?.min(MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_unknown_if_process_with_context_shows_none() {
        let held = |bytes| Some(HashMap::from([(7, bytes)]));
        let none = Some(HashMap::new());
        for (held, has_context, is_blind, want) in [
            (&held(Some(5)), true, false, Shown::Bytes(Some(5))),
            (&held(Some(0)), true, false, Shown::Unknown),
            (&held(Some(0)), false, false, Shown::Bytes(Some(0))),
            (&held(None), true, false, Shown::Unknown),
            (&held(None), false, false, Shown::Nothing),
            (&none, true, false, Shown::Bytes(None)),
            (&none, true, true, Shown::Unknown),
            (&none, false, true, Shown::Bytes(None)),
            (&None, true, true, Shown::Unknown),
            (&None, false, true, Shown::Nothing),
        ] {
            assert_eq!(
                Shown::of(held.as_ref(), 7, has_context, is_blind),
                want,
                "{held:?}"
            );
        }
    }
}
