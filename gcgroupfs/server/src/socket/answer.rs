//! Answers requests of the command line from the table of control files, with the permissions that hold on
//! the mount.

mod reading;

use std::borrow::Cow;

use gcgroup_abi::message::{Answer, Malformed, Operation, Request};

use super::initial_group::may_begin;
use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::event::Event;
use gcgroupfs_model::file::{self, Node};
use gcgroupfs_model::tree::{DIRECTORY_MODE, Directory, GroupId, NewGroup, Tree};

pub use self::reading::Reading;
pub use super::initial_group::Credentials;

/// Answers one packet. `reading` is what the connection has been reading; the second value returned is what
/// it reads from then on. Returns `None` if the packet is not a request.
pub fn answer(
    tree: &Tree,
    asker: &Credentials,
    reading: Reading,
    packet: &[u8],
) -> Option<(Vec<u8>, Reading)> {
    let request = match Request::from_bytes(packet) {
        Ok(request) => request,
        Err(Malformed::Tag | Malformed::Length | Malformed::Protocol) => return None,
    };
    let none = |()| Reading::default();
    let read = match (request.operation, request.offset) {
        (Operation::Get, 0) => get(tree, asker, request.name).map(Reading::of_text),
        (Operation::Explain, 0) => explain(tree, asker, request.name).map(Reading::of_text),
        (Operation::List, 0) => Reading::of_processes(tree, asker, request.name),
        (Operation::ListGroups, 0) => Reading::of_groups(tree, asker, request.name),
        (
            Operation::Get
            | Operation::List
            | Operation::ListGroups
            | Operation::Explain
            | Operation::Ended
            | Operation::Events,
            1..,
        ) => Ok(reading),
        (Operation::Set, _) => set(tree, asker, &request).map(none),
        (Operation::Make, _) => make(tree, asker, request.name).map(none),
        (Operation::Remove, _) => remove(tree, asker, request.name).map(none),
        // The server handles it.
        (
            Operation::Begin | Operation::Hold | Operation::Devices | Operation::Ended | Operation::Events,
            _,
        ) => Err(Error::NotSupported("jobs, holds and devices")),
        (Operation::MayBegin, _) => may_begin(tree, asker, request.name).map(none),
    };
    Some(match read {
        Ok(reading) => reading.part(tree, asker, request.offset),
        Err(error) => (
            Answer::refusal(error.errno(), &error.to_string()).to_bytes(),
            Reading::default(),
        ),
    })
}

/// Resolves a path, if the client may search all directories on it.
pub(super) fn resolve(tree: &Tree, asker: &Credentials, path: &str) -> Result<Node> {
    let path = expand(tree, asker, path);
    file::resolve_if(tree, &path, |directory| asker.lets(tree, directory, 0o1))
}

/// Returns the path from the root where the client begins a path with the name of a job of its own, as given
/// to `gcgroupfs run --name`. What lies in the root has precedence.
fn expand<'a>(tree: &Tree, asker: &Credentials, path: &'a str) -> Cow<'a, str> {
    let path = path.trim_matches('/');
    let (name, rest) = path.split_once('/').unwrap_or((path, ""));
    if name.is_empty() || !matches!(file::lookup(tree, Directory::ROOT, name), Err(Error::NotFound)) {
        return path.into();
    }
    match tree.job_of(asker.uid, name) {
        Some(job) => format!("{}/{rest}", tree.path(Some(job))).into(),
        None => path.into(),
    }
}

fn get(tree: &Tree, asker: &Credentials, path: &str) -> Result<Vec<u8>> {
    match resolve(tree, asker, path)? {
        Node::File(directory, file) => {
            // Does not wait for the process's answer: it is shown to the next reader.
            if !asker.lets(tree, file.item(directory), file.mode() >> 6 & 0o4)? {
                return Err(Error::Closed);
            }
            file.ask(tree, directory)?;
            Ok(file.show(tree, directory)?.into_bytes())
        }
        Node::Dir(_) => Err(Error::IsDirectory),
    }
}

