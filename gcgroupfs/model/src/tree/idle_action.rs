//! The table of what is done to idle processes, and the format of `gcgroup.idle`.

use crate::error::{Error, Result};
use crate::text::{described, parse_number};

/// Row of the table of actions.
#[derive(Debug)]
pub(super) struct IdleAction {
    /// Word in the control file.
    pub(super) name: &'static str,
    /// Number in the journal, below 256.
    rank: u64,
    /// Clause of the manual.
    doc: &'static str,
}

/// All actions.
pub(super) const IDLE_ACTIONS: &[IdleAction] = &[IdleAction {
    name: "reclaim",
    rank: 0,
    doc: "its gates close and its movable memory moves to the host, as by memory.reclaim; it must have been started \
          with --swap",
}];

/// Format of `gcgroup.idle`, for error messages.
pub(crate) const EXPECTED_IDLE: &str = "seconds from 1 and an action, as 30 reclaim, or max";

/// A rule: after how many seconds without work an action is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleRule {
    pub(super) seconds: u64,
    pub(super) action: &'static IdleAction,
}

impl IdleRule {
    /// Returns the rule that a number of the journal stands for; `None` if none, as for `max`.
    pub(super) fn of(number: u64) -> Option<Self> {
        let (seconds, rank) = (number >> 8, number & 0xff);
        let action = IDLE_ACTIONS.iter().find(|action| action.rank == rank)?;
        (1..=u32::MAX.into())
            .contains(&seconds)
            .then_some(Self { seconds, action })
    }
}

/// Parses `SECONDS ACTION`; returns the number in the journal. A rule with fewer seconds has a lower one.
///
/// # Errors
/// * `EOPNOTSUPP`: the action `suspend`, since the library cannot tell which of the driver's calls must wake
///   a suspended process.
/// * `ERANGE`: seconds out of range.
/// * `EINVAL`: anything else.
pub(super) fn parse_idle(text: &str) -> Result<u64> {
    let mut words = text.split_ascii_whitespace();
    let (Some(seconds), Some(name), None) = (words.next(), words.next(), words.next()) else {
        return Err(Error::bad(EXPECTED_IDLE, text));
    };
    if name == "suspend" {
        return Err(Error::NotSupported(
            "idle processes cannot be suspended, only their memory reclaimed; write gcgroup.suspend",
        ));
    }
    let action = IDLE_ACTIONS.iter().find(|action| action.name == name);
    let action = action.ok_or_else(|| Error::bad(EXPECTED_IDLE, text))?;
    match parse_number(seconds, u32::MAX.into(), EXPECTED_IDLE)? {
        0 => Err(Error::range(EXPECTED_IDLE, text)),
        seconds => Ok(seconds << 8 | action.rank),
    }
}

/// Formats a number of the journal as `SECONDS ACTION`, or `max`.
pub(super) fn show_idle(number: u64) -> String {
    match IdleRule::of(number) {
        Some(IdleRule { seconds, action }) => format!("{seconds} {}", action.name),
        None => "max".to_owned(),
    }
}

/// Returns the names of all actions with what they do, for the manual.
pub fn described_idle_actions() -> String {
    described(IDLE_ACTIONS.iter().map(|action| (action.name, action.doc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_is_shown_as_it_was_written() {
        for IdleAction { name, .. } in IDLE_ACTIONS {
            let text = format!("30 {name}");
            assert_eq!(show_idle(parse_idle(&text).unwrap()), text);
            assert!(parse_idle(&format!("29 {name}")).unwrap() < parse_idle(&text).unwrap());
        }
        assert_eq!(show_idle(gcgroup_abi::NO_LIMIT), "max");
    }

    #[test]
    fn rule_without_time_or_with_unknown_action_is_refused() {
        for text in [
            "",
            "30",
            "reclaim",
            "0 reclaim",
            "30 kill",
            "30 reclaim now",
            "-1 reclaim",
        ] {
            assert!(parse_idle(text).is_err(), "{text}");
        }
        assert!(matches!(
            parse_idle("4294967296 reclaim"),
            Err(Error::OutOfRange { .. })
        ));
        assert!(matches!(parse_idle("30 suspend"), Err(Error::NotSupported(_))));
    }
}
