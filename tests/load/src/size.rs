//! Sizes on a command line.

use std::str::FromStr;

/// Bytes, written in decimal with an optional suffix K, M, G or T (1024-based).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &text[digits.len()..] {
            "" => 0,
            "K" | "k" => 10,
            "M" | "m" => 20,
            "G" | "g" => 30,
            "T" | "t" => 40,
            other => return Err(format!("unknown suffix {other}")),
        };
        let count: usize = digits.parse().map_err(|error| format!("{error}"))?;
        count
            .checked_mul(1 << shift)
            .map(Size)
            .ok_or_else(|| "too large".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_1024_based() {
        assert_eq!("12".parse(), Ok(Size(12)));
        assert_eq!("3M".parse(), Ok(Size(3 << 20)));
        for bad in ["", "M", "-1", "1X", "99999999999T", "1.5G"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}