/// Explains a process or a group to a client that may read its files, as JSON.
fn explain(tree: &Tree, asker: &Credentials, path: &str) -> Result<Vec<u8>> {
    let directory = match resolve(tree, asker, path)? {
        Node::Dir(directory) => directory.whole(),
        Node::File(directory, _) => directory.whole(),
    };
    let files = file::files_in(tree, directory)?.filter(|file| file.mode() & 0o4 != 0);
    let mut items = files
        .map(|file| (file.item(directory), 0o4))
        .chain([(directory.into(), 0o1)]);
    if !items.all(|(item, wanted)| asker.lets(tree, item, wanted).unwrap_or(false)) {
        return Err(Error::Closed);
    }
    let groups = tree.groups_of(directory).into_iter();
    let visible = groups.filter(|group| is_open(tree, asker, Some(*group)));
    let explanation = tree.explain(directory, &visible.collect())?;
    // Cannot fail: the keys are text.
    Ok(serde_json::to_vec(&explanation).unwrap_or_default())
}

fn set(tree: &Tree, asker: &Credentials, request: &Request<'_>) -> Result<()> {
    match resolve(tree, asker, request.name)? {
        Node::File(..) if asker.is_contained => Err(Error::Contained),
        Node::File(directory, file) => {
            let item = file.item(directory);
            tree.check_writer(item, asker.caller())?;
            if !asker.lets(tree, item, file.mode() >> 6 & 0o2)? {
                return Err(Error::Closed);
            }
            tree.finish(file.store(tree, directory, asker.caller(), request.value)?);
            Ok(())
        }
        Node::Dir(_) => Err(Error::IsDirectory),
    }
}

fn make(tree: &Tree, asker: &Credentials, path: &str) -> Result<()> {
    let (parent, name) = parent(tree, asker, path)?;
    let new = NewGroup {
        parent,
        name,
        caller: asker.caller(),
        mode: DIRECTORY_MODE,
    };
    let (_, change) = file::make_group(tree, &new)?;
    tree.finish(change);
    Ok(())
}

fn remove(tree: &Tree, asker: &Credentials, path: &str) -> Result<()> {
    let path = expand(tree, asker, path);
    let (parent, name) = parent(tree, asker, &path)?;
    match file::lookup(tree, parent, name)? {
        Node::Dir(_) => {
            tree.finish(file::remove_group(tree, asker.caller(), parent, name)?);
            Ok(())
        }
        Node::File(..) => Err(Error::NotDirectory),
    }
}

/// Returns the directory that contains the path's last name, if the client may change that directory, and the
/// last name.
fn parent<'a>(tree: &Tree, asker: &Credentials, path: &'a str) -> Result<(Directory, &'a str)> {
    let path = path.trim_matches('/');
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    match resolve(tree, asker, above)? {
        Node::Dir(parent) if asker.may_change(tree, parent)? => Ok((parent, name)),
        Node::Dir(_) if asker.is_contained => Err(Error::Contained),
        Node::Dir(_) => Err(Error::NotWritable),
        Node::File(..) => Err(Error::NotDirectory),
    }
}

/// Returns the events, one JSON line each. Groups that the client could not find on the mount, and what
/// happened there, are left out.
pub(super) fn events(tree: &Tree, asker: &Credentials, events: Vec<Event>) -> Vec<u8> {
    let mut out = Vec::new();
    for mut event in events {
        let is_own = !asker.is_contained && event.uid == asker.uid;
        let is_shown = |group: &String| match resolve(tree, asker, group) {
            Ok(Node::Dir(directory)) => {
                let group = tree.groups_of(directory).first().copied();
                group.is_some() && is_open(tree, asker, group)
            }
            _ => false,
        };
        if !is_own && !asker.is_root(tree) && !event.group.as_ref().is_none_or(is_shown) {
            event.group = None;
            event.text.clear();
        }
        event.line = event.to_string();
        // Cannot fail: the keys are text.
        out.extend(serde_json::to_vec(&event).unwrap_or_default());
        out.push(b'\n');
    }
    out
}

