//! The group of a job.

use super::{Credentials, GroupFacts, by_rule, by_wish, new_group};
use gcgroup_abi::message::GroupName;
use tracing::warn;

use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::file;
use gcgroupfs_model::rules::Group;
use gcgroupfs_model::tree::{Directory, GroupId, Job, Origins, Owner, Settings, Transient, Tree};

/// Attempts to make a group in one that may be removed meanwhile.
const MAX_ATTEMPTS: usize = 8;

/// Number of names that are tried for a job without a name: an earlier job of the same pid may have left
/// processes behind.
const MAX_NAMES: u32 = 16;

/// A job to be started.
#[derive(Debug)]
pub(in crate::socket) struct NewJob<'a> {
    pub(in crate::socket) name: Option<&'a str>,
    pub(in crate::socket) job: &'a Job,
    /// The group of its user's jobs.
    pub(in crate::socket) users: &'a Group,
}

/// Makes the group of a job: in the group that its user asks for; otherwise in that of the process that
/// starts it, in that of a rule, in the root for root, and in `users/NAME` for others.
///
/// # Errors
/// `EEXIST` if the name is taken; `EACCES` if the group belongs to another user; `ENAMETOOLONG` if the path
/// does not fit in a [`GroupName`], so that the job's processes could not ask for it; as [`by_wish`], and as
/// making a group.
pub(in crate::socket) fn make_job_group(
    tree: &Tree,
    facts: &GroupFacts<'_>,
    new: &NewJob<'_>,
) -> Result<GroupId> {
    if facts.who.is_contained {
        return Err(Error::NotYours("it is in a container"));
    }
    let mut made = Err(Error::Gone);
    for _ in 0..MAX_ATTEMPTS {
        made = find_parent(tree, facts, new.users).and_then(|parent| make_in(tree, facts.who, parent, new));
        // The parent was transient and emptied meanwhile.
        if !matches!(made, Err(Error::Gone | Error::NotFound)) {
            break;
        }
    }
    if made.is_err() {
        // The groups that were made on the way.
        tree.reap_transient(None);
    }
    made
}

fn find_parent(tree: &Tree, facts: &GroupFacts<'_>, users: &Group) -> Result<Option<GroupId>> {
    let who = facts.who;
    let begins = match (facts.above, &facts.verdict.group) {
        (Some(above), _) => Some(above),
        (None, Some(group)) => {
            let rule = facts.verdict.rule.as_deref();
            let mut troubles = Vec::new();
            let found = by_rule(tree, who, group, rule, &mut troubles);
            for trouble in troubles {
                warn!("{} of user {} {trouble}", who.pid, who.uid);
            }
            complete(found)?
        }
        (None, None) => None,
    };
    if let Some(wish) = facts.own_wish(tree) {
        return by_wish(tree, who, begins, (wish, false)).map(Some);
    }
    if begins.is_some() || who.is_root(tree) {
        return Ok(begins);
    }
    let own = complete(by_rule(tree, who, users, None, &mut Vec::new()))?;
    let owner = tree.owner(Directory::of(own))?.uid;
    if owner != who.uid && owner != 0 {
        return Err(Error::NotAdmitted);
    }
    Ok(own)
}

fn complete((reached, done): (Option<GroupId>, Result<()>)) -> Result<Option<GroupId>> {
    done.map(|()| reached)
}

fn make_in(tree: &Tree, who: &Credentials, parent: Option<GroupId>, new: &NewJob<'_>) -> Result<GroupId> {
    let above = tree.path(parent);
    let make = |name: &str| {
        let path = format!("{above}/{name}");
        if GroupName::new(path.trim_matches('/')).is_none() {
            return Err(Error::LongName(GroupName::LONGEST));
        }
        let transient = Transient {
            owner: Owner {
                uid: who.uid,
                gid: who.gid,
            },
            settings: Settings::default(),
            origins: Origins::default(),
            job: Some(new.job.clone()),
            is_requested: true,
        };
        let group = new_group(Directory::of(parent), name, who.caller());
        file::make_job_group(tree, &group, transient)
    };
    if let Some(name) = new.name {
        return make(name);
    }
    let name = format!("job-{}", new.job.pid);
    let mut made = make(&name);
    for number in 2..MAX_NAMES {
        if !matches!(made, Err(Error::Exists)) {
            break;
        }
        made = make(&format!("{name}-{number}"));
    }
    made
}
