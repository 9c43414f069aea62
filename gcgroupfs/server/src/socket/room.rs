//! How the daemon's descriptors are divided between purposes and users.
//!
//! A shared limit that one user could exhaust would keep all others out. So unregistered connections replace
//! those of the user with the most, and a quarter of the room for processes is reserved for users with few.

use gcgroupfs_model::user_counts::UserCounts;
use nix::sys::resource::{Resource, getrlimit};

/// Assumed if the kernel does not report the limit.
const FEWEST: u64 = 1024;

/// Processes that a user may register while less than a quarter of the room is left.
const FEW: usize = 8;

/// Maximum number of registered processes of root, in containers too.
const MAX_OF_ROOT: usize = 4096;

/// Maximum number of registered processes of another user: everybody's lists show them.
const MAX_PER_UID: usize = 1024;

/// Returns how many descriptors may be open (`RLIMIT_NOFILE`).
fn nr_descriptors() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(FEWEST, |(soft, _)| soft);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Returns the maximum number of connections that do not belong to registered processes: half of the
/// descriptors.
pub(super) fn for_unregistered() -> usize {
    nr_descriptors() / 2
}

/// Number of each user's processes that the daemon watches.
#[derive(Debug)]
pub(super) struct Processes {
    most: usize,
    counts: UserCounts,
}

impl Processes {
    /// Uses three eighths of the descriptors, two for each process: a connection and a pidfd. The last eighth
    /// is for files.
    pub(super) fn new() -> Self {
        Self::at_most(nr_descriptors() / 8 * 3 / 2)
    }

    fn at_most(most: usize) -> Self {
        Self {
            most,
            counts: UserCounts::default(),
        }
    }

    /// Returns whether another process of the user may register.
    pub(super) fn has_room(&self, uid: u32) -> bool {
        let own = self.counts.of(uid);
        let most = if own < FEW {
            self.most
        } else {
            self.most - self.most / 4
        };
        let own_most = if uid == 0 { MAX_OF_ROOT } else { MAX_PER_UID };
        own < own_most && self.counts.total() < most
    }

    /// Counts one more process of the user.
    pub(super) fn add(&mut self, uid: u32) {
        self.counts.add(uid);
    }

    /// Counts one process of the user less.
    pub(super) fn remove(&mut self, uid: u32) {
        self.counts.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers processes until there is no room; returns how many.
    fn fill(processes: &mut Processes, uid: u32) -> usize {
        let mut count = 0;
        while processes.has_room(uid) {
            processes.add(uid);
            count += 1;
        }
        count
    }

    #[test]
    fn users_with_many_leave_a_quarter_to_those_with_few() {
        let mut processes = Processes::at_most(200);
        assert_eq!(fill(&mut processes, 1), 150);
        for uid in 2..7 {
            assert_eq!(fill(&mut processes, uid), FEW);
        }
        assert_eq!(processes.counts.total(), 190);
        processes.remove(1);
        assert!(!processes.has_room(1), "its room is not left yet");
    }

    #[test]
    fn user_never_has_more_than_its_maximum() {
        let mut processes = Processes::at_most(1 << 20);
        assert_eq!(fill(&mut processes, 1), MAX_PER_UID);
        assert!(processes.has_room(2));
        for _ in 0..MAX_PER_UID {
            processes.remove(1);
        }
        assert!(processes.counts.is_empty());
    }
}
