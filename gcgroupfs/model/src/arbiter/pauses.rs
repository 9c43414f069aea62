//! Pauses between the work of a process, from which the end of the next one is predicted.

use super::policy::Time;

/// Number of pauses that are remembered, and of those without which nothing is predicted.
const KEPT: usize = 16;
const FEWEST: usize = 4;

/// Shortest time that is given to others within a pause, nanoseconds: in less, the GPU would hardly be used.
const SHORTEST: u64 = 400_000;

/// Lengths of a process's last pauses, nanoseconds, the oldest one at `next`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pauses {
    last: [u64; KEPT],
    number: usize,
    next: usize,
}

/// Expectation of when a process without work has some again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Work may come at any time until then: the GPU is kept free for it.
    Soon(Time),
    /// No work is expected before that time.
    Later(Time),
    /// Nothing.
    Unknown,
}

impl Pauses {
    pub(super) fn add(&mut self, pause: u64) {
        self.last[self.next] = pause;
        self.next = (self.next + 1) % KEPT;
        self.number = (self.number + 1).min(KEPT);
    }

    /// Returns what is expected at `now` of a process without work since `since`: that this pause is about as
    /// long as one of the last. The GPU is kept free for at most `most` nanoseconds of a pause.
    pub(super) fn outlook(&self, since: Time, now: Time, most: u64) -> Outlook {
        let age = now.saturating_sub(since);
        let mut known = self.last;
        let known = known.get_mut(..self.number).unwrap_or_default();
        known.sort_unstable();
        let mut left = most;
        // The end of the time, since the pause began, that is examined.
        let mut end = 0;
        let first = [most].into_iter().filter(|_| self.number < FEWEST);
        let each = (0..known.len()).filter_map(|at| expected(known.get(at..)?));
        let expected = first.map(|most| (0, most)).chain(each);
        for (from, to) in expected {
            if from >= end + SHORTEST {
                if age < from {
                    return Outlook::Later(since + from);
                }
                end = from;
            }
            if to <= end {
                continue;
            }
            let kept = (to - end).min(left);
            (left, end) = (left - kept, end + kept);
            if age < end {
                return Outlook::Soon(since + end);
            }
            if left == 0 {
                break;
            }
        }
        Outlook::Unknown
    }
}

/// Returns the times, since the beginning of a pause, between which it ends if it is about as long as the
/// first of these earlier ones, which are sorted. If the third is hardly longer, it counts in place of the
/// first: work that comes that much earlier waits no longer than that.
fn expected(pauses: &[u64]) -> Option<(u64, u64)> {
    let pause = *pauses.first()?;
    let early = (pause / 64).clamp(20_000, 250_000);
    let late = (pause / 8).clamp(100_000, 1_000_000);
    let third = pauses.get(2).filter(|third| **third <= pause + late / 2);
    let from = third.unwrap_or(&pause).saturating_sub(early);
    Some((from, pause.saturating_add(late)))
}

#[cfg(test)]
mod tests {
    use super::Outlook::{Later, Soon, Unknown};
    use super::*;

    const USEC: u64 = 1_000;
    const MOST: u64 = 1_000 * USEC;

    fn pauses(usec: &[u64]) -> Pauses {
        let mut pauses = Pauses::default();
        for pause in usec.iter().cycle().take(KEPT) {
            pauses.add(pause * USEC);
        }
        pauses
    }

    /// Returns the outlook so many microseconds after the work ended, in microseconds after that.
    fn after(pauses: &Pauses, age: u64) -> Outlook {
        let since = 7_000_000 * USEC;
        let rest = |until: Time| (until - since) / USEC;
        match pauses.outlook(since, since + age * USEC, MOST) {
            Soon(until) => Soon(rest(until)),
            Later(until) => Later(rest(until)),
            Unknown => Unknown,
        }
    }

    #[test]
    fn nothing_known_keeps_the_gpu_free_for_the_longest_time() {
        let mut pauses = Pauses::default();
        pauses.add(9 * MOST);
        assert_eq!(
            [0, 999, 1000].map(|age| after(&pauses, age)),
            [Soon(1000), Soon(1000), Unknown]
        );
    }

    #[test]
    fn short_pauses_are_waited_for() {
        let pauses = pauses(&[300, 310]);
        assert_eq!(
            [0, 300, 410].map(|age| after(&pauses, age)),
            [Soon(400), Soon(400), Unknown]
        );
    }

    #[test]
    fn long_pause_is_given_until_it_may_end() {
        let pauses = pauses(&[3200]);
        let expected = [Later(3150), Soon(3600), Soon(3600), Unknown];
        assert_eq!([0, 3150, 3599, 3600].map(|age| after(&pauses, age)), expected);
    }

    #[test]
    fn pauses_of_two_lengths_are_waited_for_one_after_the_other() {
        let pauses = pauses(&[20, 20, 20, 3200]);
        let expected = [Soon(120), Later(3150), Soon(3600), Unknown];
        assert_eq!([0, 120, 3150, 3600].map(|age| after(&pauses, age)), expected);
    }

    #[test]
    fn irregular_pauses_are_waited_for_up_to_the_longest_time() {
        let pauses = pauses(&[1000, 2000, 3000, 4000, 9000, 15_000, 30_000]);
        let soon = (0..40_000)
            .step_by(10)
            .filter(|age| matches!(after(&pauses, *age), Soon(_)));
        let waited = soon.count() * 10;
        assert!((990..=1010).contains(&waited), "{waited} us");
    }
}
