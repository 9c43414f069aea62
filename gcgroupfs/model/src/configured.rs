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
    let (values, (uid, gid, mode)) = (group.values(), group.access());
    let mut said = values.clone();
    let given = ACCESS.into_iter().zip([uid, gid, mode.map(u32::from)]);
    said.extend(given.filter_map(|(key, number)| Some((key.to_owned(), number?.to_string()))));

    let done = tree.configured(group.path());
    let is_new =
        |done: &BTreeMap<String, String>| said.iter().any(|(key, value)| done.get(key) != Some(value));
    if !done.as_ref().is_none_or(is_new) {
        return Vec::new();
    }
    // A group that was removed is made anew with all that is said of it.
    let done = done.filter(|_| file::resolve_if(tree, group.path(), |_| Ok(true)).is_ok());
    let is_due = |key: &str| done.as_ref().is_none_or(|done| done.get(key) != said.get(key));
    let directory = match make(tree, group.path(), root) {
        Ok(directory) => directory,
        Err(error) => return vec![error.to_string()],
    };
    let mut faults = BTreeMap::new();
    for (name, value) in values.iter().filter(|(name, _)| is_due(name)) {
        if let Err(error) = set(tree, directory, root, (name, value)) {
            faults.insert(name.as_str(), format!("{name}: {error}"));
        }
    }
    let [uid, gid] = [("uid", uid), ("gid", gid)].map(|(key, id)| id.filter(|_| is_due(key)));
    let mode = mode.filter(|_| is_due("mode"));
    match file::set_access(tree, Node::Dir(directory), root, (uid, gid), mode) {
        Ok(change) => tree.finish(change),
        Err(error) => _ = faults.insert("mode", error.to_string()),
    }
    said.retain(|key, _| !faults.contains_key(key.as_str()));
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
