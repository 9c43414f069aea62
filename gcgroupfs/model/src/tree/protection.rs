//! Protection of memory by `memory.min` and `memory.low`, with the meaning of cgroup v2, and the order in
//! which memory is moved out.
//!
//! A protection is effective as far as the groups above have it as well: each passes its own down, to its
//! children and processes in proportion to what they hold within their own values, and the rest in proportion
//! to what else they hold (`effective_protection` in the kernel's mm/page_counter.c, with
//! `memory_recursiveprot`). That of a group for which room is made is not considered, nor those above it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::process::Process;
use super::settings::{MEMORY_LOW, MEMORY_MIN, Setting};
use super::{Edit, Entity, GroupId, ProcessId, State};
use crate::error::{Error, Result};

/// A class of memory, by its protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Beyond `memory.low` and `memory.min`.
    Unprotected,
    /// Within `memory.low`, beyond `memory.min`.
    Low,
}

/// Classes in the order in which memory is moved out: nothing of one before all of those above it has been
/// asked for. Memory within `memory.min` is in none of them. Within a class the lowest priority is first,
/// and among equals the process with the most memory of that class.
const ORDER: &[Class] = &[Class::Unprotected, Class::Low];

/// Bytes of one process that are protected on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Protected {
    pub(super) min: u64,
    pub(super) low: u64,
}

impl Protected {
    /// Returns the bytes of a class among `movable` ones of a process that holds `held`.
    fn of_class(self, class: Class, held: u64, movable: u64) -> u64 {
        let beyond = |protected: u64| movable.min(held.saturating_sub(protected));
        let unprotected = beyond(self.low.max(self.min));
        match class {
            Class::Unprotected => unprotected,
            Class::Low => beyond(self.min) - unprotected,
        }
    }
}

/// A process that can move memory out of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) id: ProcessId,
    pub(super) device: usize,
    pub(super) priority: u32,
    /// Bytes on the device.
    pub(super) held: u64,
    /// Those that can be moved.
    pub(super) movable: u64,
    pub(super) protected: Protected,
}

/// Returns how many bytes each source is asked for so that it is `wanted` together, or all that is not
/// protected by `memory.min`: in the order in which they are asked, each source once.
pub(super) fn choose(sources: &[Source], wanted: u64) -> Vec<(Source, u64)> {
    let (mut left, mut chosen): (u64, Vec<(Source, u64)>) = (wanted, Vec::new());
    for class in ORDER {
        let of_class = |source: &Source| {
            let bytes = source.protected.of_class(*class, source.held, source.movable);
            (bytes != 0).then_some((*source, bytes))
        };
        let mut some: Vec<_> = sources.iter().filter_map(of_class).collect();
        some.sort_by_key(|(source, bytes)| Reverse((source.priority, *bytes)));
        for (source, bytes) in some {
            let bytes = bytes.min(left);
            left -= bytes;
            match chosen
                .iter_mut()
                .find(|(one, _)| (one.id, one.device) == (source.id, source.device))
            {
                _ if bytes == 0 => {}
                Some((_, before)) => *before += bytes,
                None => chosen.push((source, bytes)),
            }
        }
    }
    chosen
}

impl State {
    /// Returns what is protected of the processes in a group, or of all, on a device. Processes without
    /// protection are not listed.
    pub(super) fn protected(&self, within: Option<GroupId>, device: usize) -> BTreeMap<ProcessId, Protected> {
        let mut all = BTreeMap::new();
        for (setting, place) in [
            (MEMORY_MIN, Some(device)),
            (MEMORY_MIN, None),
            (MEMORY_LOW, Some(device)),
            (MEMORY_LOW, None),
        ] {
            if !self.is_protecting(setting, place) {
                continue;
            }
            let mut found = Vec::new();
            self.pass_down(within, u64::MAX, (setting, place), &mut found);
            for (id, bytes) in found {
                let Some(process) = self.processes.get(&id) else {
                    continue;
                };
                // The part on this device of what is protected on all together.
                let (here, everywhere) = (
                    self.current_of(process, Some(device)),
                    self.current_of(process, None),
                );
                let bytes = match place {
                    Some(_) => bytes,
                    None => share(bytes, here, everywhere),
                };
                let protected: &mut Protected = all.entry(id).or_default();
                let word = match *setting == *MEMORY_MIN {
                    true => &mut protected.min,
                    false => &mut protected.low,
                };
                *word = (*word).max(bytes);
            }
        }
        all
    }

    /// Returns whether any group or process has a value for a place.
    fn is_protecting(&self, setting: &Setting, place: Option<usize>) -> bool {
        let uuid = place.and_then(|place| self.uuid(place));
        if place.is_some() && uuid.is_none() {
            return false;
        }
        let groups = self.groups.values().map(|group| &group.settings);
        let processes = self.processes.values().map(|process| &process.settings);
        let mut all = groups.chain(processes);
        all.any(|settings| {
            settings
                .own(setting, uuid)
                .is_some_and(|value| value.number() != 0)
        })
    }

