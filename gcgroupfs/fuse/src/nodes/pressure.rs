//! Triggers of pressure files, and averages that are read.

use std::time::Duration;

use fuser::{FileHandle, INodeNo, PollNotifier};

use super::Nodes;
use gcgroupfs_model::error::Result;
use gcgroupfs_model::file::Node;
use gcgroupfs_model::tree::{Change, Trigger};

impl Nodes {
    /// Adds a trigger to an open file.
    ///
    /// # Errors
    /// `EBUSY` if it has one.
    pub(super) fn add_trigger(&self, handle: FileHandle, ino: INodeNo, trigger: Trigger) -> Result<Change> {
        self.triggers.add(handle, ino, trigger)?;
        self.tree.watch_pressure();
        Ok(Change::none())
    }

    /// Registers a poller. Returns whether there was an event since the last poll; `None` if the open file
    /// has no trigger or its directory is gone.
    pub(super) fn poll_trigger(
        &self,
        handle: FileHandle,
        ino: INodeNo,
        notifier: PollNotifier,
    ) -> Option<bool> {
        self.handles.wait(handle, ino, notifier);
        let has_event = self.triggers.take_event(handle, ino)?;
        // The directory may have disappeared before the poller was registered.
        (has_event || self.node(ino).is_ok()).then_some(has_event)
    }

    /// Closes an open file and ends its trigger.
    pub(in super::super) fn close(&self, handle: FileHandle) {
        self.triggers.remove(handle);
        let Some((closed, others)) = self.handles.close_file(handle) else {
            return;
        };
        let others = others.into_iter().map(|ino| (ino, true));
        for (ino, is_polled) in [(closed, false)].into_iter().chain(others) {
            if let Ok(Node::File(directory, file)) = self.node(ino) {
                file.set_polled(&self.tree, directory, is_polled);
            }
        }
    }

    /// Returns the time until triggers must be updated, if there are any.
    pub(in super::super) fn until_triggers(&self) -> Option<Duration> {
        self.triggers.until_next(self.tree.now())
    }

    /// Updates the triggers that are due. Returns the pollers of those with an event.
    pub(in super::super) fn update_triggers(&self) -> Vec<PollNotifier> {
        let with_event = self.triggers.update(&self.tree, self.tree.now());
        let pollers = with_event.into_iter();
        pollers.filter_map(|handle| self.handles.poller(handle)).collect()
    }

    /// Keeps averages that are read up to date. Returns the time until that is due again, if any are.
    pub(in super::super) fn average_pressure(&self) -> Option<Duration> {
        self.tree.average_pressure().map(Duration::from_nanos)
    }

    /// Makes an announced change durable; waits for the disk.
    pub(in super::super) fn store(&self, change: Change) {
        self.tree.store(change);
    }
}
