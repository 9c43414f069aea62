//! What the model tells others.

use super::{GroupId, Place, ProcessId, Saved};

/// What has happened that the model cannot act on itself. Delivered after the lock has been released, so two
/// notices may overtake each other: take them as "look again", and look in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A process's directory has appeared.
    Joined {
        id: ProcessId,
        pid: u32,
        start_time: u64,
    },
    /// A process's directory has gone.
    Left {
        id: ProcessId,
        pid: u32,
        start_time: u64,
    },
    /// What a program has counted is its groups' and the root's from now on: write down that it is its own no more, and then
    /// that it is theirs, of which the same call tells. What else is to be kept of the process, if it does not register
    /// again.
    Departed {
        pid: u32,
        start_time: u64,
        saved: Box<Saved>,
    },
    /// A group's directory has appeared.
    Made {
        id: GroupId,
        parent: Place,
        name: String,
    },
    /// A group's directory has gone.
    Removed {
        id: GroupId,
        parent: Place,
        name: String,
    },
    /// What is kept of the process is not what it was: write it down.
    SettingsChanged(ProcessId),
    /// What is kept of the group, or whether there is one, is not what it was: write it down.
    GroupChanged(GroupId),
    /// What is kept of the root is not what it was: write it down.
    RootChanged,
    /// The control block has something for the process's helper thread: ring its doorbell, and wake the waiters
    /// of those of its gates that do not hold any more.
    Ring(ProcessId),
    /// The process has rung: something in its usage block is worth a look.
    Rung(ProcessId),
    /// A process's request for more on a device has been answered: wake who waits for it.
    Answered { id: ProcessId, device: usize },
    /// The contents of the process's `*.events` may have changed.
    Events(ProcessId),
    /// The contents of the group's `*.events` may have changed.
    GroupEvents(GroupId),
    /// The contents of the root's `gcgroup.events` have changed.
    RootEvents,
    /// Somebody has read the GPU time of these.
    Watched(Vec<ProcessId>),
    /// Somebody wants to know who uses the devices past the hooks.
    AuditAsked,
    /// Somebody wants to know whether there are new devices.
    DevicesAsked,
}

/// Takes [`Notice`]s on whatever thread caused them. Must not wait, or say that it may.
pub trait Listener: Send + Sync {
    fn notice(&self, notice: &Notice);

    /// Of one event, in their order.
    fn notices(&self, notices: &[Notice]) {
        notices.iter().for_each(|notice| self.notice(notice));
    }

    /// Whether it may wait, for a disk. Then it is told on a thread that has time for that, and perhaps of records alone.
    fn may_wait(&self) -> bool {
        false
    }
}
