//! Value formats of control files: those of cgroup v2, except that an empty write is not 0, a leading zero is
//! not octal, and an overflow does not wrap.

use std::fmt::{self, Display, Write};
use std::ops::Deref;

use gcgroup_abi::{NO_LIMIT, VISIBLE_LIMIT, VISIBLE_SWAP};

use crate::arbiter::{self, Policy};
use crate::error::{Error, Result};
use crate::tree::Quota;

/// Formats a value, with a newline.
pub fn value(value: impl Display) -> String {
    format!("{value}\n")
}

/// Formats a flag as 0 or 1.
pub fn flag(on: bool) -> String {
    value(u8::from(on))
}

/// Formats bytes, or `max` for no limit.
pub fn bytes(bytes: u64) -> String {
    if bytes == NO_LIMIT {
        value("max")
    } else {
        value(bytes)
    }
}

/// Formats a quota and its period in microseconds, as in `cpu.max`.
pub fn quota(quota: Quota) -> String {
    format!("{} {}\n", bytes(quota.usec).trim_end(), quota.period_usec)
}

/// Formats `KEY VALUE` lines.
pub fn flat_keyed<V: Display>(pairs: impl IntoIterator<Item = (&'static str, V)>) -> String {
    let mut out = String::new();
    for (key, value) in pairs {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{key} {value}");
    }
    out
}

/// Formats bytes for people, rounded to a tenth: `1.5 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes == NO_LIMIT {
        return "max".to_owned();
    }
    let (mut tenths, mut unit) = (u128::from(bytes) * 10, 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        (tenths, unit) = ((tenths + 512) / 1024, unit + 1);
    }
    let (whole, tenth) = (tenths / 10, tenths % 10);
    match tenth {
        0 => format!("{whole} {}", UNITS[unit]),
        tenth => format!("{whole}.{tenth} {}", UNITS[unit]),
    }
}

/// Returns text that another program chose (a process's comm, a path, a group's name) as one word that is
/// safe in terminals, logs and scripts. Each byte other than printable ASCII becomes `\ooo` (octal, as in
/// /proc/self/mountinfo), and so do the blank, `=` and the backslash. Letters of other alphabets are escaped
/// too, since right-to-left ones reorder the numbers beside them.
pub fn word(text: &str) -> Word<'_> {
    Word(text)
}

/// Result of [`word`].
#[derive(Debug, Clone, Copy)]
pub struct Word<'a>(&'a str);

impl Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'!'..=b'~' if byte != b'\\' && byte != b'=' => f.write_char(char::from(byte)),
            _ => write!(f, "\\{byte:03o}"),
        })
    }
}

/// A process's short name, which the process may choose freely. Displayed as one [`word`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comm(Box<str>);

impl From<&str> for Comm {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl Deref for Comm {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        word(self).fmt(f)
    }
}

/// Formats of [`parse_bytes`] and of [`parse_size`], for error messages.
const BYTES: &str = "bytes (as 8589934592, 8G, 8GB or 1.5GiB) or max";
const SIZE: &str =
    "bytes (as 8589934592, 8G, 8GB or 1.5GiB), a percentage of the GPU's memory (as 50%) or max";

/// Most digits of a fraction.
const MOST_DECIMALS: usize = 9;

/// Parses bytes: decimal, with an optional suffix (`K` `M` `G` `T` `P`, also `KB`, `Ki` and `KiB`, any case),
/// or `max`. All suffixes are powers of 1024; before one, a fraction of up to 9 digits is allowed. 2^64 - 1
/// means `max` too, as tools written for GVM use it.
///
/// # Errors
/// * `ERANGE`: beyond 2^64 - 1.
/// * `EINVAL`: anything else.
pub fn parse_bytes(text: &str) -> Result<u64> {
    parse_bytes_or(text, BYTES)
}

