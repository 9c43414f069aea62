//! Expected content of a block: ranges of words that count up, as the fill kernel writes them.

use std::ops::Range;

/// A range of words; the word at index `i` of the block is `value + i`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stretch {
    indices: Range<u64>,
    value: u32,
}

/// All words of a block. Ranges follow each other without gaps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Content(Vec<Stretch>);

impl Content {
    /// Records that the fill kernel wrote `value` and its successors at `words`.
    pub(crate) fn fill(&mut self, words: Range<u64>, value: u32) {
        let value = value.wrapping_sub(low(words.start));
        self.replace(
            &words,
            vec![Stretch {
                indices: words.clone(),
                value,
            }],
        );
    }

    /// Records that `words` were copied from the same indices of another block.
    pub(crate) fn copy(&mut self, from: &Self, words: &Range<u64>) {
        self.replace(words, from.clipped(words));
    }

    fn replace(&mut self, words: &Range<u64>, with: Vec<Stretch>) {
        let mut after = self.clipped(&(words.end..u64::MAX));
        self.0 = self.clipped(&(0..words.start));
        self.0.extend(with);
        self.0.append(&mut after);
    }

    fn clipped(&self, words: &Range<u64>) -> Vec<Stretch> {
        let clip = |one: &Stretch| Stretch {
            indices: one.indices.start.max(words.start)..one.indices.end.min(words.end),
            value: one.value,
        };
        let mut clipped: Vec<_> = self.0.iter().map(clip).collect();
        clipped.retain(|one| !one.indices.is_empty());
        clipped
    }

    /// Returns the result of the checksum kernel.
    pub(crate) fn checksum(&self) -> u64 {
        self.0.iter().fold(0, |sum, one| sum.wrapping_add(one.checksum()))
    }

    /// Compares a whole block; returns the first difference as (index, found, expected).
    pub(crate) fn differs(&self, bytes: &[u8]) -> Option<(u64, u32, u32)> {
        let (words, _) = bytes.as_chunks::<4>();
        let mut expected = self
            .0
            .iter()
            .flat_map(|one| one.indices.clone().map(|index| (index, one.value)));
        words.iter().find_map(|word| {
            let (index, value) = expected.next()?;
            let (found, wanted) = (u32::from_le_bytes(*word), value.wrapping_add(low(index)));
            (found != wanted).then_some((index, found, wanted))
        })
    }
}

impl Stretch {
    fn checksum(&self) -> u64 {
        // Words wrap at 2^32, so there may be several increasing runs.
        let (mut sum, mut at) = (0_u64, self.indices.start);
        while at < self.indices.end {
            let first = self.value.wrapping_add(low(at));
            let run = (1 << 32) - u64::from(first);
            let end = self.indices.end.min(at.saturating_add(run));
            sum = sum.wrapping_add(sum_of_run(i128::from(first) - i128::from(at), at, end));
            at = end;
        }
        sum
    }
}

/// Returns the sum of `(offset + i) * (i + 1)` for the indices `i`, modulo 2^64.
fn sum_of_run(offset: i128, start: u64, end: u64) -> u64 {
    let below = |end: u64| {
        let n = i128::from(end);
        let (first, squares) = (n * (n - 1) / 2, (n - 1) * n * (2 * n - 1) / 6);
        squares + (offset + 1) * first + offset * n
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "sums wrap at 64 bits"
    )]
    let sum = (below(end) - below(start)) as u64;
    sum
}

#[allow(clippy::cast_possible_truncation, reason = "words wrap at 32 bits")]
fn low(index: u64) -> u32 {
    index as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(content: &Content) -> Vec<u32> {
        content
            .0
            .iter()
            .flat_map(|one| {
                one.indices
                    .clone()
                    .map(|index| one.value.wrapping_add(low(index)))
            })
            .collect()
    }

    #[test]
    fn content_is_what_was_written_last() {
        let (mut one, mut other) = (Content::default(), Content::default());
        one.fill(0..10, 100);
        one.fill(3..5, 7);
        assert_eq!(words(&one), [100, 101, 102, 7, 8, 105, 106, 107, 108, 109]);
        other.fill(0..6, u32::MAX);
        other.copy(&one, &(2..4));
        assert_eq!(words(&other), [u32::MAX, 0, 102, 7, 3, 4]);
        let mut bytes: Vec<u8> = words(&other).iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(other.differs(&bytes), None);
        bytes[20] = 9;
        assert_eq!(other.differs(&bytes), Some((5, 9, 4)));
    }

    #[test]
    fn content_checksum_is_that_of_its_words() {
        for value in [0, 1, 0x8000_0000, u32::MAX - 3, u32::MAX] {
            let mut content = Content::default();
            content.fill(0..1000, value);
            content.fill(17..400, value.wrapping_mul(77));
            let slow = (1..).zip(words(&content)).fold(0_u64, |sum, (index, word)| {
                sum.wrapping_add(u64::from(word).wrapping_mul(index))
            });
            assert_eq!(content.checksum(), slow, "{value}");
        }
    }
}