    pub(super) fn uuid(&self, device: usize) -> Option<&str> {
        self.devices.get(device).map(|device| device.uuid_text.as_str())
    }

    /// Divides the protection `above` of a group, or of the root, among its processes and child groups.
    /// Returns what is effective for each process.
    fn pass_down(
        &self,
        within: Option<GroupId>,
        above: u64,
        (setting, place): (&'static Setting, Option<usize>),
        found: &mut Vec<(ProcessId, u64)>,
    ) {
        let uuid = place.and_then(|place| self.uuid(place));
        let group = within.and_then(|id| self.groups.get(&id));
        let children = group.map_or(&self.top, |group| &group.children);
        let groups = children.values().filter_map(|id| {
            let own = self.groups.get(id)?.settings.of_group(setting, uuid).number();
            Some((Entity::Group(*id), own, self.group_current(*id, place)))
        });
        let members: Vec<&Process> = match group {
            Some(group) => group
                .members
                .iter()
                .filter_map(|id| self.processes.get(id).map(AsRef::as_ref))
                .collect(),
            None => self
                .processes
                .values()
                .map(AsRef::as_ref)
                .filter(|process| process.group.is_none())
                .collect(),
        };
        let processes = members.into_iter().map(|process| {
            let own = process.settings.get(setting, uuid).number();
            (Entity::Process(process.id), own, self.current_of(process, place))
        });
        let all: Vec<(Entity, u64, u64)> = groups.chain(processes).collect();
        let sum = |of: fn(&(Entity, u64, u64)) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
        let claimed = sum(|(_, own, held)| *own.min(held));
        let held = sum(|(_, _, held)| *held);
        for (entity, own, has) in &all {
            let own = *own.min(has);
            let bytes = match above {
                // Nothing is above the root, and what is above the group does not count.
                u64::MAX => own,
                above if claimed > above => share(above, own, claimed),
                above => own + share(above.min(held) - claimed, has - own, held - claimed),
            };
            match *entity {
                Entity::Group(id) if bytes != 0 => self.pass_down(Some(id), bytes, (setting, place), found),
                Entity::Process(id) if bytes != 0 => found.push((id, bytes)),
                _ => {}
            }
        }
    }
}

/// Returns `bytes` times `part` divided by `whole`.
fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

impl Edit<'_> {
    /// Checks a value of `memory.min` or `memory.low`.
    ///
    /// # Errors
    /// `EPERM` if a user other than root protects memory that no group above bounds.
    pub(super) fn check_protection(&self, setting: &'static Setting, bytes: u64) -> Result<()> {
        let state = self.state();
        let above = match self.directory().whose() {
            Entity::Process(id) => state.processes.get(&id).and_then(|process| process.group),
            Entity::Group(id) => state.groups.get(&id).and_then(|group| group.parent),
            Entity::Root => None,
        };
        let is_bounded = above.is_some() || self.settings()?.root(setting, self.uuid().as_deref()).is_some();
        if bytes != 0 && !is_bounded && !state.is_root(self.caller()) {
            return Err(Error::NotYours(
                "only root can protect memory outside of a group that root protects",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::tree::fixture::{OWNER, ROOT, World};

    const GIB: u64 = 1 << 30;

    fn source(id: u64, priority: u32, held: u64, (min, low): (u64, u64)) -> Source {
        Source {
            id: ProcessId(id),
            device: 0,
            priority,
            held,
            movable: held,
            protected: Protected { min, low },
        }
    }

    fn asked(sources: &[Source], wanted: u64) -> Vec<(u64, u64)> {
        choose(sources, wanted)
            .into_iter()
            .map(|(source, bytes)| (source.id.0, bytes))
            .collect()
    }

    /// The properties that decide, each pair of which is compared with the other one first in the list.
    #[test]
    fn order_is_by_protection_then_priority_then_size() {
        let plain = source(1, 8, 10, (0, 0));
        let rows = [
            ("lower priority", source(2, 9, 10, (0, 0)), plain),
            ("more memory", source(2, 8, 11, (0, 0)), plain),
            ("lower priority, less memory", source(2, 9, 5, (0, 0)), plain),
            ("beyond low before within", plain, source(2, 9, 10, (0, 10))),
            (
                "beyond low before within, less memory",
                plain,
                source(2, 8, 20, (0, 20)),
            ),
            (
                "both within low: lower priority",
                source(2, 9, 10, (0, 10)),
                source(1, 8, 10, (0, 10)),
            ),
            (
                "both within low: more memory",
                source(2, 8, 11, (0, 11)),
                source(1, 8, 10, (0, 10)),
            ),
            (
                "within low before within min",
                source(2, 0, 10, (0, 10)),
                source(1, 15, 10, (10, 0)),
            ),
            ("beyond min before within", plain, source(2, 15, 10, (10, 0))),
        ];
        for (why, first, second) in rows {
            for sources in [[first, second], [second, first]] {
                assert_eq!(asked(&sources, 1), [(first.id.0, 1)], "{why}");
                let all: u64 = sources.iter().map(|one| one.held - one.protected.min).sum();
                let got: u64 = asked(&sources, u64::MAX).iter().map(|(_, bytes)| bytes).sum();
                assert_eq!(got, all, "{why}: all but what memory.min protects");
            }
        }
    }

    #[test]
    fn nothing_within_low_is_taken_before_all_beyond_it() {
        let sources = [source(1, 15, 10, (2, 6)), source(2, 0, 10, (0, 7))];
        assert_eq!(asked(&sources, 4), [(1, 4)]);
        assert_eq!(asked(&sources, 7), [(1, 4), (2, 3)]);
        assert_eq!(asked(&sources, 8), [(1, 5), (2, 3)]);
        assert_eq!(asked(&sources, 12), [(1, 8), (2, 4)]);
        assert_eq!(asked(&sources, 100), [(1, 8), (2, 10)]);
        let pinned = Source {
            movable: 3,
            ..source(1, 8, 10, (8, 9))
        };
        assert_eq!(
            asked(&[pinned], 100),
            [(1, 2)],
            "what cannot move counts as protected first"
        );
    }

    fn holding(world: &World, pid: u32, group: &str, bytes: u64) -> ProcessId {
        let id = world.join(pid);
        world.usage(id).devices[0].memory_current.store(bytes, Relaxed);
        if !group.is_empty() {
            world.group(group);
            world
                .store(&format!("{group}/gcgroup.procs"), ROOT, &pid.to_string())
                .unwrap();
        }
        id
    }

    fn protected(world: &World, within: Option<&str>, id: ProcessId) -> (u64, u64) {
        let within = within.map(|path| world.group(path));
        let all = world.tree.state.lock().protected(within, 0);
        let Protected { min, low } = all.get(&id).copied().unwrap_or_default();
        (min / GIB, low / GIB)
    }

    #[test]
    fn protection_of_a_group_is_passed_down_in_proportion() {
        let world = World::new(2);
        let (one, other) = (holding(&world, 1, "a/b", 3 * GIB), holding(&world, 2, "a/c", GIB));
        let free = holding(&world, 3, "", 2 * GIB);
        assert_eq!(protected(&world, None, one), (0, 0));
        world.store("a/memory.min", ROOT, "2G").unwrap();
        world.store("a/0/memory.low", ROOT, "4G").unwrap();
        // The groups below claim nothing: by what they hold, 3 to 1.
        assert_eq!(
            (protected(&world, None, one), protected(&world, None, other)),
            ((1, 3), (0, 1))
        );
        // A claim is served first.
        world.store("a/c/memory.min", ROOT, "1G").unwrap();
        assert_eq!(
            (protected(&world, None, one).0, protected(&world, None, other).0),
            (1, 1)
        );
        // Claims beyond what the group has are cut in proportion.
        world.store("a/b/memory.min", ROOT, "3G").unwrap();
        assert_eq!(
            (protected(&world, None, one).0, protected(&world, None, other).0),
            (1, 0)
        );
        assert_eq!(protected(&world, None, free), (0, 0));
        world.store("3/memory.low", ROOT, "1G").unwrap();
        assert_eq!(protected(&world, None, free), (0, 1));
        // For room within the group its own value and those above do not count.
        assert_eq!(protected(&world, Some("a"), one).0, 3);
        assert_eq!(protected(&world, Some("a/b"), one).0, 0);
    }

    #[test]
    fn only_root_protects_memory_at_the_top() {
        let world = World::new(1);
        let id = world.group("a");
        world.join(5);
        let directory = crate::tree::Directory::group(id);
        let given = world
            .tree
            .set_access(directory, ROOT, (Some(OWNER.uid), None), None);
        world.tree.finish(given.unwrap());
        for path in ["a/memory.min", "a/0/memory.low", "5/memory.min"] {
            assert_eq!(world.store(path, OWNER, "1G").unwrap_err().errno(), 1, "{path}");
            world.store(path, OWNER, "0").unwrap();
        }
        world.store("a/memory.min", ROOT, "1G").unwrap();
        assert_eq!(world.store("a/memory.min", OWNER, "2G").unwrap_err().errno(), 1);
        world.store("a/memory.min", OWNER, "500M").unwrap();
    }
}
