//! Chooses the group in which a process begins: that of its nearest governed ancestor; otherwise the one that
//! a rule names; and, within that, the group that the process asks for. Missing groups are created, and
//! removed with their last member.

mod foresee;
mod job;

use std::cell::Cell;

use nix::unistd::{getegid, geteuid};

use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::file;
use gcgroupfs_model::rules::{Group, Verdict};
use gcgroupfs_model::tree::{
    Caller, DIRECTORY_MODE, Directory, Entity, GroupId, Item, NewGroup, Origins, Owner, Settings, Transient,
    Tree,
};
use gcgroupfs_sys::process::Peer;

pub(super) use self::foresee::{Prospect, foresee_group};
pub(super) use self::job::{NewJob, make_job_group};

/// Credentials of a client, as the kernel reports them.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// 0 if it is not visible in the daemon's pid namespace.
    pub pid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The client is in a container: its user ids do not denote users of this machine, and it may change
    /// nothing.
    pub is_contained: bool,
}

impl Credentials {
    pub fn of(peer: &Peer) -> Self {
        Self {
            uid: peer.uid,
            gid: peer.gid,
            pid: peer.pid,
            groups: peer.groups.clone(),
            is_contained: peer.is_contained,
        }
    }

    pub fn caller(&self) -> Caller {
        Caller {
            uid: self.uid,
            gid: self.gid,
            pid: self.pid,
        }
    }

    /// Returns whether the client has root's rights; never in a container.
    pub fn is_root(&self, tree: &Tree) -> bool {
        !self.is_contained && tree.is_root(self.caller())
    }

    /// Returns whether the client may create and remove groups in a directory, by the mode bits, as on the
    /// mount.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn may_change(&self, tree: &Tree, directory: Directory) -> Result<bool> {
        Ok(!self.is_contained && self.lets(tree, directory, 0o3)?)
    }

    /// Returns whether the client has all `wanted` permission bits (read 4, write 2, search 1) on a directory
    /// or file. For a client in a container only the bits for others count.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn lets(&self, tree: &Tree, item: impl Into<Item>, wanted: u16) -> Result<bool> {
        let item = item.into();
        if self.is_contained {
            return Ok(tree.access(item)?.mode & wanted == wanted);
        }
        tree.lets(item, self.caller(), &self.groups, wanted)
    }

    /// Returns whether the client may write `gcgroup.procs`, by the mode bits.
    fn may_enter(&self, tree: &Tree, directory: Directory) -> Result<bool> {
        Ok(!self.is_contained && self.lets(tree, Item::procs(directory), 0o2)?)
    }
}

/// Facts about a process that registers for the first time.
#[derive(Debug)]
pub(super) struct GroupFacts<'a> {
    pub who: &'a Credentials,
    /// Group of the nearest governed ancestor, or of its job.
    pub above: Option<GroupId>,
    /// Verdict of the rules.
    pub verdict: &'a Verdict,
    pub wish: Option<&'a str>,
    /// Whether `wish` is the group of a job, which is never made for a process.
    pub names_job: bool,
}

impl<'a> GroupFacts<'a> {
    /// Makes the group that the process asks for again, if it was removed with its last process.
    pub(super) fn revive(&self, tree: &Tree) {
        if let Some(wish) = self.wish.filter(|_| !self.who.is_contained) {
            tree.revive(wish, self.who.caller());
        }
    }

    /// Returns the group that the process asks for, unless a rule gives it one for asking. The group of a job
    /// was made in the one that a rule gives.
    fn own_wish(&self, tree: &Tree) -> Option<&'a str> {
        let is_job = |wish: &str| self.names_job || tree.job_wish(wish).is_some();
        self.wish.filter(|wish| !self.verdict.heeds_wish || is_job(wish))
    }
}

/// Where a process begins.
#[derive(Debug, Default)]
pub(super) struct InitialGroup {
    /// `None` for the root.
    pub group: Option<GroupId>,
    /// Whether this is the group that the process asks for, or the one that a rule gives to processes that
    /// ask for it.
    pub is_as_requested: bool,
    /// Log messages: requests that were not fulfilled, and why.
    pub troubles: Vec<String>,
    /// Log messages: what a rule names and the node does not have.
    pub warnings: Vec<String>,
}

