//! Costs of single submissions: of each function with each launch shape, and of each executable graph.

use gcgroup_abi::Submission;
use hashbrown::HashMap;

/// Number of submissions of one shape that are marked alone to learn its cost, if their ends are not seen
/// exactly enough.
const TRIES: u32 = 4;
/// Number of submissions in a row that must end earlier than expected before the cost is lowered, if it has
/// been measured more than once: a kernel whose durations alternate keeps its cost.
const AGREEING: u32 = 8;
/// Most shapes that are remembered.
const MOST: usize = 1024;

/// Kind of a submission, and a number that tells it from others of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) what: Submission,
    /// 0: only the kind is known.
    pub(super) key: u64,
    /// Whether it may start before the submission in front of it has ended (programmatic stream
    /// serialisation).
    pub(super) overlaps: bool,
}

impl Shape {
    /// Returns the shape of the submissions that `words` tell from others.
    pub(crate) fn new(what: Submission, words: &[u64]) -> Self {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |key: u64, word: &u64| (key.rotate_left(23) ^ word).wrapping_mul(FACTOR);
        let key = words.iter().fold(what as u64, mix) | 1;
        Self {
            what,
            key,
            overlaps: false,
        }
    }

    /// Returns the number that tells it from other submissions of its kind; 0: only the kind is known.
    pub(crate) fn key(self) -> u64 {
        self.key
    }

    /// Returns whether it may start before the submission in front of it has ended.
    pub(crate) fn overlaps(self) -> bool {
        self.overlaps
    }

    /// Returns the shape of a submission that may start before the one in front of it has ended, if it does.
    pub(crate) fn overlapping(self, overlaps: bool) -> Self {
        Self { overlaps, ..self }
    }
}

impl From<Submission> for Shape {
    fn from(what: Submission) -> Self {
        Self {
            what,
            key: 0,
            overlaps: false,
        }
    }
}

/// Measured costs of a shape, nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// Usual cost; 0: not known.
    pub(super) nsec: u64,
    /// Longest cost lately.
    pub(super) longest: u64,
    tries: u32,
    /// Number of measurements of `nsec`.
    measured: u32,
    /// Submissions in a row that ended earlier than expected, and the longest that one of them after the
    /// first can have taken.
    early: u32,
    early_most: u64,
}

impl Known {
    /// Returns whether the cost may be far too high: it was measured once only (functions are loaded at their
    /// first launch, and work from before may have been queued), or the last submission ended earlier.
    pub(super) fn is_doubtful(&self) -> bool {
        self.measured <= 1 || self.early != 0
    }
}

#[derive(Debug, Default)]
pub(super) struct Shapes(HashMap<u64, Known>);

impl Shapes {
    pub(super) fn known(&self, key: u64) -> Option<Known> {
        (key != 0)
            .then(|| self.0.get(&key))
            .flatten()
            .filter(|known| known.nsec != 0)
            .copied()
    }

    /// Returns whether the next submission of this shape is to be marked alone.
    pub(super) fn is_new(&self, key: u64) -> bool {
        key != 0
            && self
                .0
                .get(&key)
                .is_none_or(|known| known.nsec == 0 && known.tries < TRIES)
    }

    /// Returns whether its cost is still to be learned from a submission that was marked alone.
    pub(super) fn is_tried(&self, key: u64) -> bool {
        key != 0
            && self
                .0
                .get(&key)
                .is_some_and(|known| known.nsec == 0 && known.tries <= TRIES)
    }

    /// Counts a submission that is marked alone.
    pub(super) fn try_out(&mut self, key: u64) {
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            self.0.clear();
        }
        self.0.entry(key).or_default().tries += 1;
    }

    /// Learns that submissions of this shape took `nsec` nanoseconds each. A second measurement that is
    /// shorter than the first replaces it.
    pub(super) fn learn(&mut self, key: u64, nsec: u64) {
        if let Some(known) = self.0.get_mut(&key) {
            let nsec = nsec.max(1);
            if known.measured == 1 && nsec < known.nsec {
                (known.nsec, known.longest) = (nsec, nsec);
            }
            known.longest = nsec.max(known.longest - known.longest / 64);
            known.nsec = match known.nsec {
                0 => nsec,
                usual => usual.midpoint(nsec),
            };
            known.measured = known.measured.saturating_add(1);
            known.early = 0;
        }
    }

    /// Learns that submissions of this shape took at most `nsec` nanoseconds each. Lowers a cost above this
    /// if it was measured once only, or if [`AGREEING`] submissions agree: while a cost is far too high, ends
    /// are polled too late to be measured.
    pub(super) fn lower(&mut self, key: u64, nsec: u64) {
        let Some(known) = self.0.get_mut(&key).filter(|known| known.nsec != 0) else {
            return;
        };
        let nsec = nsec.max(1);
        if nsec >= known.nsec {
            known.early = 0;
        } else if known.measured <= 1 {
            (known.nsec, known.longest) = (nsec, nsec);
        } else if known.early == 0 {
            // It was polled late; the next ones are polled earlier.
            (known.early, known.early_most) = (1, 0);
        } else {
            known.early += 1;
            known.early_most = known.early_most.max(nsec);
            if known.early > AGREEING {
                known.nsec = known.early_most;
                known.longest = known
                    .nsec
                    .max(known.longest - known.longest / 64 * u64::from(AGREEING));
                (known.early, known.early_most) = (1, 0);
            }
        }
    }

    /// Learns that submissions of this shape took at most `nsec` nanoseconds each.
    pub(super) fn bound(&mut self, key: u64, nsec: u64) {
        if let Some(known) = self.0.get_mut(&key).filter(|known| known.nsec > nsec) {
            (known.nsec, known.longest) = (nsec.max(1), nsec.max(1));
        }
    }
}
