//! Where a process begins: in the group of the one that started it; else where a rule says; and, as far as
//! that leaves it the choice, where it asks to. Groups that are not there are made, and go with the last who
//! is in them.

use nix::unistd::{getegid, geteuid};

use crate::error::{Error, Result};
use crate::file;
use crate::rules::{Group, Verdict};
use crate::tree::{Caller, Entity, GroupId, Owner, Place, Settings, Transient, Tree};

/// Who asks, according to the kernel.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// In a container: its users are not those of the machine, whatever their numbers, and may change
    /// nothing.
    pub is_contained: bool,
}

impl Credentials {
    pub fn caller(&self) -> Caller {
        Caller {
            uid: self.uid,
            gid: self.gid,
            pid: 0,
        }
    }

    /// Whether they may do what root may; in a container, nobody may.
    pub fn is_root(&self, tree: &Tree) -> bool {
        !self.is_contained && tree.is_root(self.caller())
    }

    /// Whether groups may be made in a directory and removed, as the kernel would have it of one on the
    /// mount.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn may_change(&self, tree: &Tree, place: Place) -> Result<bool> {
        Ok(!self.is_contained && tree.may_change(place, self.in_group_of(tree, place)?)?)
    }

    /// Whether what is in a directory may be opened, likewise. In a container is nobody whom the directory
    /// knows.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn may_search(&self, tree: &Tree, place: Place) -> Result<bool> {
        if self.is_contained {
            return Ok(tree.access(place)?.mode & 0o1 != 0);
        }
        tree.may_search(place, self.in_group_of(tree, place)?)
    }

    /// Whether names in a directory may be read and opened, likewise.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn may_find(&self, tree: &Tree, place: Place) -> Result<bool> {
        if self.is_contained {
            return Ok(tree.access(place)?.mode & 0o5 == 0o5);
        }
        tree.may_find(place, self.in_group_of(tree, place)?)
    }

    /// In the directory's group, if they are in that among others.
    fn in_group_of(&self, tree: &Tree, place: Place) -> Result<Caller> {
        let Owner { gid, .. } = tree.access(place)?.owner;
        let gid = if self.groups.contains(&gid) { gid } else { self.gid };
        Ok(Caller { gid, ..self.caller() })
    }

    /// Whether `gcgroup.procs` may be written: that is the owner's and root's.
    fn may_enter(&self, tree: &Tree, place: Place) -> Result<bool> {
        Ok(!self.is_contained && (tree.is_root(self.caller()) || tree.owner(place)?.uid == self.uid))
    }
}

/// What is known of a process that begins.
#[derive(Debug)]
pub struct Beginner<'a> {
    pub who: &'a Credentials,
    /// The group of the process that started it.
    pub above: Option<GroupId>,
    /// What the rules say of it.
    pub verdict: &'a Verdict,
    pub wish: Option<&'a str>,
}

/// Where a process begins.
#[derive(Debug, Default)]
pub struct Beginning {
    /// None for the root.
    pub group: Option<GroupId>,
    /// Whether that is the group that the process asks for, or the one that a rule gives to those who ask so.
    pub is_as_wished: bool,
    /// For people to read: what has not come about and why.
    pub troubles: Vec<String>,
}

/// Finds the group that a process begins in, and makes it if it is not there.
pub fn begin(tree: &Tree, process: &Beginner<'_>) -> Beginning {
    let mut troubles = Vec::new();
    let mut is_as_wished = false;
    let ruled = process.verdict.group.as_ref().filter(|_| process.above.is_none());
    let ruled = ruled.and_then(|group| {
        let (reached, done) = by_rule(tree, process.who, group);
        if let Err(error) = done {
            troubles.push(format!(
                "gets no farther than {:?} to group {:?}, as a rule has it: {error}",
                tree.path(reached),
                group.path
            ));
        } else {
            is_as_wished = process.verdict.heeds_wish;
        }
        reached
    });
    let mut group = process.above.or(ruled);
    if let Some(wish) = process.wish.filter(|_| !process.verdict.heeds_wish) {
        match by_wish(tree, process.who, group, wish) {
            Ok(wished) => (group, is_as_wished) = (Some(wished), true),
            Err(error) => troubles.push(format!("asks in vain for group {wish:?}: {error}")),
        }
    }
    if !troubles.is_empty() {
        // Made on the way, and for nobody.
        tree.reap_transient(group);
    }
    Beginning {
        group,
        is_as_wished,
        troubles,
    }
}