/// Finds the group in which a process begins, and creates it if it does not exist.
pub(super) fn find_initial_group(tree: &Tree, process: &GroupFacts<'_>) -> InitialGroup {
    process.revive(tree);
    let (mut troubles, mut warnings) = (Vec::new(), Vec::new());
    let mut is_as_requested = false;
    let ruled = process.verdict.group.as_ref().filter(|_| process.above.is_none());
    let ruled = ruled.and_then(|group| {
        let rule = process.verdict.rule.as_deref();
        let (reached, done) = by_rule(tree, process.who, group, rule, &mut warnings);
        if let Err(error) = done {
            troubles.push(format!(
                "reaches only {:?} of group {:?}, which a rule names: {error}",
                tree.path(reached),
                group.path
            ));
        } else {
            is_as_requested = process.verdict.heeds_wish;
        }
        reached
    });
    let mut group = process.above.or(ruled);
    if let Some(wish) = process.own_wish(tree) {
        // A process that begins there anyway needs no right to enter the group.
        let is_there = group.is_some() && tree.path(group) == wish.trim_matches('/');
        match if is_there {
            Ok(group)
        } else {
            by_wish(tree, process.who, group, (wish, process.names_job)).map(Some)
        } {
            Ok(wished) => (group, is_as_requested) = (wished, true),
            Err(error) => troubles.push(format!("is not admitted to group {wish:?}: {error}")),
        }
    }
    if !troubles.is_empty() {
        // Removes groups that were created for the failed attempt.
        tree.reap_transient(group);
    }
    InitialGroup {
        group,
        is_as_requested,
        troubles,
        warnings,
    }
}

/// Finds or creates the group that a rule names; settings made for it count as root's. If the path cannot be
/// completed, returns the deepest group reached, so that the limits of the groups above still hold.
fn by_rule(
    tree: &Tree,
    who: &Credentials,
    group: &Group,
    rule: Option<&str>,
    warnings: &mut Vec<String>,
) -> (Option<GroupId>, Result<()>) {
    let mut ruled = group.settings.settings();
    let missing = tree.complete_ruled(&mut ruled, group.settings.devices());
    let root = Caller {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        pid: 0,
    };
    let is_made = Cell::new(false);
    let found = descend(tree, &group.path, |directory, name, step| {
        is_made.set(step.is_last);
        let owner = if step.is_last && group.delegate {
            who.caller()
        } else {
            root
        };
        let transient = Transient {
            job: None,
            is_requested: false,
            owner: Owner {
                uid: owner.uid,
                gid: owner.gid,
            },
            settings: if step.is_last {
                ruled.clone()
            } else {
                Settings::default()
            },
            origins: Origins::of_rule(rule.filter(|_| step.is_last), &ruled, tree.now()),
        };
        // The limit of groups per user does not apply: a rule's group must always be available.
        let maker = if step.number < group.nr_ruled {
            root
        } else {
            who.caller()
        };
        file::make_transient_group(tree, &new_group(directory, name, maker), transient)
    });
    if is_made.get() && !missing.is_empty() {
        let missing = missing.join(",");
        warnings.push(format!(
            "finds no devices {missing}, which a rule names for group {:?}",
            group.path
        ));
    }
    found
}

fn new_group(parent: Directory, name: &str, caller: Caller) -> NewGroup<'_> {
    NewGroup {
        parent,
        name,
        caller,
        mode: DIRECTORY_MODE,
    }
}

/// Finds or creates the group that a process asks for; that of a job is only found.
///
/// # Errors
/// `EACCES` if its user may not enter or create the group; `EPERM` if the group is outside of the one in
/// which the process begins and the user may not move it there, or if the process is in a container; errors
/// of creating a group.
fn by_wish(
    tree: &Tree,
    who: &Credentials,
    begins: Option<GroupId>,
    (path, names_job): (&str, bool),
) -> Result<GroupId> {
    if who.is_contained {
        return Err(Error::NotYours("it is in a container, and no rule admits it"));
    }
    if !may_leave(tree, who, &tree.path(begins), path)? {
        return Err(Error::NotYours("it is outside of the group that it begins in"));
    }
    may_begin(tree, who, path)?;
    let (reached, done) = descend(tree, path, |directory, name, _| {
        if names_job || is_job_name(name) {
            return Err(Error::NotYours(
                "its job is not known, or ended more than a day ago",
            ));
        }
        if !who.may_change(tree, directory)? {
            return Err(Error::NotWritable);
        }
        let transient = Transient {
            job: None,
            is_requested: true,
            owner: Owner {
                uid: who.uid,
                gid: who.gid,
            },
            settings: Settings::default(),
            origins: Origins::default(),
        };
        file::make_transient_group(tree, &new_group(directory, name, who.caller()), transient)
    });
    done?;
    let id = reached.ok_or(Error::NotFound)?;
    if !who.may_enter(tree, Directory::group(id))? {
        return Err(Error::NotAdmitted);
    }
    Ok(id)
}

