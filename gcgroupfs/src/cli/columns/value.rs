//! Content of a cell of `gcgroupfs ls` and `top`.

use std::fmt::{self, Display};

use gcgroup_client::node::{Lease, Moving, State, Wait};
use gcgroupfs_model::text::word;

use crate::cli::bars::sparkline;
use crate::cli::format::{size, time_left};

/// Least width of a history.
pub(super) const HISTORY: usize = 12;

/// Content of a cell, in the order of `--sort`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cli) enum Value {
    Absent,
    Text(String),
    Number(u64),
    Bytes(u64),
    /// Time in seconds.
    Seconds(u64),
    /// Hundredths of a percent.
    Percent(u64),
    /// Tenths of a percent.
    Tenths(u64),
    /// Percentages, the latest last.
    History(Vec<u64>),
    State(State),
    /// A text, and what it is sorted by.
    Named(String, String),
    /// No limit.
    Max,
}

impl Value {
    pub(super) fn number(number: impl TryInto<u64>) -> Self {
        number.try_into().map_or(Self::Absent, Self::Number)
    }

    pub(super) fn limit(bytes: Option<u64>) -> Self {
        bytes.map_or(Self::Max, Self::Bytes)
    }

    pub(super) fn text(name: &str) -> Self {
        Self::Text(word(name).to_string())
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("-"),
            Self::Text(text) | Self::Named(_, text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Bytes(bytes) => f.write_str(&size(*bytes)),
            Self::Seconds(seconds) => f.write_str(&time_left(*seconds)),
            Self::Percent(hundredths) => write!(f, "{}.{:02}", hundredths / 100, hundredths % 100),
            Self::Tenths(tenths) => write!(f, "{}.{}", tenths / 10, tenths % 10),
            Self::History(points) => f.write_str(&sparkline(points, HISTORY, true)),
            Self::State(state) => f.write_str(state.name()),
            Self::Max => f.write_str("max"),
        }
    }
}

/// Describes a process that is waited for.
pub(in crate::cli) fn awaited(wait: &Wait) -> String {
    let (pid, comm, what) = (wait.pid, word(&wait.comm), word(&wait.r#for));
    format!("{pid}/{comm}/{what}/{}", time_left(wait.usec / 1_000_000))
}

/// Describes memory that moves.
pub(in crate::cli) fn moved(moving: &Moving) -> String {
    let way = if moving.out { "out" } else { "in" };
    let [bytes, total, rate] = [moving.bytes, moving.total, moving.bytes_per_second].map(size);
    format!("{way}:{bytes}/{total}:{}%:{rate}/s", moving.percent)
}

/// Returns a text that may have blanks in printable characters.
pub(in crate::cli) fn words(text: &str) -> String {
    let words: Vec<String> = text.split(' ').map(|part| word(part).to_string()).collect();
    words.join(" ")
}

/// Describes the rest of a lease.
pub(super) fn lease(lease: &Lease) -> String {
    let action = &lease.action;
    match lease.expired {
        true => format!("  lease expired ({action})"),
        false => format!("  lease {} ({action})", time_left(lease.seconds)),
    }
}

/// Formats a limit; `None` is max.
pub(in crate::cli) fn limit(bytes: Option<u64>) -> String {
    Value::limit(bytes).to_string()
}

pub(super) fn tenths(percent: f64) -> Value {
    let shown = format!("{percent:.1}").replace('.', "");
    shown.parse().map_or(Value::Absent, Value::Tenths)
}

pub(super) fn percent(percent: Option<f64>) -> Value {
    let shown = percent.map(|percent| format!("{percent:.2}").replace('.', ""));
    let hundredths = shown.and_then(|shown| shown.parse().ok());
    hundredths.map_or(Value::Absent, Value::Percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_has_two_digits() {
        assert_eq!(percent(Some(12.5)).to_string(), "12.50");
        assert_eq!(percent(Some(0.07)).to_string(), "0.07");
        assert_eq!(percent(None).to_string(), "-");
        assert!(percent(Some(9.0)) < percent(Some(10.0)));
    }
}
