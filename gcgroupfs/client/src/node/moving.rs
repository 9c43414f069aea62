//! Progress of memory that moves between GPUs and the host: by a suspension, by `memory.reclaim`, for a
//! memory turn or for other processes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Memory;

/// Device memory of a process or a group, bytes: on GPUs and on the host.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Whereabouts {
    pub gpu: u64,
    pub host: u64,
}

/// Memory that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// Whether it moves to the host.
    pub out: bool,
    /// Bytes that have arrived, and bytes in all.
    pub bytes: u64,
    pub total: u64,
    pub percent: u64,
    pub bytes_per_second: u64,
}

impl From<&Memory> for Whereabouts {
    fn from(memory: &Memory) -> Self {
        Self {
            gpu: memory.current,
            host: memory.swap.current,
        }
    }
}

impl std::iter::Sum for Whereabouts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            gpu: sum.gpu.saturating_add(one.gpu),
            host: sum.host.saturating_add(one.host),
        })
    }
}

impl Moving {
    /// Returns what has moved in the time between two looks; `None` if as much is on the host.
    pub fn between(before: Whereabouts, now: Whereabouts, elapsed: Duration) -> Option<Self> {
        let out = now.host > before.host;
        let moved = now.host.abs_diff(before.host);
        let bytes = if out { now.host } else { now.gpu };
        let total = now.gpu.saturating_add(now.host);
        let part = |bytes: u64, of: u128, unit: u128| u64::try_from(u128::from(bytes) * unit / of.max(1));
        (moved > 0).then(|| Self {
            out,
            bytes,
            total,
            percent: part(bytes, total.into(), 100).unwrap_or(100).min(100),
            bytes_per_second: part(moved, elapsed.as_micros(), 1_000_000).unwrap_or(u64::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direction_part_and_rate_follow_the_host_memory() {
        let at = |gpu, host| Whereabouts { gpu, host };
        let between = |before, now| Moving::between(before, now, Duration::from_secs(2));
        assert_eq!(between(at(8, 4), at(9, 4)), None, "it has allocated");
        let out = between(at(80, 20), at(60, 40)).unwrap();
        assert!(out.out);
        assert_eq!(
            (out.bytes, out.total, out.percent, out.bytes_per_second),
            (40, 100, 40, 10)
        );
        let back = between(at(60, 40), at(90, 10)).unwrap();
        assert!(!back.out);
        assert_eq!((back.bytes, back.percent, back.bytes_per_second), (90, 90, 15));
        let most = Moving::between(at(0, 0), at(u64::MAX, u64::MAX), Duration::ZERO).unwrap();
        assert_eq!((most.percent, most.bytes_per_second), (100, u64::MAX));
        assert_eq!([at(1, 2), at(3, 4)].into_iter().sum::<Whereabouts>(), at(4, 6));
    }
}