/// The group that a rule names, made if it is not there: what is set for it is root's word. If that cannot
/// be, as far as it goes: whoever has spoilt the rest, a limit above still holds.
fn by_rule(tree: &Tree, who: &Credentials, group: &Group) -> (Option<GroupId>, Result<()>) {
    let root = Caller {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        pid: 0,
    };
    descend(tree, &group.path, |place, name, step| {
        let owner = if step.is_last && group.delegate {
            who.caller()
        } else {
            root
        };
        let transient = Transient {
            owner: Owner {
                uid: owner.uid,
                gid: owner.gid,
            },
            settings: if step.is_last {
                group.given.settings()
            } else {
                Settings::default()
            },
        };
        // A user's account may be full: that must not keep the user out of a rule's group.
        let maker = if step.number < group.nr_ruled {
            root
        } else {
            who.caller()
        };
        file::make_transient_group(tree, place, name, maker, transient)
    })
}

/// The group that a process asks for, made if it is not there.
///
/// # Errors
/// `EACCES` if its user may not put it there, or not make it; `EPERM` if it is not in that where the process
/// begins otherwise, and not the user's to move it to, or if it is in a container; as making a group.
fn by_wish(tree: &Tree, who: &Credentials, begins: Option<GroupId>, path: &str) -> Result<GroupId> {
    if who.is_contained {
        return Err(Error::NotYours(
            "it is in a container, and no rule heeds its wish",
        ));
    }
    if !may_leave(tree, who, begins, path)? {
        return Err(Error::NotYours("it is outside of the group that it begins in"));
    }
    may_begin(tree, who, path)?;
    let (reached, done) = descend(tree, path, |place, name, _| {
        if !who.may_change(tree, place)? {
            return Err(Error::WrongAccess);
        }
        let transient = Transient {
            owner: Owner {
                uid: who.uid,
                gid: who.gid,
            },
            settings: Settings::default(),
        };
        file::make_transient_group(tree, place, name, who.caller(), transient)
    });
    done?;
    let id = reached.ok_or(Error::NotFound)?;
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
    file::check_group_path(path.trim_matches('/'))?;
    for name in path.trim_matches('/').split('/') {
        if !who.may_search(tree, place)? {
            return Err(Error::WrongAccess);
        }
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

/// One of the names of a path.
struct Step {
    /// Counting from 0.
    number: usize,
    is_last: bool,
}

/// Goes down a path of groups, of which `make` makes those that are not there: how far it got, and whether
/// that is all.
fn descend(
    tree: &Tree,
    path: &str,
    make: impl Fn(Place, &str, &Step) -> Result<GroupId>,
) -> (Option<GroupId>, Result<()>) {
    let mut reached = None;
    let mut names = path.trim_matches('/').split('/').enumerate().peekable();
    while let Some((number, name)) = names.next() {
        let place = Place::of(reached);
        let is_last = names.peek().is_none();
        let next = match tree.directory(place, name) {
            Ok(next) => match next.whose() {
                Entity::Group(id) if next.device.is_none() => Ok(id),
                _ => Err(Error::BadName("it is no group")),
            },
            Err(Error::NotFound) => make(place, name, &Step { number, is_last }),
            Err(error) => Err(error),
        };
        match next {
            Ok(id) => reached = Some(id),
            Err(error) => return (reached, Err(error)),
        }
    }
    (reached, Ok(()))
}

/// Whether a process that begins in one group may go to another: into a group within its own; further if what
/// both are in is its user's; from the root, anywhere.
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
