//! Parsers of values that are written to control files.

use gcgroup_abi::size::{self, Decimal, Unreadable};
use gcgroup_abi::{NO_LIMIT, VISIBLE_LIMIT, VISIBLE_SWAP};

use crate::arbiter::{self, Policy};
use crate::error::{Error, Result};
use crate::quota::Quota;

/// Format of [`parse_size`], for error messages.
const SIZE: &str =
    "bytes (as 8589934592, 8G, 8GB or 1.5GiB), a percentage of the GPU's memory (as 50%) or max";

/// Parses bytes, as [`size::parse_bytes`].
///
/// # Errors
/// * `ERANGE`: beyond 2^64 - 1.
/// * `EINVAL`: anything else.
pub fn parse_bytes(text: &str) -> Result<u64> {
    parse_bytes_or(text, size::BYTES)
}

/// Parses bytes as [`parse_bytes`] does, or a percentage of `memory` bytes, as `50%` or `12.5%`.
///
/// # Errors
/// * `ERANGE`: beyond 2^64 - 1 bytes, or 100%.
/// * `EOPNOTSUPP`: a percentage without `memory`.
/// * `EINVAL`: anything else.
pub fn parse_size(text: &str, memory: Option<u64>) -> Result<u64> {
    let Some(part) = Decimal::percent(text) else {
        return parse_bytes_or(text, SIZE);
    };
    let part = part.map_err(|reason| unreadable(reason, SIZE, text))?;
    if part.is_above(100) {
        return Err(Error::range("from 0% to 100%", text));
    }
    let memory = memory.ok_or(Error::NoMemorySize)?;
    Ok(u64::try_from(part.times(memory) / 100).unwrap_or(NO_LIMIT))
}

fn parse_bytes_or(text: &str, expected: &'static str) -> Result<u64> {
    size::parse_bytes(text).map_err(|reason| unreadable(reason, expected, text))
}

fn unreadable(reason: Unreadable, expected: &'static str, text: &str) -> Error {
    match reason {
        Unreadable::Format => Error::bad(expected, text),
        Unreadable::TooLarge => Error::range(expected, text),
    }
}

/// Format of [`parse_visible`], for error messages.
pub(crate) const VISIBLE: &str = "limit, swap, bytes (as 8589934592, 8G or 1.5GiB) or a percentage (as 50%)";

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

/// Format of [`parse_seconds`], for error messages.
pub(crate) const SECONDS: &str = "seconds (from 0 to 4294967295) or max";

/// Parses seconds, or `max`.
///
/// # Errors
/// * `EINVAL`: neither.
/// * `ERANGE`: more than 2^32 - 1.
pub fn parse_seconds(text: &str) -> Result<u64> {
    match text {
        "max" => Ok(NO_LIMIT),
        _ => parse_number(text, u32::MAX.into(), SECONDS),
    }
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
    let quota = match (first, Decimal::percent(first)) {
        ("max", _) => None,
        (_, Some(percent)) => {
            let percent = percent.map_err(|reason| unreadable(reason, EXPECTED, text))?;
            Some(percent.times(period_usec) / 100)
        }
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
