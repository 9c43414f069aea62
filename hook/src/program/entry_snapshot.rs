//! Snapshots of threads that are inside submissions.

use std::sync::atomic::Ordering::Acquire;

use gcgroup_abi::Submission;

use super::slot::Bound;

/// Snapshot of a thread that was inside submissions.
#[derive(Debug)]
pub(crate) struct EntrySnapshot {
    /// Address of its slot; slots never move.
    slot: usize,
    /// Entry counters by kind of submission.
    entered: [u64; Submission::COUNT],
}

impl EntrySnapshot {
    /// Takes a snapshot; `None` if the thread is not inside a submission.
    pub(crate) fn of(bound: Bound<'_>) -> Option<Self> {
        bound.is_inside().then(|| Self {
            slot: std::ptr::from_ref(bound.entrance).addr(),
            entered: bound.entrance.entered.each_ref().map(|count| count.load(Acquire)),
        })
    }

    /// Returns whether the slot's thread may still be inside one of these submissions.
    pub(crate) fn is_still(&self, bound: Bound<'_>) -> bool {
        self.is_inside(bound) && !bound.is_dead()
    }

    fn is_inside(&self, bound: Bound<'_>) -> bool {
        // The thread may be inside a later submission: the exit counters have reached the recorded entries.
        let exited = bound.exits().map(|exited| exited.load(Acquire));
        let is_behind = |(exited, entered): (u64, &u64)| exited.wrapping_sub(*entered) >= 1 << 63;
        self.slot == std::ptr::from_ref(bound.entrance).addr()
            && bound.is_inside()
            && exited.zip(&self.entered).any(is_behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;
    use crate::shared::device::LocalDevice;
    use gcgroup_abi::OTHER_DEVICE;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn inside_submission_ended_is_out_despite_later_ones() {
        let program = Program::of_test(gcgroup_abi::NO_LIMIT);
        let local = LocalDevice::of(0).unwrap();
        let bound = program.slots.of_test(program.session, local, OTHER_DEVICE);
        assert!(EntrySnapshot::of(bound).is_none());
        let entered = &bound.entrance.entered[Submission::Copy as usize];
        let exited = bound.thread.exited(Submission::Copy);
        entered.store(5, Relaxed);
        exited.store(4, Relaxed);
        let inside = EntrySnapshot::of(bound).unwrap();
        assert!(inside.is_inside(bound));
        entered.store(6, Relaxed);
        exited.store(5, Relaxed);
        assert!(!inside.is_inside(bound), "this is a later submission");
        // The thread has withdrawn its entry, to wait at its gate.
        entered.store(4, Relaxed);
        exited.store(4, Relaxed);
        assert!(!inside.is_inside(bound));
    }
}
