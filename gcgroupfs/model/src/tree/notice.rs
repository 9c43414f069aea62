//! Notices of the tree to its listeners.

use super::kill::Killer;
use super::{Directory, GroupId, ProcessId, Saved, UserChange};

/// A change that the tree cannot act on itself. Delivered after the lock has been released, so two notices
/// may overtake each other: a listener must look in the tree for the current state.
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
    /// The counts of a program belong to its groups and the root from now on. The process's record must be
    /// written without them, together with the groups' and the root's, whose notices are in the same call.
    /// `saved` is what else is kept of the process, unless it registers again.
    Departed {
        pid: u32,
        start_time: u64,
        saved: Box<Saved>,
    },
    /// A group's directory has gone.
    Removed(GroupId),
    /// The group of a job is removed, since its last process has left.
    JobEnded {
        path: String,
        /// The group's owner.
        uid: u32,
        /// KEY=VALUE pairs for the log: memory, GPU time and counts of all processes of the job.
        line: String,
    },
    /// The persistent state of the process has changed and must be written.
    SettingsChanged(ProcessId),
    /// The persistent state of the group has changed, or the group is gone; to be written.
    GroupChanged(GroupId),
    /// The persistent state of the root has changed and must be written.
    RootChanged,
    /// The control block has news for the process's helper thread: ring its bell, and wake the threads
    /// waiting at those of its gates that have opened.
    Ring(ProcessId),
    /// The process has rung: its usage block has changed.
    Rung(ProcessId),
    /// A process waits for the measurement of a new context.
    ContextMade,
    /// A process's request for a larger grant on a device, or to measure a context, has been answered: wake
    /// the waiting threads.
    Answered { id: ProcessId, device: usize },
    /// The contents of the process's `*.events` may have changed.
    Events(ProcessId),
    /// The contents of the group's `*.events` may have changed.
    GroupEvents(GroupId),
    /// The contents of the root's `*.events` have changed.
    RootEvents,
    /// The GPU time of these processes has been read.
    Watched(Vec<ProcessId>),
    /// A scan for unmanaged processes has been requested.
    AuditAsked,
    /// A search for new devices has been requested.
    DevicesAsked,
    /// Averages of pressure files are to be kept up to date.
    PressureWatched,
    /// The ends of processes are to be noticed now ([`Tree::ask_ends`](super::Tree::ask_ends)).
    EndsAsked,
    /// The process, or the processes in the group and below, are to be killed for the user with this uid: see
    /// [`Tree::doomed`](super::Tree::doomed).
    KillAsked(Directory, Killer),
    /// A process is to be suspended or resumed:
    /// see [`Tree::pending_suspensions`](super::Tree::pending_suspensions).
    SuspendAsked,
}

/// Receives [`Notice`]s on the thread that caused them. Must not wait unless [`may_wait`](Self::may_wait)
/// returns true.
pub trait Listener: Send + Sync {
    fn notice(&self, notice: &Notice);

    /// Receives the notices of one event, in order.
    fn notices(&self, notices: &[Notice]) {
        notices.iter().for_each(|notice| self.notice(notice));
    }

    /// Receives what a user has requested, once it is in force. Must not wait.
    fn user_change(&self, _: &UserChange) {}

    /// Returns whether the listener may wait for a disk. Then it is called on a thread that can wait,
    /// possibly with notices of records alone.
    fn may_wait(&self) -> bool {
        false
    }
}
