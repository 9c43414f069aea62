//! The table of what happens when a group's lease has expired.

use crate::error::{Error, Result};
use crate::text::described;

/// Row of the table of actions.
#[derive(Debug)]
pub struct LeaseAction {
    /// Value of the control file.
    pub name: &'static str,
    /// Number in the journal. A higher one is stricter: users other than root may set such a one after root.
    pub rank: u64,
    pub(super) effect: Effect,
    /// Clause of the manual.
    doc: &'static str,
}

/// Effect of an action while the lease has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The group is frozen.
    Freezes,
    /// The group is suspended.
    Suspends,
    /// Processes in the group and those that enter it are killed.
    Kills,
}

/// All actions; the first is the default.
pub const LEASE_ACTIONS: &[LeaseAction] = &[
    LeaseAction {
        name: "freeze",
        rank: 0,
        effect: Effect::Freezes,
        doc: "the group is frozen as by compute.freeze",
    },
    LeaseAction {
        name: "suspend",
        rank: 1,
        effect: Effect::Suspends,
        doc: "the group is suspended as by gcgroup.suspend",
    },
    LeaseAction {
        name: "kill",
        rank: 2,
        effect: Effect::Kills,
        doc: "its processes are killed as by gcgroup.kill",
    },
];

/// Names of all actions, for error messages.
pub(super) const EXPECTED_ACTION: &str = "freeze, suspend or kill";

/// Returns the action of a rank.
pub(super) fn lease_action(rank: u64) -> Option<&'static LeaseAction> {
    LEASE_ACTIONS.iter().find(|action| action.rank == rank)
}

/// Parses the name of an action.
///
/// # Errors
/// `EINVAL` for any other text.
pub(super) fn parse_lease_action(text: &str) -> Result<u64> {
    let found = LEASE_ACTIONS.iter().find(|action| action.name == text);
    found
        .map(|action| action.rank)
        .ok_or_else(|| Error::bad(EXPECTED_ACTION, text))
}

/// Returns the names of all actions with what they do, for the manual.
pub fn described_lease_actions() -> String {
    described(LEASE_ACTIONS.iter().map(|action| (action.name, action.doc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_every_action() {
        for LeaseAction { name, rank, .. } in LEASE_ACTIONS {
            assert!(EXPECTED_ACTION.contains(name));
            assert_eq!(parse_lease_action(name).unwrap(), *rank);
            assert_eq!(lease_action(*rank).unwrap().name, *name);
        }
        assert!(parse_lease_action("resume").is_err());
    }
}
