//! Freed device memory that keeps its pages, as on a real device: the next allocation needs no new pages and
//! finds the previous content.

use parking_lot::Mutex;

use crate::size::parse_bytes;

/// Cache of at most `most` bytes of freed memory (`SIMGPU_KEPT`).
#[derive(Debug)]
pub(super) struct Kept {
    most: u64,
    /// Start and length in bytes.
    pieces: Mutex<Vec<(u64, u64)>>,
}

impl Kept {
    pub(super) fn from_env() -> Self {
        let most = std::env::var("SIMGPU_KEPT").ok();
        Self::new(most.as_deref().and_then(parse_bytes).unwrap_or(0))
    }

    fn new(most: u64) -> Self {
        Self {
            most,
            pieces: Mutex::default(),
        }
    }

    /// Takes a piece of exactly this length.
    pub(super) fn take(&self, length: u64) -> Option<u64> {
        let mut pieces = self.pieces.lock();
        let at = pieces.iter().rposition(|piece| piece.1 == length)?;
        Some(pieces.swap_remove(at).0)
    }

    /// Keeps a piece if it fits. Returns `false` if the caller must free it instead.
    pub(super) fn keep(&self, at: u64, length: u64) -> bool {
        let mut pieces = self.pieces.lock();
        let sum: u64 = pieces.iter().map(|piece| piece.1).sum();
        let fits = sum.saturating_add(length) <= self.most;
        if fits {
            pieces.push((at, length));
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piece_that_fits_is_kept_for_same_length() {
        let kept = Kept::new(10);
        assert!(kept.keep(100, 4) && kept.keep(200, 6));
        assert!(!kept.keep(300, 1));
        assert_eq!(kept.take(5), None);
        assert_eq!(kept.take(6), Some(200));
        assert_eq!(kept.take(6), None);
        assert!(!Kept::new(0).keep(1, 1));
    }
}
