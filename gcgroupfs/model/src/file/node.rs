//! Directories and files: resolution of paths and names, and attributes for stat(2).

use super::{ControlFile, PAGE};
use crate::error::{Error, Result};
use crate::files;
use crate::tree::{
    Access, Action, Caller, Change, Directory, GroupId, Item, MAX_DEPTH, NewGroup, Owner, Transient, Tree,
    check_name,
};

/// A directory or a file.
#[derive(Debug, Clone, Copy)]
pub enum Node {
    Dir(Directory),
    File(Directory, &'static ControlFile),
}

/// Attributes of a node for stat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    pub owner: Owner,
    /// Permission bits.
    pub mode: u16,
    pub size: u64,
}

impl Node {
    /// Returns whether the node is a list, whose size depends on its contents.
    pub fn is_list(self) -> bool {
        matches!(self, Self::File(_, file) if file.contents.are_list())
    }

    /// Returns the node as the object of owners and modes.
    pub fn item(self) -> Item {
        match self {
            Self::Dir(directory) => directory.into(),
            Self::File(directory, file) => file.item(directory),
        }
    }
}

/// Makes a group. The adapter has checked the caller's right to change the parent.
///
/// # Errors
/// * `EEXIST`, `EINVAL`: the name of a control file.
/// * As [`Tree::make_group`].
pub fn make_group(tree: &Tree, new: &NewGroup<'_>) -> Result<(Directory, Change)> {
    check_free(tree, new.parent, new.name)?;
    let (id, change) = tree.make_group(new)?;
    let made = Directory::group(id);
    let by_user = tree.user_change(new.caller, made, Action::Make);
    Ok((made, change.by_user(Some(by_user))))
}

/// Removes a group. The adapter has checked the caller's right to change the parent.
///
/// # Errors
/// As [`Tree::remove_group`].
pub fn remove_group(tree: &Tree, caller: Caller, parent: Directory, name: &str) -> Result<Change> {
    let directory = tree.subdirectory(parent, name)?;
    let by_user = tree.user_change(caller, directory, Action::Remove);
    Ok(tree.remove_group(parent, name)?.by_user(Some(by_user)))
}

/// Changes owner and mode of a directory or file.
///
/// # Errors
/// As [`Tree::set_access`].
pub fn set_access(
    tree: &Tree,
    node: Node,
    caller: Caller,
    owner: (Option<u32>, Option<u32>),
    mode: Option<u16>,
) -> Result<Change> {
    let item = node.item();
    let old = tree.access(item)?;
    let change = tree.set_access(item, caller, owner, mode)?;
    let new = tree.access(item)?;
    let file = item.file.map(|(name, _)| name);
    let by_user = tree.user_change(caller, item.directory, Action::SetAccess { file, old, new });
    Ok(change.by_user((new != old).then_some(by_user)))
}

/// Makes a group that is removed with its last member. An existing group is returned unchanged.
///
/// # Errors
/// As [`make_group`].
pub fn make_transient_group(tree: &Tree, new: &NewGroup<'_>, transient: Transient) -> Result<GroupId> {
    check_free(tree, new.parent, new.name)?;
    tree.make_transient_group(new, transient)
}

/// Makes a transient group for a job, which is held until [`Tree::end_holder`].
///
/// # Errors
/// As [`make_group`].
pub fn make_job_group(tree: &Tree, new: &NewGroup<'_>, transient: Transient) -> Result<GroupId> {
    check_free(tree, new.parent, new.name)?;
    tree.make_job_group(new, transient)
}

/// Returns whether any directory has a control file of that name, which no group can have then.
pub fn is_taken(name: &str) -> bool {
    named(name).is_some()
}

/// Checks that a group of that path from the root could exist.
///
/// # Errors
/// * `EMLINK`: nested too deeply.
/// * As [`make_group`].
pub fn check_group_path(path: &str) -> Result<()> {
    for (depth, name) in path.split('/').enumerate() {
        if depth >= MAX_DEPTH {
            return Err(Error::TooDeep(MAX_DEPTH));
        }
        check_group_name(name)?;
    }
    Ok(())
}

/// Checks that a group of that name could exist in any directory.
///
/// # Errors
/// `EINVAL`: the name is malformed, or a control file has it; `ENAMETOOLONG`: it is too long.
pub fn check_group_name(name: &str) -> Result<()> {
    check_name(name)?;
    if is_taken(name) {
        return Err(Error::BadName("a control file has this name"));
    }
    Ok(())
}

/// Checks that no control file has the name.
fn check_free(tree: &Tree, parent: Directory, name: &str) -> Result<()> {
    if !is_taken(name) {
        return Ok(());
    }
    Err(match lookup(tree, parent, name) {
        Ok(_) => Error::Exists,
        Err(_) => Error::BadName("a control file has this name"),
    })
}

/// Returns the files of a directory, in the table's order.
///
/// # Errors
/// `ENODEV` if the directory is gone.
pub fn files_in(tree: &Tree, directory: Directory) -> Result<impl Iterator<Item = &'static ControlFile>> {
    those_in(tree, directory, files::all())
}

