//! One process, as remembered for memory turns: the turns that it has had, and since when it is busy.

use crate::arbiter::contest::Standing;
use crate::arbiter::policy::Time;

/// Time for which a process must have been busy before memory moves for it, nanoseconds.
const BUSY: u64 = 100_000_000;
/// Least time without work after which a process is idle, nanoseconds.
pub(super) const IDLE: u64 = 100_000_000;
/// Time for which memory that a process has not brought in is not expected back, nanoseconds.
const LEFT_OUT: u64 = 600_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Account {
    /// Turns that the process has had, among its siblings.
    pub(super) standing: Standing,
    /// Bytes on the device at the last look.
    pub(super) resident: u64,
    /// Whether it has had a turn.
    pub(super) has_had_turn: bool,
    busy_since: Option<Time>,
    last_busy: Time,
    /// Bytes that it does not bring in, and until when that is believed.
    left_out: (u64, Time),
}

impl Account {
    /// Records whether the process is busy. It stays so through pauses of up to `longest` nanoseconds. A
    /// process that becomes busy brings no claim to earlier turns.
    pub(super) fn observe(&mut self, now: Time, is_busy: bool, longest: u64) {
        if is_busy {
            if self.busy_since.is_none() {
                self.busy_since = Some(now);
                self.standing.rest();
            }
            self.last_busy = now;
        } else if now.saturating_sub(self.last_busy) >= longest {
            self.busy_since = None;
        }
    }

    /// Returns whether the process is busy, however short.
    pub(super) fn is_awake(&self) -> bool {
        self.busy_since.is_some()
    }

    /// Returns whether the process has been busy for long enough that memory moves for it.
    pub(super) fn is_active(&self) -> bool {
        let busy = self.busy_since.map(|since| self.last_busy.saturating_sub(since));
        busy.is_some_and(|busy| busy >= BUSY)
    }

    /// Notes that the process has left `bytes` out in its turn.
    pub(super) fn leave_out(&mut self, now: Time, bytes: u64) {
        self.left_out = (self.left_out(now).saturating_add(bytes), now + LEFT_OUT);
    }

    pub(super) fn left_out(&self, now: Time) -> u64 {
        let (bytes, until) = self.left_out;
        if now < until { bytes } else { 0 }
    }
}
