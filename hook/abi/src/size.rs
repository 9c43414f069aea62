//! Texts of sizes and percentages, as control files, options and annotations take them.

use crate::NO_LIMIT;

/// Most digits of a fraction.
const MOST_DECIMALS: usize = 9;

/// Reason why a text is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    Format,
    /// Beyond 2^64 - 1.
    TooLarge,
}

/// Format of [`parse_bytes`], for error messages.
pub const BYTES: &str = "bytes (as 8589934592, 8G, 8GB or 1.5GiB) or max";

/// Parses bytes: decimal, with an optional suffix (`K` `M` `G` `T` `P`, also `KB`, `Ki` and `KiB`, any case),
/// or `max` ([`NO_LIMIT`]). All suffixes are powers of 1024; before one, a fraction of up to 9 digits is
/// allowed. 2^64 - 1 means `max` too, as tools written for GVM use it.
///
/// # Errors
/// Another text, or more than 2^64 - 1 bytes.
pub fn parse_bytes(text: &str) -> Result<u64, Unreadable> {
    const SUFFIXES: [&str; 4] = ["", "b", "i", "ib"];
    if text == "max" {
        return Ok(NO_LIMIT);
    }
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let (number, suffix) = text.split_at(text.bytes().take_while(is_number).count());
    let (shift, rest) = match suffix.as_bytes().first().map(u8::to_ascii_uppercase) {
        None => (0, ""),
        Some(unit) => {
            let power = b"KMGTP".iter().position(|known| *known == unit);
            let shift = power
                .ok_or(Unreadable::Format)?
                .saturating_add(1)
                .saturating_mul(10);
            (shift, suffix.get(1..).unwrap_or_default())
        }
    };
    let number = Decimal::parse(number)?;
    let is_suffix = SUFFIXES.iter().any(|known| known.eq_ignore_ascii_case(rest));
    if !is_suffix || (shift == 0 && number.has_fraction()) {
        return Err(Unreadable::Format);
    }
    u64::try_from(number.times(1 << shift)).map_err(|_| Unreadable::TooLarge)
}

/// A decimal number with an optional fraction.
#[derive(Debug, Clone, Copy)]
pub struct Decimal {
    /// The number times 10^`nr_decimals`.
    digits: u64,
    nr_decimals: u32,
}

impl Decimal {
    /// Parses a percentage, as `50%` or `12.5%`; `None` for a text without `%` at its end.
    pub fn percent(text: &str) -> Option<Result<Self, Unreadable>> {
        text.strip_suffix('%').map(Self::parse)
    }

    /// Parses decimal digits with an optional point between two of them.
    fn parse(text: &str) -> Result<Self, Unreadable> {
        let (whole, decimals) = match text.split_once('.') {
            Some((_, decimals)) if decimals.is_empty() || decimals.len() > MOST_DECIMALS => {
                return Err(Unreadable::Format);
            }
            Some(parts) => parts,
            None => (text, ""),
        };
        let mut digits = whole.bytes().chain(decimals.bytes());
        if whole.is_empty() || !digits.clone().all(|byte| byte.is_ascii_digit()) {
            return Err(Unreadable::Format);
        }
        let digits = digits.try_fold(0_u64, |number, digit| {
            number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
        });
        Ok(Self {
            digits: digits.ok_or(Unreadable::TooLarge)?,
            nr_decimals: u32::try_from(decimals.len()).unwrap_or(0),
        })
    }

    /// Returns the product, rounded down. It fits: both factors have 64 bits.
    pub fn times(&self, factor: u64) -> u128 {
        u128::from(self.digits) * u128::from(factor) / 10_u128.pow(self.nr_decimals)
    }

    /// Returns whether the number is above `whole`.
    pub fn is_above(&self, whole: u64) -> bool {
        u128::from(self.digits) > u128::from(whole) * 10_u128.pow(self.nr_decimals)
    }

    const fn has_fraction(&self) -> bool {
        self.nr_decimals > 0
    }
}
