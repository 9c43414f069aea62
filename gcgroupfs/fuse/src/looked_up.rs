//! The events files whose inodes the kernel has looked up and not forgotten. A watched file has been looked
//! up and is not forgotten by the kernel, so changes of other files need no replay.

use std::collections::HashMap;

use fuser::INodeNo;
use parking_lot::Mutex;

use super::inode;

#[derive(Debug, Default)]
pub(super) struct LookedUp(Mutex<HashMap<u64, File>>);

#[derive(Debug, Default)]
struct File {
    /// Lookups not yet undone by FORGET.
    nr_lookups: u64,
    /// Number of changes that watchers know of.
    told: u64,
}

impl LookedUp {
    /// Counts a lookup of the file, whose number of changes is `nr_changes`.
    pub(super) fn look_up(&self, INodeNo(ino): INodeNo, nr_changes: u64) {
        let mut files = self.0.lock();
        let file = files.entry(ino).or_insert(File {
            nr_lookups: 0,
            told: nr_changes,
        });
        file.nr_lookups = file.nr_lookups.saturating_add(1);
    }

    /// Undoes lookups, for FORGET.
    pub(super) fn forget(&self, INodeNo(ino): INodeNo, nr_lookups: u64) {
        let mut files = self.0.lock();
        let Some(file) = files.get_mut(&ino) else { return };
        file.nr_lookups = file.nr_lookups.saturating_sub(nr_lookups);
        if file.nr_lookups == 0 {
            files.remove(&ino);
        }
    }

    /// Returns the known files of an entity.
    pub(super) fn of(&self, entity: u64) -> Vec<INodeNo> {
        let files = self.0.lock();
        let inos = files.keys().copied().map(INodeNo);
        inos.filter(|ino| inode::entity(*ino) == entity).collect()
    }

    /// Stores the number of changes that watchers will know. Returns whether it is new to them.
    pub(super) fn tell(&self, INodeNo(ino): INodeNo, nr_changes: u64) -> bool {
        let mut files = self.0.lock();
        let file = files.get_mut(&ino).filter(|file| file.told < nr_changes);
        file.map(|file| file.told = nr_changes).is_some()
    }

    /// Removes and returns the files of an entity that is gone.
    pub(super) fn take(&self, entity: u64) -> Vec<INodeNo> {
        let of = |ino: &u64| inode::entity(INodeNo(*ino)) == entity;
        let mut files = self.0.lock();
        files
            .extract_if(|ino, _| of(ino))
            .map(|(ino, _)| INodeNo(ino))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_known_from_first_lookup_to_last_forget() {
        let (looked_up, ino) = (LookedUp::default(), INodeNo(5 << 15 | 3));
        assert!(!looked_up.tell(ino, 1));
        looked_up.look_up(ino, 1);
        looked_up.look_up(ino, 2);
        assert!(!looked_up.tell(ino, 1), "known since the lookup");
        assert!(looked_up.tell(ino, 2));
        assert!(!looked_up.tell(ino, 2));
        assert_eq!(looked_up.of(5), [ino]);
        looked_up.forget(ino, 1);
        assert!(looked_up.tell(ino, 3));
        looked_up.forget(ino, 5);
        assert!(!looked_up.tell(ino, 4));
        looked_up.look_up(ino, 0);
        assert_eq!(looked_up.take(5), [ino]);
        assert!(looked_up.of(5).is_empty());
    }
}
