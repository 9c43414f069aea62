//! Processes and groups that a write to `gcgroup.kill` concerns.

use std::collections::HashSet;
use std::fmt::{self, Display};

use super::{Directory, Entity, GroupId, ProcessId, Tree};

/// User for whom processes are killed, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Killer {
    pub uid: u32,
    pub cause: KillCause,
}

/// Why processes are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillCause {
    /// The process with this pid has written 1 to `gcgroup.kill`.
    Write(u32),
    /// The process with this pid has written `SIGTERM` there: the processes may clean up, or go on.
    Terminate(u32),
    /// The lease of the group or of one above has expired.
    Lease,
    /// A limit of the group or of one below has refused an allocation.
    OomGroup,
}

impl Display for Killer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause {
            KillCause::Write(pid) => write!(f, "gcgroup.kill, written by {pid} of user {}", self.uid),
            KillCause::Terminate(pid) => {
                write!(
                    f,
                    "gcgroup.kill with SIGTERM, written by {pid} of user {}",
                    self.uid
                )
            }
            KillCause::Lease => f.write_str("gcgroup.lease of its group"),
            KillCause::OomGroup => f.write_str("memory.oom.group of its group"),
        }
    }
}

/// Processes to be killed, and groups whose further processes are to be killed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Doomed {
    /// Registered processes.
    pub processes: HashSet<ProcessId>,
    /// Groups: those of processes that execute another program now, or have not registered yet.
    pub groups: HashSet<GroupId>,
}

impl Tree {
    /// Returns what a write to `gcgroup.kill` in this directory concerns now.
    pub fn doomed(&self, directory: Directory) -> Doomed {
        let state = self.state.lock();
        match directory.whose() {
            Entity::Root => Doomed::default(),
            Entity::Process(id) => Doomed {
                processes: HashSet::from([id]),
                groups: HashSet::new(),
            },
            Entity::Group(id) => Doomed {
                processes: state.within(id).iter().map(|process| process.id).collect(),
                groups: state.groups_within(id).into_iter().collect(),
            },
        }
    }

    /// Returns whether a process may register in a group: it exists, or is made again for one that names it.
    pub fn is_group(&self, id: GroupId) -> bool {
        let state = self.state.lock();
        state.groups.contains_key(&id) || state.retained.of_group(id).is_some()
    }

    /// Returns the groups whose `gcgroup.kill` concerns the processes of a group: it and those above, also by
    /// the numbers that they had before they were made again.
    pub fn killed_with(&self, id: GroupId) -> Vec<GroupId> {
        let state = self.state.lock();
        let groups = state.chain(Some(id)).into_iter();
        let numbers = |id: GroupId| [Some(id), state.groups.get(&id).and_then(|group| group.former)];
        groups.flat_map(numbers).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Node, resolve};
    use crate::tree::Notice;
    use crate::tree::fixture::{OTHER_USER, OWNER, ROOT, World, become_root};

    fn asked(world: &World) -> Vec<Directory> {
        let notices = world.take_notices().into_iter();
        let asked = notices.filter_map(|notice| match notice {
            Notice::KillAsked(directory, _) => Some(directory),
            _ => None,
        });
        asked.collect()
    }

    #[test]
    fn kill_concerns_the_group_and_those_below() {
        let world = World::new(1);
        let [one, two, other] = [100, 101, 102].map(|pid| world.join(pid));
        for (group, pid) in [("a", "100"), ("a/b", "101"), ("c", "102")] {
            world.group(group);
            world.store(&format!("{group}/gcgroup.procs"), ROOT, pid).unwrap();
        }
        asked(&world);
        world.store("a/gcgroup.kill", ROOT, "1").unwrap();
        let directory = asked(&world);
        let doomed = world.tree.doomed(directory[0]);
        assert_eq!(doomed.processes, HashSet::from([one, two]));
        let groups = ["a", "a/b"].map(|path| match resolve(&world.tree, path) {
            Ok(Node::Dir(directory)) => match directory.whose() {
                Entity::Group(id) => id,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        });
        assert_eq!(doomed.groups, HashSet::from(groups));
        assert!(groups.iter().all(|group| world.tree.is_group(*group)));
        world.store("102/gcgroup.kill", OWNER, "1").unwrap();
        let doomed = world.tree.doomed(asked(&world)[0]);
        assert_eq!(doomed.processes, HashSet::from([other]));
        assert_eq!(doomed.groups, HashSet::new());
    }

    #[test]
    fn sigterm_is_asked_for_by_its_name() {
        let world = World::new(1);
        world.join(100);
        asked(&world);
        world.store("100/gcgroup.kill", ROOT, "SIGTERM").unwrap();
        let killers = world
            .take_notices()
            .into_iter()
            .filter_map(|notice| match notice {
                Notice::KillAsked(_, killer) => Some(killer.cause),
                _ => None,
            });
        assert_eq!(killers.collect::<Vec<_>>(), [KillCause::Terminate(ROOT.pid)]);
    }

    #[test]
    fn process_that_has_become_roots_is_no_longer_its_users() {
        let world = World::new(1);
        world.join(100);
        world.group("a");
        let given = (Some(OWNER.uid), Some(OWNER.gid));
        let Ok(Node::Dir(group)) = resolve(&world.tree, "a") else {
            panic!("no group")
        };
        let given = world.tree.set_access(group, ROOT, given, None);
        world.tree.finish(given.unwrap());
        asked(&world);
        become_root(100);
        for (file, value) in [
            ("100/gcgroup.kill", "1"),
            ("100/compute.freeze", "1"),
            ("100/gcgroup.suspend", "1"),
            ("100/0/memory.limit", "1"),
            ("a/gcgroup.procs", "100"),
        ] {
            let errno = world.store(file, OWNER, value).unwrap_err().errno();
            assert!([libc::EACCES, libc::EPERM].contains(&errno), "{file}");
        }
        assert_eq!(asked(&world), []);
        world.store("100/gcgroup.kill", ROOT, "1").unwrap();
        assert_eq!(asked(&world).len(), 1);
    }

    #[test]
    fn kill_by_another_user_or_of_another_value_asks_nothing() {
        let world = World::new(1);
        world.join(100);
        asked(&world);
        for value in ["0", "2", "", "-1", "max", "1 1", "yes", "01"] {
            let error = world.store("100/gcgroup.kill", ROOT, value).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{value:?}");
        }
        let error = world.store("100/gcgroup.kill", OTHER_USER, "1").unwrap_err();
        assert_eq!(error.errno(), libc::EACCES);
        assert_eq!(asked(&world), []);
        assert!(resolve(&world.tree, "gcgroup.kill").is_err(), "not at the root");
        assert!(
            resolve(&world.tree, "100/0/gcgroup.kill").is_err(),
            "not on one device"
        );
    }
}
