//! Division of one quota among the processes of equal parts of the GPU that want it at the same time.
//!
//! A quota is used by whichever of its processes runs, and a running kernel is not interrupted. So a process
//! with long kernels would use what is left of the quota and more, and all would repay that. While a quota
//! keeps being used up, a process that has had more of it than another one of equal part waits until the
//! other has caught up, or until the rest of the period is just long enough to use what is left.

use crate::arbiter::parts::is_near;

/// A process that wants GPU time under the quota.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sharer {
    process: u64,
    /// Its part of the GPU.
    part: u64,
    /// GPU time charged since the quota began to be used up, nanoseconds.
    used: u64,
    wants: bool,
    /// Whether it wanted the GPU in this period.
    has_wanted: bool,
}

/// The processes that share a quota.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sharers(Vec<Sharer>);

impl Sharers {
    /// Records that no process wants the GPU, until [`Self::want`] is called.
    pub(super) fn rest(&mut self) {
        for sharer in &mut self.0 {
            sharer.wants = false;
        }
    }

    /// Records that a process wants the GPU. A new one begins beside the one that has had least.
    pub(super) fn want(&mut self, process: u64, part: u64) {
        if let Some(sharer) = self.0.iter_mut().find(|one| one.process == process) {
            (sharer.part, sharer.wants, sharer.has_wanted) = (part, true, true);
            return;
        }
        let equal = self.0.iter().filter(|one| is_near(one.part, part));
        self.0.push(Sharer {
            process,
            part,
            used: equal.map(|one| one.used).min().unwrap_or(0),
            wants: true,
            has_wanted: true,
        });
    }

    pub(super) fn charge(&mut self, process: u64, nsec: u64) {
        if let Some(sharer) = self.0.iter_mut().find(|one| one.process == process) {
            sharer.used = sharer.used.saturating_add(nsec);
        }
    }

    /// Begins a period after one in which the quota was used up, or was not (`is_scarce`).
    pub(super) fn begin(&mut self, is_scarce: bool) {
        self.0.retain(|one| one.has_wanted);
        for sharer in &mut self.0 {
            sharer.has_wanted = sharer.wants;
            if !is_scarce {
                sharer.used = 0;
            }
        }
    }

    /// Returns by how many nanoseconds a process has had more than another one of equal part that wants the
    /// GPU.
    pub(super) fn ahead(&self, process: u64) -> u64 {
        let Some(own) = self.0.iter().find(|one| one.process == process) else {
            return 0;
        };
        let others = self
            .0
            .iter()
            .filter(|one| one.wants && is_near(one.part, own.part));
        others
            .map(|one| own.used.saturating_sub(one.used))
            .max()
            .unwrap_or(0)
    }

    /// Returns the processes that want the GPU.
    pub(super) fn wanting(&self) -> impl Iterator<Item = u64> {
        self.0.iter().filter(|one| one.wants).map(|one| one.process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_ahead_only_of_equals_that_want_the_gpu() {
        let mut sharers = Sharers::default();
        sharers.want(1, 8);
        sharers.charge(1, 500);
        sharers.want(2, 8);
        assert_eq!(sharers.ahead(1), 0, "a new one begins beside it");
        sharers.want(3, 9);
        sharers.charge(1, 30);
        sharers.charge(4, 1);
        assert_eq!([1, 2, 3, 4].map(|process| sharers.ahead(process)), [30, 0, 0, 0]);
        sharers.rest();
        sharers.want(1, 8);
        assert_eq!(sharers.ahead(1), 0);
        sharers.begin(true);
        sharers.want(2, 8);
        assert_eq!(sharers.ahead(1), 30, "it wanted it in the last period");
        sharers.begin(false);
        assert_eq!(sharers.ahead(1), 0);
    }
}
