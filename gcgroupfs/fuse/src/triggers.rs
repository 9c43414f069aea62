//! Triggers of open pressure files. A trigger ends with its open file description; the next daemon does not
//! know it, and its pollers see POLLERR, as where there is none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use fuser::{FileHandle, INodeNo};
use parking_lot::Mutex;

use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::tree::{Tree, Trigger};

#[derive(Debug)]
struct Held {
    ino: INodeNo,
    trigger: Trigger,
    /// Whether there was an event that no poller has seen.
    has_event: bool,
}

/// Triggers by handle.
#[derive(Debug, Default)]
pub(super) struct Triggers(Mutex<HashMap<u64, Held>>);

impl Triggers {
    /// Adds a trigger to an open file.
    ///
    /// # Errors
    /// `EBUSY` if it has one.
    pub(super) fn add(&self, FileHandle(handle): FileHandle, ino: INodeNo, trigger: Trigger) -> Result<()> {
        let held = Held {
            ino,
            trigger,
            has_event: false,
        };
        match self.0.lock().entry(handle) {
            Entry::Occupied(mut other) if other.get().ino != ino => drop(other.insert(held)),
            Entry::Occupied(_) => return Err(Error::HasTrigger),
            Entry::Vacant(vacant) => drop(vacant.insert(held)),
        }
        Ok(())
    }

    pub(super) fn remove(&self, FileHandle(handle): FileHandle) {
        self.0.lock().remove(&handle);
    }

    /// Returns whether there was an event since the last call; `None` if the open file has no trigger.
    pub(super) fn take_event(&self, FileHandle(handle): FileHandle, ino: INodeNo) -> Option<bool> {
        let mut triggers = self.0.lock();
        let held = triggers.get_mut(&handle).filter(|held| held.ino == ino)?;
        Some(std::mem::take(&mut held.has_event))
    }

    /// Returns the time until the next update is due at `now` (nanoseconds), if there are any triggers.
    pub(super) fn until_next(&self, now: u64) -> Option<Duration> {
        let triggers = self.0.lock();
        let next = triggers.values().map(|held| held.trigger.next()).min()?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    /// Updates the triggers that are due at `now` (nanoseconds). Returns the open files with an event.
    pub(super) fn update(&self, tree: &Tree, now: u64) -> Vec<FileHandle> {
        let mut triggers = self.0.lock();
        let mut with_event = Vec::new();
        triggers.retain(|handle, held| {
            if held.trigger.next() > now {
                return true;
            }
            let Ok(has_event) = tree.update_trigger(&mut held.trigger) else {
                // Its pollers are woken with those of all files of the directory.
                return false;
            };
            if has_event {
                held.has_event = true;
                with_event.push(FileHandle(*handle));
            }
            true
        });
        with_event
    }
}
