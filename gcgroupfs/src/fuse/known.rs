//! The events files that the kernel has looked up and not forgotten. Whoever watches a file has had it looked up
//! first, and keeps the kernel from forgetting it: so of no other file anybody need be told.

use std::collections::HashMap;

use fuser::INodeNo;
use parking_lot::Mutex;

use super::inode;

#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<u64, File>>);

#[derive(Debug, Default)]
struct File {
    /// Look-ups that the kernel has not taken back.
    nr_lookups: u64,
    /// The number of changes that watchers know of.
    told: u64,
}

impl Known {
    /// The kernel is being told of the file, after so many changes.
    pub(super) fn look_up(&self, INodeNo(ino): INodeNo, nr_changes: u64) {
        let mut files = self.0.lock();
        let file = files.entry(ino).or_insert(File {
            nr_lookups: 0,
            told: nr_changes,
        });
        file.nr_lookups = file.nr_lookups.saturating_add(1);
    }

    /// The kernel takes so many look-ups back.
    pub(super) fn forget(&self, INodeNo(ino): INodeNo, nr_lookups: u64) {
        let mut files = self.0.lock();
        let Some(file) = files.get_mut(&ino) else { return };
        file.nr_lookups = file.nr_lookups.saturating_sub(nr_lookups);
        if file.nr_lookups == 0 {
            files.remove(&ino);
        }
    }

    /// The files of an entity.
    pub(super) fn of(&self, entity: u64) -> Vec<INodeNo> {
        let files = self.0.lock();
        let inos = files.keys().copied().map(INodeNo);
        inos.filter(|ino| inode::entity(*ino) == entity).collect()
    }

    /// Notes that watchers will be told of so many changes; whether these are more than they knew of.
    pub(super) fn tell(&self, INodeNo(ino): INodeNo, nr_changes: u64) -> bool {
        let mut files = self.0.lock();
        let file = files.get_mut(&ino).filter(|file| file.told < nr_changes);
        file.map(|file| file.told = nr_changes).is_some()
    }

    /// The files of an entity that has gone, which are not kept in mind any longer.
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
    fn a_file_is_known_from_the_first_look_up_until_the_last_is_taken_back() {
        let (known, ino) = (Known::default(), INodeNo(5 << 15 | 3));
        assert!(!known.tell(ino, 1));
        known.look_up(ino, 1);
        known.look_up(ino, 2);
        assert!(!known.tell(ino, 1), "it was so when it was looked up");
        assert!(known.tell(ino, 2));
        assert!(!known.tell(ino, 2));
        assert_eq!(known.of(5), [ino]);
        known.forget(ino, 1);
        assert!(known.tell(ino, 3));
        known.forget(ino, 5);
        assert!(!known.tell(ino, 4));
        known.look_up(ino, 0);
        assert_eq!(known.take(5), [ino]);
        assert!(known.of(5).is_empty());
    }
}
