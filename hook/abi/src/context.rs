//! Charge of contexts: what the hook charges when a context is made, and what the daemon measures afterwards.

/// Kind of a context, for which the daemon keeps a size of its own. The index into `context_estimate`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextKind {
    /// A device's primary context.
    Primary = 0,
    /// A context of `cuCtxCreate` and its variants.
    Created = 1,
    /// A green context, without the primary context that it belongs to.
    Green = 2,
}

impl ContextKind {
    /// Number of kinds.
    pub const COUNT: usize = 3;
    pub const ALL: [Self; Self::COUNT] = [Self::Primary, Self::Created, Self::Green];

    /// Returns the word for a request to measure a context; `None`: several kinds at once.
    pub const fn asked(kind: Option<Self>) -> u32 {
        match kind {
            Some(kind) => kind as u32,
            None => SEVERAL,
        }
    }

    /// Returns the word for a notice that the estimate of a kind did not fit and the driver was not called.
    pub const fn refused(kind: Option<Self>) -> u32 {
        Self::asked(kind) | REFUSED
    }

    /// Decodes a word: the kind, `None` for several or an unknown one, and whether it was refused.
    pub fn of_word(word: u32) -> (Option<Self>, bool) {
        let kind = Self::ALL.into_iter().find(|kind| *kind as u32 == word & !REFUSED);
        (kind, word & REFUSED != 0)
    }
}

const SEVERAL: u32 = u32::MAX >> 1;
const REFUSED: u32 = 1 << 31;

/// Answer in `context_missing`: the daemon cannot measure the process on this device.
pub const CONTEXT_UNKNOWN: u64 = 1 << 63;
/// Answer in `context_missing`: the process changed its ledger meanwhile. It may ask again.
pub const CONTEXT_CHANGED: u64 = (1 << 63) + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_of_context_is_decoded_from_its_word() {
        for kind in ContextKind::ALL.into_iter().map(Some).chain([None]) {
            assert_eq!(ContextKind::of_word(ContextKind::asked(kind)), (kind, false));
            assert_eq!(ContextKind::of_word(ContextKind::refused(kind)), (kind, true));
        }
        assert_eq!(ContextKind::of_word(u32::MAX), (None, true));
    }
}
