//! Cache of the latest answers, read without a lock or an atomic read-modify-write.
//!
//! Each line is a sequence lock: odd while it is written. There is one writer at a time, which holds a lock
//! of its own.

use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

/// Cached answers to questions of `WORDS` words each.
#[derive(Debug)]
pub(super) struct Recent<const WORDS: usize>([Line<WORDS>; LINES]);

/// Lines of the cache; questions that map to one line replace each other.
const LINES: usize = 8;

#[derive(Debug)]
#[repr(align(64))]
struct Line<const WORDS: usize> {
    /// Zero: the line has never been written.
    sequence: AtomicU32,
    question: [AtomicU64; WORDS],
    answer: AtomicU64,
}

impl<const WORDS: usize> Default for Recent<WORDS> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Line {
            sequence: AtomicU32::new(0),
            question: std::array::from_fn(|_| AtomicU64::new(0)),
            answer: AtomicU64::new(0),
        }))
    }
}

impl<const WORDS: usize> Recent<WORDS> {
    /// Returns the line of a question with that hash, chosen by its highest byte.
    fn line(&self, hash: u64) -> &Line<WORDS> {
        let [.., highest] = hash.to_le_bytes();
        let [line, ..] = &self.0;
        self.0.get(usize::from(highest) % LINES).unwrap_or(line)
    }

    /// Returns the cached answer.
    #[inline]
    pub(super) fn get(&self, hash: u64, question: &[u64; WORDS]) -> Option<u64> {
        let line = self.line(hash);
        let sequence = line.sequence.load(Acquire);
        let is_it = line
            .question
            .iter()
            .zip(question)
            .all(|(word, wanted)| word.load(Relaxed) == *wanted);
        let answer = line.answer.load(Relaxed);
        fence(Acquire);
        let is_whole = sequence != 0 && sequence.is_multiple_of(2);
        (is_it && is_whole && line.sequence.load(Relaxed) == sequence).then_some(answer)
    }

    /// Stores an answer. One writer at a time.
    pub(super) fn put(&self, hash: u64, question: &[u64; WORDS], answer: u64) {
        let line = self.line(hash);
        let sequence = line.sequence.load(Relaxed);
        line.sequence.store(sequence.wrapping_add(1), Relaxed);
        fence(Release);
        for (word, value) in line.question.iter().zip(question) {
            word.store(*value, Relaxed);
        }
        line.answer.store(answer, Relaxed);
        // Skips zero, which means that the line is empty.
        line.sequence.store(sequence.wrapping_add(2).max(2), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn latest_answer_of_a_line_is_found() {
        let recent = Recent::<2>::default();
        assert_eq!(recent.get(0, &[0, 0]), None, "the cache is empty");
        recent.put(0, &[1, 2], 3);
        assert_eq!(recent.get(0, &[1, 2]), Some(3));
        assert_eq!(recent.get(0, &[1, 3]), None);
        assert_eq!(recent.get(1 << 56, &[1, 2]), None, "another line");
        recent.put(0, &[4, 5], 6);
        assert_eq!((recent.get(0, &[1, 2]), recent.get(0, &[4, 5])), (None, Some(6)));
    }

    #[test]
    fn racing_reader_never_gets_a_wrong_answer() {
        let recent = Recent::<3>::default();
        let is_over = AtomicBool::new(false);
        let question = |number: u64| [number, number + 1, number * 7];
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut number = 0;
                    while !is_over.load(Relaxed) {
                        number = (number + 1) % 4;
                        let answer = recent.get(0, &question(number));
                        assert!(answer.is_none_or(|answer| answer == number * 1000));
                    }
                });
            }
            let rounds = if cfg!(miri) { 300 } else { 20_000 };
            for round in 0..rounds {
                recent.put(0, &question(round % 4), round % 4 * 1000);
            }
            is_over.store(true, Relaxed);
        });
    }
}
