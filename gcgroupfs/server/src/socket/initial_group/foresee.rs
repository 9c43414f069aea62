//! The group in which a process would begin, found without making any.

use super::{GroupFacts, descend, is_below, may_begin, may_leave};
use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::file;
use gcgroupfs_model::tree::{GroupId, Tree};

/// Where a process would begin.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::socket) struct Prospect {
    /// The deepest group on the path that exists; `None` for the root.
    pub(in crate::socket) group: Option<GroupId>,
    /// `gcgroup.devices` of a group below it that a rule would make.
    pub(in crate::socket) devices: Option<String>,
}

/// Foresees the result of [`find_initial_group`](super::find_initial_group), except that limits of the number
/// of groups are not checked.
pub(in crate::socket) fn foresee_group(tree: &Tree, process: &GroupFacts<'_>) -> Prospect {
    let rule = process.verdict.group.as_ref().filter(|_| process.above.is_none());
    let (mut path, mut prospect) = (
        tree.path(process.above),
        Prospect {
            group: process.above,
            devices: None,
        },
    );
    if let Some(rule) = rule {
        let (reached, done) = find_existing(tree, &rule.path);
        prospect.group = reached;
        if done.is_err() && file::check_group_path(&rule.path).is_ok() {
            prospect.devices = rule.settings.devices().map(str::to_owned);
            path = rule.path.trim_matches('/').to_owned();
        } else {
            path = tree.path(reached);
        }
    }
    // Groups below a group that does not exist yet have no list of their own.
    let is_settled = |wish: &str| prospect.devices.is_some() && is_below(wish.trim_matches('/'), &path);
    let wish = process.own_wish(tree).filter(|wish| !is_settled(wish));
    if let Some(wish) = wish.filter(|wish| may_begin_by_wish(tree, process, &path, wish).unwrap_or(false)) {
        prospect = Prospect {
            group: find_existing(tree, wish).0,
            devices: None,
        };
    }
    prospect
}

/// Returns whether a process that would begin at the path `own` could begin in the group that it asks for.
///
/// # Errors
/// As [`may_leave`] and [`may_begin`]: the user may not move it, or a group on the path does not exist.
fn may_begin_by_wish(tree: &Tree, process: &GroupFacts<'_>, own: &str, wish: &str) -> Result<bool> {
    let who = process.who;
    let is_free = !who.is_contained && may_leave(tree, who, own, wish)?;
    may_begin(tree, who, wish)?;
    Ok(is_free)
}

/// Returns the deepest group on the path that exists, and an error if that is not the whole path.
fn find_existing(tree: &Tree, path: &str) -> (Option<GroupId>, Result<()>) {
    descend(tree, path, |_, _, _| Err(Error::NotFound))
}
