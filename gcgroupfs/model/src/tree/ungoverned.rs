//! Processes of a group that are not registered and may use the GPU: such a group is not frozen.
//!
//! A process that executes another program is no member of its group until the new program's hook registers,
//! which it does before its first submission. Meanwhile it cannot submit work. But a hook that has asked to
//! be registered and got no answer eventually lets everything through. So the server reports each process
//! whose hook has asked, until it is registered.

use super::{Group, GroupId, State, Tree};

impl Tree {
    /// Counts the process with this pid and start time in `group`, which is held for it, as one that may use
    /// the GPU. The group and those above are not frozen until [`clear_ungoverned`](Self::clear_ungoverned).
    pub fn set_ungoverned(&self, process: (u32, u64), group: GroupId) {
        self.update(|state, notices| {
            if state.ungoverned.insert(process, group).is_none() {
                state.change_standing(group, |group| group.nr_ungoverned += 1, notices);
            }
        });
    }

    /// Stops counting a process that is registered, has ended, or can submit nothing before it is registered.
    /// Call it before its group is released; no effect on a process that is not counted.
    pub fn clear_ungoverned(&self, process: (u32, u64)) {
        self.update(|state, notices| {
            if let Some(group) = state.ungoverned.remove(&process) {
                let less = |group: &mut Group| group.nr_ungoverned = group.nr_ungoverned.saturating_sub(1);
                state.change_standing(group, less, notices);
            }
        });
    }
}

impl State {
    /// Returns the lowest pid of such processes in a group or below it.
    pub(super) fn first_ungoverned(&self, group: GroupId) -> Option<u32> {
        let mut all = self.ungoverned.iter();
        let found = all.find(|(_, within)| self.chain(Some(**within)).contains(&group));
        found.map(|((pid, _), _)| *pid)
    }
}