/// Parses bytes as [`parse_bytes`] does, or a percentage of `memory` bytes, as `50%` or `12.5%`.
///
/// # Errors
/// * `ERANGE`: beyond 2^64 - 1 bytes, or 100%.
/// * `EOPNOTSUPP`: a percentage without `memory`.
/// * `EINVAL`: anything else.
pub fn parse_size(text: &str, memory: Option<u64>) -> Result<u64> {
    let Some(percent) = text.strip_suffix('%') else {
        return parse_bytes_or(text, SIZE);
    };
    let part = Fraction::parse(percent, SIZE, text)?;
    if part.times(1) > 100 || (part.times(1) == 100 && !part.is_whole()) {
        return Err(Error::range("from 0% to 100%", text));
    }
    let memory = memory.ok_or(Error::NoMemorySize)?;
    Ok(u64::try_from(part.times(memory) / 100).unwrap_or(NO_LIMIT))
}

fn parse_bytes_or(text: &str, expected: &'static str) -> Result<u64> {
    if text == "max" {
        return Ok(NO_LIMIT);
    }
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let (number, suffix) = text.split_at(text.bytes().take_while(is_number).count());
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kb" | "ki" | "kib" => 10,
        "m" | "mb" | "mi" | "mib" => 20,
        "g" | "gb" | "gi" | "gib" => 30,
        "t" | "tb" | "ti" | "tib" => 40,
        "p" | "pb" | "pi" | "pib" => 50,
        _ => return Err(Error::bad(expected, text)),
    };
    let number = Fraction::parse(number, expected, text)?;
    if shift == 0 && number.has_point {
        return Err(Error::bad(expected, text));
    }
    u64::try_from(number.times(1 << shift))
        .map_err(|_| Error::range("at most 18446744073709551615 bytes", text))
}

/// A decimal number with an optional fraction.
struct Fraction {
    /// The number times 10^`nr_decimals`.
    digits: u64,
    nr_decimals: u32,
    has_point: bool,
}

impl Fraction {
    /// Parses decimal digits with an optional point between two of them.
    fn parse(number: &str, expected: &'static str, text: &str) -> Result<Self> {
        let (whole, decimals) = match number.split_once('.') {
            Some((_, decimals)) if decimals.is_empty() || decimals.len() > MOST_DECIMALS => {
                return Err(Error::bad(expected, text));
            }
            Some((whole, decimals)) => (whole, decimals),
            None => (number, ""),
        };
        // Checked apart, since a point must follow a digit.
        decimal(whole, expected, text)?;
        Ok(Self {
            digits: decimal(&format!("{whole}{decimals}"), expected, text)?,
            nr_decimals: u32::try_from(decimals.len()).unwrap_or(0),
            has_point: !decimals.is_empty(),
        })
    }

    /// Returns the product, rounded down. It fits: both factors have 64 bits.
    fn times(&self, factor: u64) -> u128 {
        u128::from(self.digits) * u128::from(factor) / 10_u128.pow(self.nr_decimals)
    }

    fn is_whole(&self) -> bool {
        u128::from(self.digits).is_multiple_of(10_u128.pow(self.nr_decimals))
    }
}

/// Format of [`parse_visible`], for error messages.
pub const VISIBLE: &str = "limit, swap, bytes (as 8589934592, 8G or 1.5GiB) or a percentage (as 50%)";

/// Parses `limit`, `swap`, bytes, or a percentage of `memory` bytes.
///
/// # Errors
/// * `ERANGE`: 0 bytes, or beyond 2^64 - 1, or above 100%.
/// * `EOPNOTSUPP`: a percentage without `memory`.
/// * `EINVAL`: anything else, also `max`.
pub fn parse_visible(text: &str, memory: Option<u64>) -> Result<u64> {
    match text {
        "limit" => Ok(VISIBLE_LIMIT),
        "swap" => Ok(VISIBLE_SWAP),
        "max" => Err(Error::bad(VISIBLE, text)),
        _ => match parse_size(text, memory) {
            Ok(0 | NO_LIMIT) => Err(Error::range("from 1 to 18446744073709551614 bytes", text)),
            Err(Error::BadValue { .. }) => Err(Error::bad(VISIBLE, text)),
            parsed => parsed,
        },
    }
}