/// Returns whether the client could find the group on the mount and see its members.
fn is_open(tree: &Tree, asker: &Credentials, group: Option<GroupId>) -> bool {
    let mut directory = Directory::of(group);
    let mut open = asker.lets(tree, directory, 0o1).unwrap_or(false);
    while open && directory != Directory::ROOT {
        directory = tree.parent(directory);
        open = asker.lets(tree, directory, 0o5).unwrap_or(false);
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroupfs_model::tree::Caller;
    use gcgroupfs_model::tree::fixture::World;

    const ALICE: u32 = 1000;

    /// Performs a request and returns its errno, or 0.
    fn go(world: &World, asker: &Credentials, operation: Operation, name: &str, value: &[u8]) -> i32 {
        let request = Request {
            operation,
            offset: 0,
            name,
            value,
        };
        let (answer, _) = answer(
            &world.tree,
            asker,
            Reading::default(),
            &request.to_bytes::<Vec<u8>>(),
        )
        .unwrap();
        Answer::from_bytes(&answer).unwrap().status.cast_signed()
    }

    #[test]
    fn request_below_a_closed_directory_is_refused() {
        let world = World::new(1);
        let root = Credentials::default();
        let alice = Credentials {
            uid: ALICE,
            gid: ALICE,
            pid: 1,
            groups: vec![27],
            is_contained: false,
        };
        let contained = Credentials {
            is_contained: true,
            ..Credentials::default()
        };
        for path in ["above", "above/hers"] {
            assert_eq!(go(&world, &root, Operation::Make, path, b""), 0);
        }
        let give = |path, uid, gid, mode| {
            let Node::Dir(directory) = file::resolve(&world.tree, path).unwrap() else {
                panic!("{path} is no directory");
            };
            let by = Caller {
                uid: 0,
                gid: 0,
                pid: 0,
            };
            let given = world
                .tree
                .set_access(directory, by, (Some(uid), Some(gid)), Some(mode));
            world.tree.finish(given.unwrap());
        };
        give("above/hers", ALICE, ALICE, 0o700);
        for (gid, mode, hers, a_containers) in [
            (0, 0o755, true, false),
            (0, 0o711, true, false),
            (0, 0o750, false, false),
            (27, 0o750, true, false),
            (27, 0o705, false, false),
        ] {
            give("above", 0, gid, mode);
            let errno = |may| if may { 0 } else { libc::EACCES };
            let file = "above/hers/memory.limit";
            for (operation, path, value) in [
                (Operation::Get, file, &b""[..]),
                (Operation::Set, file, b"1G"),
                (Operation::Make, "above/hers/new", b""),
                (Operation::MayBegin, "above/hers/new", b""),
                (Operation::Remove, "above/hers/new", b""),
            ] {
                let case = format!("{gid} {mode:o} {path}");
                assert_eq!(go(&world, &alice, operation, path, value), errno(hers), "{case}");
            }
            assert_eq!(go(&world, &root, Operation::Get, file, b""), 0);
            assert_eq!(
                go(&world, &contained, Operation::Get, file, b""),
                errno(a_containers)
            );
        }
        assert_eq!(
            go(&world, &root, Operation::Remove, "devices", b""),
            libc::ENOTDIR
        );
        let groups = |asker: &Credentials| {
            let request = Request {
                operation: Operation::ListGroups,
                offset: 0,
                name: "memory.limit",
                value: b"",
            };
            let (answer, _) = answer(
                &world.tree,
                asker,
                Reading::default(),
                &request.to_bytes::<Vec<u8>>(),
            )
            .unwrap();
            let text = Answer::from_bytes(&answer).unwrap().part.to_vec();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(
            groups(&root).lines().last().unwrap(),
            r#"{"group":"above/hers","device":"0","uid":1000,"files":{"memory.limit":"max\n"}}"#
        );
        assert_eq!(groups(&root).lines().count(), 4);
        let seen = groups(&contained);
        assert!(seen.contains("\"above\"") && !seen.contains("hers"), "{seen}");
    }

    #[test]
    fn refusal_has_its_reason() {
        let world = World::new(1);
        world.join(100);
        let request = Request {
            operation: Operation::Set,
            offset: 0,
            name: "100/memory.limit",
            value: b"junk",
        };
        let root = Credentials::default();
        let (answer, _) = answer(
            &world.tree,
            &root,
            Reading::default(),
            &request.to_bytes::<Vec<u8>>(),
        )
        .unwrap();
        let refusal = Answer::from_bytes(&answer).unwrap();
        assert_eq!(refusal.status.cast_signed(), libc::EINVAL);
        assert!(refusal.part.starts_with(b"expected bytes"), "{refusal:?}");
    }
}
