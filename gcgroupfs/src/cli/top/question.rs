//! Questions at the last line of the screen.

use crate::cli::row::Row;

/// Question that a typed line answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Filter,
    Search,
    Columns,
    Limit,
    Quota,
    Reclaim,
    Priority,
    Move,
    Kill,
    Time,
}

impl Question {
    /// Returns the question about a row.
    pub(super) fn text(self, row: Option<&Row>) -> String {
        let path = row.map_or_else(String::new, |row| row.target.path());
        match self {
            Self::Filter => "Filter (name, pid, user or group): ".to_owned(),
            Self::Search => "Search (name, pid, user or group): ".to_owned(),
            Self::Limit => format!("Memory limit of {path} (as 8G, or max): "),
            Self::Columns => "Columns, as pid,quota,name (none: all of top): ".to_owned(),
            Self::Quota => format!("GPU quota of {path} (as 50%, QUOTA PERIOD, or max): "),
            Self::Reclaim => format!("Move out of {path} (as 2G, or max): "),
            Self::Priority => format!("Priority of {path} (0 is highest, 15 lowest): "),
            Self::Move => format!("Move {path} to the group (/ is the root): "),
            Self::Kill => format!("Signal for {path} (TERM, KILL, ...): "),
            Self::Time => "Go to (HH:MM[:SS], or with a date as 2026-01-31 10:00): ".to_owned(),
        }
    }
}