/// Returns those of some files that the directory has.
///
/// # Errors
/// `ENODEV` if the directory is gone.
pub fn those_in<F: Iterator<Item = &'static ControlFile>>(
    tree: &Tree,
    directory: Directory,
    files: F,
) -> Result<impl Iterator<Item = &'static ControlFile> + use<F>> {
    let level = tree.level(directory)?;
    Ok(files.filter(move |file| file.on.has(level)))
}

/// Returns the file of this name, of whichever directories.
pub fn named(name: &str) -> Option<&'static ControlFile> {
    files::all().find(|file| file.name == name)
}

/// Checks that this directory has the file.
///
/// # Errors
/// * `ENODEV`: the directory is gone.
/// * `ENOENT`: it has no such file.
pub fn check(tree: &Tree, directory: Directory, file: &ControlFile) -> Result<()> {
    let level = tree.level(directory)?;
    if file.on.has(level) {
        Ok(())
    } else {
        Err(Error::NotFound)
    }
}

/// Looks a name up in a directory.
///
/// # Errors
/// `ENOENT`, also if the directory itself is gone.
pub fn lookup(tree: &Tree, directory: Directory, name: &str) -> Result<Node> {
    let level = tree.level(directory).map_err(|_| Error::NotFound)?;
    match named(name) {
        Some(file) if file.on.has(level) => Ok(Node::File(directory, file)),
        Some(_) => Err(Error::NotFound),
        None => tree.subdirectory(directory, name).map(Node::Dir),
    }
}

/// Resolves a path from the root for a caller that may search some of the directories. Empty components and a
/// leading slash are ignored.
///
/// # Errors
/// * `ENOENT`: no such file or directory.
/// * `ENOTDIR`: below a file.
/// * `EACCES`: `may_search` is false.
pub fn resolve_if(tree: &Tree, path: &str, may_search: impl Fn(Directory) -> Result<bool>) -> Result<Node> {
    path.split('/').filter(|name| !name.is_empty()).try_fold(
        Node::Dir(Directory::ROOT),
        |at, name| match at {
            Node::Dir(directory) if may_search(directory).map_err(|_| Error::NotFound)? => {
                lookup(tree, directory, name)
            }
            Node::Dir(_) => Err(Error::Closed),
            Node::File(..) => Err(Error::NotDirectory),
        },
    )
}

/// Resolves a path from the root for a caller that may search all directories.
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub fn resolve(tree: &Tree, path: &str) -> Result<Node> {
    resolve_if(tree, path, |_| Ok(true))
}

/// Returns the attributes of a node for stat(2).
///
/// # Errors
/// `ENODEV` if it is gone.
pub fn attributes(tree: &Tree, node: Node) -> Result<Attributes> {
    let Access { owner, mode } = tree.access(node.item())?;
    let length = match node {
        Node::Dir(_) => 0,
        Node::File(directory, file) if node.is_list() => file.show(tree, directory)?.len().max(1),
        Node::File(..) => PAGE,
    };
    let size = length.next_multiple_of(PAGE) as u64;
    Ok(Attributes { owner, mode, size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::{errno, file};
    use crate::tree::fixture::{ROOT, World};

    #[test]
    fn resolve_finds_existing_nodes_only() {
        let world = World::new(2);
        let id = world.join(100);
        for path in ["", "/", "100", "/100/", "100/0", "100//1"] {
            assert!(matches!(resolve(&world.tree, path), Ok(Node::Dir(_))), "{path}");
        }
        for path in [
            "0100",
            "+100",
            "101",
            "100/2",
            "100/00",
            "100/0/0",
            "memory.limit",
            "nothing",
            "100/devices",
        ] {
            assert_eq!(errno(resolve(&world.tree, path)), libc::ENOENT, "{path}");
        }
        assert_eq!(errno(resolve(&world.tree, "devices/x")), libc::ENOTDIR);
        let (directory, file) = file(&world, "100/0/memory.limit");
        world.tree.leave(id, 0);
        assert_eq!(errno(resolve(&world.tree, "100/0/memory.limit")), libc::ENOENT);
        assert_eq!(errno(file.show(&world.tree, directory)), libc::ENODEV);
        assert_eq!(
            errno(file.store(&world.tree, directory, ROOT, b"1")),
            libc::ENODEV
        );
    }

    #[test]
    fn attributes_sizes_are_whole_pages() {
        let world = World::new(1);
        for pid in 1..3000 {
            world.join(pid);
        }
        let (directory, procs) = file(&world, "gcgroup.procs");
        let size = attributes(&world.tree, Node::File(directory, procs))
            .unwrap()
            .size;
        assert!(
            size >= world.show("gcgroup.procs").len() as u64 && size > 4096 && size.is_multiple_of(4096),
            "{size}"
        );
        let (directory, limit) = file(&world, "7/memory.limit");
        assert_eq!(
            attributes(&world.tree, Node::File(directory, limit))
                .unwrap()
                .size,
            4096
        );
    }
}