/// Parses `0` or `1`.
///
/// # Errors
/// * `EINVAL`: not a number.
/// * `ERANGE`: another number.
pub fn parse_flag(text: &str) -> Result<bool> {
    const EXPECTED: &str = "0 or 1";
    match decimal(text, EXPECTED, text)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::range(EXPECTED, text)),
    }
}

/// Parses a number from 0 to `most`; `expected` says so for error messages.
///
/// # Errors
/// * `EINVAL`: not a number.
/// * `ERANGE`: a higher number.
pub fn parse_number(text: &str, most: u64, expected: &'static str) -> Result<u64> {
    let number = decimal(text, expected, text)?;
    if number > most {
        return Err(Error::range(expected, text));
    }
    Ok(number)
}

/// Parses a pid.
///
/// # Errors
/// * `EINVAL`: not a number.
/// * `ESRCH`: a number that no process can have.
pub fn parse_pid(text: &str) -> Result<u32> {
    let number = decimal(text, "a pid", text)?;
    number.try_into().map_err(|_| Error::NoProcess)
}

/// Parses a quota in microseconds, a percentage of one device's time, or `max`; and an optional period in
/// microseconds, as in `cpu.max`. Without one, the period is `period_usec`.
///
/// # Errors
/// * `ERANGE`: a quota below 1000 or above [`Quota::MOST`], or a period outside 1000 to 1000000.
/// * `EINVAL`: anything else.
pub fn parse_quota(text: &str, period_usec: u64) -> Result<Quota> {
    const EXPECTED: &str =
        "microseconds (as 25000), a percentage (as 25%) or max, optionally with a period (as 25000 100000)";
    let mut words = text.split_ascii_whitespace();
    let (Some(first), period, None) = (words.next(), words.next(), words.next()) else {
        return Err(Error::bad(EXPECTED, text));
    };
    let period = period.map(|digits| decimal(digits, EXPECTED, text)).transpose()?;
    let period_usec = period.unwrap_or(period_usec);
    let quota = match (first, first.strip_suffix('%')) {
        ("max", _) => None,
        (_, Some(percent)) => Some(Fraction::parse(percent, EXPECTED, text)?.times(period_usec) / 100),
        (digits, None) => Some(decimal(digits, EXPECTED, text)?.into()),
    };
    let usec = match quota.map(u64::try_from) {
        None => NO_LIMIT,
        Some(Ok(usec)) if (Quota::LEAST..=Quota::MOST).contains(&usec) => usec,
        Some(_) => return Err(Error::range("a quota from 1000 to 1000000000 microseconds", text)),
    };
    if !(Quota::LEAST_PERIOD..=Quota::LONGEST_PERIOD).contains(&period_usec) {
        return Err(Error::range("a period from 1000 to 1000000 microseconds", text));
    }
    Ok(Quota { usec, period_usec })
}

/// Parses the name of a policy.
///
/// # Errors
/// `EINVAL` for anything else.
pub fn parse_policy(text: &str) -> Result<&'static Policy> {
    Policy::named(text).ok_or_else(|| Error::bad(arbiter::names(), text))
}

