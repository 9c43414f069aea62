//! Where a process begins: in the group of the one that started it; else where a rule says; and, as far as that leaves
//! it the choice, where it asks to. Groups that are not there are made, and go with the last who is in them.

use nix::unistd::{getegid, geteuid};

use crate::error::{Error, Result};
use crate::file;
use crate::rules::{Group, Verdict};
use crate::tree::{Caller, Entity, GroupId, Owner, Place, Settings, Tree};

/// Who asks, according to the kernel.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    pub fn caller(&self) -> Caller {
        Caller {
            uid: self.uid,
            gid: self.gid,
            pid: 0,
        }
    }

    /// Whether groups may be made in a directory and removed, as the kernel would have it of one on the mount.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn may_change(&self, tree: &Tree, place: Place) -> Result<bool> {
        let Owner { gid, .. } = tree.access(place)?.owner;
        let gid = if self.groups.contains(&gid) { gid } else { self.gid };
        tree.may_change(place, Caller { gid, ..self.caller() })
    }

    /// Whether `gcgroup.procs` may be written: that is the owner's and root's.
    fn may_enter(&self, tree: &Tree, place: Place) -> Result<bool> {
        Ok(tree.is_root(self.caller()) || tree.owner(place)?.uid == self.uid)
    }
}

/// What is known of a process that begins.
#[derive(Debug)]
pub struct Beginner<'a> {
    pub who: Credentials,
    /// The group of the process that started it.
    pub above: Option<GroupId>,
    /// What the rules say of it.
    pub verdict: &'a Verdict,
    pub wish: Option<&'a str>,
}

/// The group that a process begins in, none for the root; and for people to read, what has not come about and why.
pub fn begin(tree: &Tree, process: &Beginner<'_>) -> (Option<GroupId>, Vec<String>) {
    let mut troubles = Vec::new();
    let ruled = process.verdict.group.as_ref().filter(|_| process.above.is_none());
    let ruled = ruled.and_then(|group| {
        by_rule(tree, &process.who, group)
            .inspect_err(|error| {
                troubles.push(format!(
                    "is not in group {:?}, as a rule has it: {error}",
                    group.path
                ))
            })
            .ok()
    });
    let mut group = process.above.or(ruled);
    if let Some(wish) = process.wish.filter(|_| !process.verdict.heeds_wish) {
        match by_wish(tree, &process.who, group, wish) {
            Ok(wished) => group = Some(wished),
            Err(error) => troubles.push(format!("asks in vain for group {wish:?}: {error}")),
        }
    }
    if !troubles.is_empty() {
        // Made on the way, and for nobody.
        tree.reap_transient(group);
    }
    (group, troubles)
}

/// The group that a rule names, made if it is not there: what is set for it is root's word.
fn by_rule(tree: &Tree, who: &Credentials, group: &Group) -> Result<GroupId> {
    let root = Caller {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        pid: 0,
    };
    descend(tree, &group.path, |place, name, is_last| {
        let (maker, settings) = match is_last {
            true if group.delegate => (who.caller(), group.given.settings()),
            true => (root, group.given.settings()),
            false => (root, Settings::default()),
        };
        file::make_transient_group(tree, place, name, maker, settings)
    })
}

/// The group that a process asks for, made if it is not there.
///
/// # Errors
/// `EACCES` if its user may not put it there, or not make it; `EPERM` if it is not in that where the process begins
/// otherwise, and not the user's to move it to; as making a group.
fn by_wish(tree: &Tree, who: &Credentials, begins: Option<GroupId>, path: &str) -> Result<GroupId> {
    if !may_leave(tree, who, begins, path)? {
        return Err(Error::NotYours("it is outside of the group that it begins in"));
    }
    let id = descend(tree, path, |place, name, _| {
        if !who.may_change(tree, place)? {
            return Err(Error::WrongAccess);
        }
        file::make_transient_group(tree, place, name, who.caller(), Settings::default())
    })?;
    if !who.may_enter(tree, Place::group(id))? {
        return Err(Error::WrongAccess);
    }
    Ok(id)
}

/// Whether a process of theirs could begin in the group, being nowhere else.
///
/// # Errors
/// Why not.
pub fn may_begin(tree: &Tree, who: &Credentials, path: &str) -> Result<()> {
    let mut place = Place::ROOT;
    for name in path.trim_matches('/').split('/') {
        match tree.directory(place, name) {
            Ok(next) if matches!(next.whose(), Entity::Group(_)) => place = next,
            // Whoever makes the first that is missing makes all others in it.
            Err(Error::NotFound) if who.may_change(tree, place)? => return Ok(()),
            _ => return Err(Error::WrongAccess),
        }
    }
    if place != Place::ROOT && who.may_enter(tree, place)? {
        return Ok(());
    }
    Err(Error::WrongAccess)
}

/// Goes down a path of groups, of which `make` makes those that are not there.
fn descend(tree: &Tree, path: &str, make: impl Fn(Place, &str, bool) -> Result<GroupId>) -> Result<GroupId> {
    let mut place = Place::ROOT;
    let mut names = path.trim_matches('/').split('/').peekable();
    while let Some(name) = names.next() {
        place = match tree.directory(place, name) {
            Ok(next) => next,
            Err(Error::NotFound) => Place::group(make(place, name, names.peek().is_none())?),
            Err(error) => return Err(error),
        };
    }
    match place.whose() {
        Entity::Group(id) if place.device.is_none() => Ok(id),
        _ => Err(Error::BadName("it is no group")),
    }
}

/// Whether a process that begins in one group may go to another: into a group within its own; further if what both are
/// in is its user's; from the root, anywhere.
fn may_leave(tree: &Tree, who: &Credentials, begins: Option<GroupId>, path: &str) -> Result<bool> {
    let own = tree.path(begins);
    if begins.is_none() || tree.is_root(who.caller()) {
        return Ok(true);
    }
    let (mut common, mut wished) = (Place::ROOT, path.trim_matches('/').split('/'));
    for name in own.split('/') {
        if wished.next() != Some(name) {
            return Ok(common != Place::ROOT && who.may_enter(tree, common)?);
        }
        common = tree.directory(common, name)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
