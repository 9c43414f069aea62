//! Name of a group, as a field of messages.

/// Path of a group below the root, such as `a/b`; empty if not set. Padded with zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupName(pub(super) [u8; Self::LONGEST]);

impl GroupName {
    /// Maximum length, bytes.
    pub const LONGEST: usize = 128;

    pub const NONE: Self = Self([0; Self::LONGEST]);

    /// Returns the name; `None` if the text is too long or contains a zero byte.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut name = Self::NONE;
        name.0.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        (!text.contains('\0')).then_some(name)
    }

    /// Returns the text; `None` if it is empty or not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let text = self.0.split(|byte| *byte == 0).next()?;
        core::str::from_utf8(text).ok().filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_name_is_text_that_fits() {
        let long = [b'x'; GroupName::LONGEST + 1];
        let long = core::str::from_utf8(&long).unwrap();
        for text in ["a", "a/\u{e9}", &long[1..]] {
            assert_eq!(GroupName::new(text).unwrap().as_str(), Some(text));
        }
        assert_eq!(GroupName::new(""), Some(GroupName::NONE));
        assert_eq!(GroupName::NONE.as_str(), None);
        assert_eq!(GroupName::new(long), None);
        assert_eq!(GroupName::new("a\0b"), None);
        assert_eq!(GroupName([0xff; GroupName::LONGEST]).as_str(), None);
    }
}
