//! Makes the groups of the configuration. What it says is carried out once since the machine started; what is
//! written to the control files afterwards stays, until the configuration says something else.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::file::{self, Node};
use crate::rules::ConfiguredGroup;
use crate::tree::{Caller, DIRECTORY_MODE, Directory, NewGroup, Tree};

/// Keys of owner, owning group and mode among the values that were carried out.
const ACCESS: [&str; 3] = ["uid", "gid", "mode"];

/// Makes a group and those above it that are missing, and sets what the configuration says of it, unless that
/// was done since the machine started. `root` is the daemon. Waits for the disk. Returns what has failed, for
/// people to read; the rest holds.
pub fn apply(tree: &Tree, group: &ConfiguredGroup, root: Caller) -> Vec<String> {
    let access = group.access();
    let numbers = [access.uid, access.gid, access.mode.map(u32::from)];
    let mut said = group.values();
    let given = ACCESS.into_iter().zip(numbers);
    said.extend(given.filter_map(|(key, number)| Some((key.to_owned(), number?.to_string()))));

    let done = tree.configured(group.path());
    let is_due = |key: &str| done.as_ref().is_none_or(|done| done.get(key) != said.get(key));
    if done.is_some() && !said.keys().any(|key| is_due(key)) {
        return Vec::new();
    }
    let directory = match make(tree, group.path(), root) {
        Ok(directory) => directory,
        Err(error) => return vec![error.to_string()],
    };
    let mut faults = BTreeMap::new();
    for (name, value) in group.values().iter().filter(|(name, _)| is_due(name)) {
        if let Err(error) = set(tree, directory, root, (name, value)) {
            faults.insert(name.clone(), format!("{name}: {error}"));
        }
    }
    if ACCESS.iter().any(|key| is_due(key)) {
        let owner = (access.uid, access.gid);
        match file::set_access(tree, Node::Dir(directory), root, owner, access.mode) {
            Ok(change) => tree.finish(change),
            Err(error) => faults.extend(ACCESS.map(|key| (key.to_owned(), error.to_string()))),
        }
    }
    said.retain(|key, _| !faults.contains_key(key));
    tree.set_configured(directory, group.path(), said);
    faults.into_values().collect()
}

/// Finds a group, or makes it and those above it.
fn make(tree: &Tree, path: &str, root: Caller) -> Result<Directory> {
    path.split('/').try_fold(Directory::ROOT, |parent, name| {
        match file::lookup(tree, parent, name) {
            Ok(Node::Dir(found)) => return Ok(found),
            Ok(Node::File(..)) => return Err(Error::NotDirectory),
            Err(_) => {}
        }
        let new = NewGroup {
            parent,
            name,
            caller: root,
            mode: DIRECTORY_MODE,
        };
        let (made, change) = file::make_group(tree, &new)?;
        tree.finish(change);
        Ok(made)
    })
}

fn set(tree: &Tree, directory: Directory, root: Caller, (name, value): (&str, &str)) -> Result<()> {
    match file::lookup(tree, directory, name)? {
        Node::File(directory, file) => {
            tree.finish(file.store(tree, directory, root, value.as_bytes())?);
            Ok(())
        }
        Node::Dir(_) => Err(Error::IsDirectory),
    }
}
