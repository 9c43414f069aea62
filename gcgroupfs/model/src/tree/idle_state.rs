//! State of a process with regard to `gcgroup.idle`.

/// State of a process with regard to `gcgroup.idle`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Idle {
    /// Sum that changes with each submission, at the last look, and the time since boot, in milliseconds, at
    /// which the process was last seen to work; `None`: not looked at under a rule.
    pub(super) seen: Option<(u64, u64)>,
    pub(super) away: Option<Away>,
}

/// Stage of leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Away {
    /// Frozen; submitted work has not completed.
    Draining,
    /// Its memory has been requested to move out.
    Left,
}

impl Idle {
    /// Returns whether the process has left the GPU, or is about to.
    pub(super) fn is_away(self) -> bool {
        self.away.is_some()
    }

    /// Returns whether its memory has been requested to move out.
    pub(super) fn has_left(self) -> bool {
        self.away == Some(Away::Left)
    }
}
