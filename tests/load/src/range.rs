//! A number or a range of numbers: `150`, `100-200`.

use std::fmt;
use std::str::FromStr;

/// Inclusive range; `min` is at least 1 and not above `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub min: u64,
    pub max: u64,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        let (min, max) = (number(min)?, number(max)?);
        if min == 0 || max < min {
            return Err("expected N or MIN-MAX, at least 1".to_owned());
        }
        Ok(Self { min, max })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "{}", self.min)
        } else {
            write!(f, "{}-{}", self.min, self.max)
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|error| format!("{text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_one_number_is_parsed() {
        assert_eq!("150".parse(), Ok(Range { min: 150, max: 150 }));
        assert_eq!("100-200".parse(), Ok(Range { min: 100, max: 200 }));
        for text in ["", "0", "x", "2-1", "1-", "-1", "1-2-3"] {
            assert!(text.parse::<Range>().is_err(), "{text}");
        }
    }
}
