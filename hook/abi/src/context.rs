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

    /// Decodes a word: the kind, `None` for several or an unknown one.
    pub fn of_word(word: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == word)
    }
}

const SEVERAL: u32 = u32::MAX >> 1;

/// Bytes that a context is expected to take without a daemon, and where the daemon is not told otherwise.
pub const DEFAULT_CONTEXT: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_of_context_is_decoded_from_its_word() {
        for kind in ContextKind::ALL.into_iter().map(Some).chain([None]) {
            assert_eq!(ContextKind::of_word(ContextKind::asked(kind)), kind);
        }
        assert_eq!(ContextKind::of_word(u32::MAX), None);
    }
}