/// Parses decimal digits only: no sign, no prefix, no blank; leading zeros are ignored.
fn decimal(digits: &str, expected: &'static str, text: &str) -> Result<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::bad(expected, text));
    }
    // Digits can only fail by overflow.
    digits.parse().map_err(|_| Error::range(expected, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
        result.unwrap_err().errno()
    }

    #[test]
    fn bytes_take_binary_suffixes_in_any_case() {
        for (text, expected) in [
            ("0", 0),
            ("010", 10),
            ("1048576", 1 << 20),
            ("1K", 1 << 10),
            ("1k", 1 << 10),
            ("3Mi", 3 << 20),
            ("8GiB", 8 << 30),
            ("8gib", 8 << 30),
            ("2t", 2 << 40),
            ("1P", 1 << 50),
            ("8GB", 8 << 30),
            ("8gb", 8 << 30),
            ("1KB", 1 << 10),
            ("1.5G", 3 << 29),
            ("0.5KiB", 512),
            ("1.0T", 1 << 40),
            ("0.0001K", 0),
            ("2.000000001P", (2 << 50) + 1_125_899),
            ("0000000000000000000000000001", 1),
            ("max", NO_LIMIT),
            ("18446744073709551615", NO_LIMIT),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn bytes_in_wrong_format_are_einval() {
        for text in [
            "",
            " ",
            "0x10",
            "1e3",
            "1.5",
            "1.G",
            ".5G",
            ".",
            "1.2.3G",
            "1.0000000001G",
            "50%",
            "%",
            "+1",
            "-1",
            "--1",
            "1 2",
            "1 G",
            "G",
            "KiB",
            "1B",
            "1KBB",
            "1iB",
            "MAX",
            "maximum",
            "1G\n",
            "1\u{0660}",
            "\u{0661}",
            "1_000",
            "1,000",
            "ten",
            "1GG",
        ] {
            assert_eq!(errno(parse_bytes(text)), libc::EINVAL, "{text:?}");
        }
    }

    #[test]
    fn bytes_beyond_64_bits_are_erange() {
        for text in [
            "18446744073709551616",
            "16384P",
            "18014398509481984K",
            "99999999999999999999999999999999",
            "16384.5P",
        ] {
            assert_eq!(errno(parse_bytes(text)), libc::ERANGE, "{text}");
        }
        assert_eq!(parse_bytes("16383P"), Ok(16383 << 50));
    }

    #[test]
    fn bytes_formatted_parse_back() {
        for number in [0, 1, 4096, NO_LIMIT - 1, NO_LIMIT] {
            assert_eq!(parse_bytes(bytes(number).trim_end()), Ok(number));
        }
        assert_eq!(bytes(NO_LIMIT), "max\n");
    }

    #[test]
    fn size_is_rounded_to_a_tenth() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (256 << 20, "256 MiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 30) + 1, "1 GiB"),
            (1 << 53, "8 PiB"),
            (NO_LIMIT - 1, "16384 PiB"),
            (NO_LIMIT, "max"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn percentages_are_parts_of_the_memory() {
        let gpu = Some(80 << 30);
        for (text, expected) in [
            ("50%", 40 << 30),
            ("0%", 0),
            ("100%", 80 << 30),
            ("100.0%", 80 << 30),
            ("12.5%", 10 << 30),
            ("8GB", 8 << 30),
            ("max", NO_LIMIT),
        ] {
            assert_eq!(parse_size(text, gpu), Ok(expected), "{text}");
        }
        assert_eq!(parse_size("50%", Some(u64::MAX)), Ok(u64::MAX / 2));
        assert_eq!(parse_visible("25%", gpu), Ok(20 << 30));
        for text in ["101%", "100.1%", "18446744073709551616%"] {
            assert_eq!(errno(parse_size(text, gpu)), libc::ERANGE, "{text}");
        }
        for text in [
            "%", "-1%", "50 %", "50%%", "1e1%", "5G%", "max%", "50%G", ".5%", "5.%",
        ] {
            assert_eq!(errno(parse_size(text, gpu)), libc::EINVAL, "{text}");
        }
        assert_eq!(parse_size("50%", None), Err(Error::NoMemorySize));
        assert_eq!(errno(parse_visible("0%", gpu)), libc::ERANGE);
    }

    #[test]
    fn flags_are_0_and_1_only() {
        assert_eq!(parse_flag("0"), Ok(false));
        assert_eq!(parse_flag("1"), Ok(true));
        assert_eq!(parse_flag("01"), Ok(true));
        for text in ["2", "10", "18446744073709551616"] {
            assert_eq!(errno(parse_flag(text)), libc::ERANGE, "{text}");
        }
        for text in ["", "yes", "true", "+1", "-0", "0x1", "1 1"] {
            assert_eq!(errno(parse_flag(text)), libc::EINVAL, "{text}");
        }
    }

    #[test]
    fn numbers_go_from_0_to_most() {
        let parse_priority = |text| parse_number(text, 15, "a number from 0 to 15");
        assert_eq!(parse_priority("0"), Ok(0));
        assert_eq!(parse_priority("15"), Ok(15));
        assert_eq!(parse_priority("010"), Ok(10));
        for text in ["16", "4294967296", "99999999999999999999999"] {
            assert_eq!(errno(parse_priority(text)), libc::ERANGE, "{text}");
        }
        for text in ["", "max", "-1", "+1", "0x1", "high"] {
            assert_eq!(errno(parse_priority(text)), libc::EINVAL, "{text}");
        }
    }

    #[test]
    fn quotas_parse_like_cpu_max() {
        let parse = |text| parse_quota(text, 20_000);
        for (text, expected) in [
            ("max", (NO_LIMIT, 20_000)),
            ("max 50000", (NO_LIMIT, 50_000)),
            ("1000", (1_000, 20_000)),
            ("25000 100000", (25_000, 100_000)),
            ("400000\t1000000", (400_000, 1_000_000)),
            ("50%", (10_000, 20_000)),
            ("12.5% 100000", (12_500, 100_000)),
            ("400%", (80_000, 20_000)),
        ] {
            let (usec, period_usec) = expected;
            assert_eq!(parse(text), Ok(Quota { usec, period_usec }), "{text}");
        }
        for text in [
            "999",
            "0",
            "1000000001",
            "1000 999",
            "1000 1000001",
            "max 0",
            "99999999999999999999",
            "18446744073709551615",
            "0%",
            "4.9%",
            "99999999999%",
            "50% 999",
        ] {
            assert_eq!(errno(parse(text)), libc::ERANGE, "{text}");
        }
        for text in [
            "",
            "1 2 3",
            "-1",
            "%",
            "1000 25%",
            "1000 max",
            "maximum",
            "1000,1000",
        ] {
            assert_eq!(errno(parse(text)), libc::EINVAL, "{text}");
        }
        let shown = quota(Quota {
            usec: 25_000,
            period_usec: 50_000,
        });
        assert_eq!(shown, "25000 50000\n");
        assert!(parse(&shown).is_ok());
        assert_eq!(quota(Quota::NONE), "max 100000\n");
    }

    #[test]
    fn policies_are_parsed_by_name() {
        for policy in arbiter::POLICIES {
            assert_eq!(parse_policy(policy.name), Ok(*policy));
            assert!(arbiter::names().contains(policy.name));
        }
        for text in ["", "Weighted", "fair", "strict weighted"] {
            assert_eq!(errno(parse_policy(text)), libc::EINVAL, "{text}");
        }
    }

    #[test]
    fn word_escapes_all_but_printable_ascii() {
        let word = |text| word(text).to_string();
        assert_eq!(word("python3"), "python3");
        assert_eq!(word("a b\nc=d\\"), "a\\040b\\012c\\075d\\134");
        assert_eq!(word("\u{e9}"), "\\303\\251");
        assert_eq!(word("\u{1b}[2J\u{9b}\t"), "\\033[2J\\302\\233\\011");
        // Override, isolate, line and paragraph separators, no width, no break.
        for odd in [
            "\u{202e}", "\u{2066}", "\u{2028}", "\u{2029}", "\u{200b}", "\u{a0}", "\u{feff}",
        ] {
            let shown = word(odd);
            assert!(
                shown.bytes().all(|byte| byte == b'\\' || byte.is_ascii_digit()),
                "{shown}"
            );
        }
    }
}
