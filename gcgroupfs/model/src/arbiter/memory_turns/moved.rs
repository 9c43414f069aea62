//! The cost of moves, and the length of turns that follows from it.

use super::LOOK;
use crate::arbiter::Settings;

/// Bytes that have moved. What moves for the next turn while another process runs takes no time that can be
/// seen, so its cost is taken from the bytes.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// In this turn.
    pub(super) bytes: u64,
    /// Nanoseconds for each MiB, as last seen at the beginning of a turn.
    per_mib: u64,
    /// Nanoseconds for the bytes of the last turn.
    pub(super) before: u64,
}

impl Moved {
    /// Begins a turn.
    pub(super) fn begin(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.before = (bytes >> 20).saturating_mul(self.per_mib);
    }

    /// Notes that all moves so far have taken `nsec`, while no process ran.
    pub(super) fn took(&mut self, nsec: u64) {
        if nsec >= 2 * LOOK && self.bytes >> 20 > 0 {
            self.per_mib = nsec / (self.bytes >> 20);
        }
    }
}

/// Returns the length of a turn of which moves take no more than the configured part.
pub(super) fn quantum(move_nsec: u64, settings: &Settings) -> u64 {
    let least = settings.turn_least.min(settings.turn_most);
    let quantum = move_nsec.saturating_mul(100) / settings.turn_move_percent.max(1);
    quantum.clamp(least, settings.turn_most)
}