/// Returns whether only jobs without a name of their own have groups of this name.
fn is_job_name(name: &str) -> bool {
    let number = name.strip_prefix("job-");
    number.is_some_and(|number| number.bytes().next().is_some_and(|byte| byte.is_ascii_digit()))
}

/// Returns the existing group at a path, if a process of the client, being in no group, could begin there.
pub(super) fn find_requested(tree: &Tree, who: &Credentials, path: &str) -> Option<GroupId> {
    may_begin(tree, who, path).ok()?;
    let mut directory = Directory::ROOT;
    for name in path.trim_matches('/').split('/') {
        directory = tree.subdirectory(directory, name).ok()?;
    }
    match directory.whose() {
        Entity::Group(id) if directory.device.is_none() => Some(id),
        _ => None,
    }
}

/// Checks whether a process of the client, being in no group, could begin in the group.
///
/// # Errors
/// The reason why it could not.
pub(super) fn may_begin(tree: &Tree, who: &Credentials, path: &str) -> Result<()> {
    let mut directory = Directory::ROOT;
    file::check_group_path(path.trim_matches('/'))?;
    for name in path.trim_matches('/').split('/') {
        if !who.lets(tree, directory, 0o1)? {
            return Err(Error::Closed);
        }
        match tree.subdirectory(directory, name) {
            Ok(next) if matches!(next.whose(), Entity::Group(_)) => directory = next,
            // The user that creates the first missing group may create those below it.
            Err(Error::NotFound) if who.may_change(tree, directory)? => return Ok(()),
            Err(Error::NotFound) => return Err(Error::NotWritable),
            _ => return Err(Error::NotAdmitted),
        }
    }
    if directory != Directory::ROOT && who.may_enter(tree, directory)? {
        return Ok(());
    }
    Err(Error::NotAdmitted)
}

/// One component of a path.
struct Step {
    /// Index, from 0.
    number: usize,
    is_last: bool,
}

/// Walks down a path of groups and creates missing ones with `make`. Returns the deepest group reached, and
/// an error if that is not the whole path.
fn descend(
    tree: &Tree,
    path: &str,
    make: impl Fn(Directory, &str, &Step) -> Result<GroupId>,
) -> (Option<GroupId>, Result<()>) {
    let mut reached = None;
    let mut names = path.trim_matches('/').split('/').enumerate().peekable();
    while let Some((number, name)) = names.next() {
        let directory = Directory::of(reached);
        let is_last = names.peek().is_none();
        let next = match tree.subdirectory(directory, name) {
            Ok(next) => match next.whose() {
                Entity::Group(id) if next.device.is_none() => Ok(id),
                _ => Err(Error::BadName("it is no group")),
            },
            Err(Error::NotFound) => make(directory, name, &Step { number, is_last }),
            Err(error) => Err(error),
        };
        match next {
            Ok(id) => reached = Some(id),
            Err(error) => return (reached, Err(error)),
        }
    }
    (reached, Ok(()))
}

/// Returns whether a process that begins in one group may choose another: one below its own; another if its
/// user owns the nearest common group; from the root, any.
fn may_leave(tree: &Tree, who: &Credentials, own: &str, path: &str) -> Result<bool> {
    if own.is_empty() || tree.is_root(who.caller()) {
        return Ok(true);
    }
    let (mut common, mut wished) = (Directory::ROOT, path.trim_matches('/').split('/'));
    for name in own.split('/') {
        if wished.next() != Some(name) {
            return Ok(common != Directory::ROOT && who.may_enter(tree, common)?);
        }
        common = tree.subdirectory(common, name)?;
    }
    Ok(true)
}

/// Returns whether a path is that of a group or of one below it.
pub(super) fn is_below(path: &str, group: &str) -> bool {
    let below = path.strip_prefix(group.trim_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

#[cfg(test)]
mod tests;
