//! Numbers as GVM's files accept and show them.

use nix::errno::Errno;

/// Bytes from which on a write is too long.
const TOO_LONG: usize = 32;

/// Parses one write as `kstrtoul` of the Linux kernel does, in base 10: digits, a plus sign before them and a
/// newline after them or not. The text ends at a NUL.
///
/// # Errors
/// * `EINVAL`: anything else, or 32 bytes and more.
/// * `ERANGE`: 2^64 and more.
pub(super) fn parse(data: &[u8]) -> nix::Result<u64> {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let text = std::str::from_utf8(&data[..end]).map_err(|_| Errno::EINVAL)?;
    let digits = text.strip_suffix('\n').unwrap_or(text);
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || data.len() >= TOO_LONG {
        return Err(Errno::EINVAL);
    }
    digits.parse().map_err(|_| Errno::ERANGE)
}

/// Returns a control file's number.
///
/// # Errors
/// `EIO` if the daemon shows something else.
pub(super) fn shown(text: &str) -> nix::Result<u64> {
    match text.trim_end() {
        "max" => Ok(u64::MAX),
        number => number.parse().map_err(|_| Errno::EIO),
    }
}

/// Returns the number as a control file accepts it.
pub(super) fn written(number: u64) -> String {
    match number {
        u64::MAX => "max".to_owned(),
        number => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_accepted_and_refused_as_by_the_kernel() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("1\n", Ok(1)),
            ("1\n\0x", Ok(1)),
            ("\x001", Err(Errno::EINVAL)),
            ("+6000000001", Ok(6_000_000_001)),
            ("007\n", Ok(7)),
            ("18446744073709551615\n", Ok(u64::MAX)),
            ("18446744073709551616", Err(Errno::ERANGE)),
            ("", Err(Errno::EINVAL)),
            ("\n", Err(Errno::EINVAL)),
            ("+", Err(Errno::EINVAL)),
            ("++1", Err(Errno::EINVAL)),
            ("-1", Err(Errno::EINVAL)),
            (" 1", Err(Errno::EINVAL)),
            ("1 ", Err(Errno::EINVAL)),
            ("1\n\n", Err(Errno::EINVAL)),
            ("0x100", Err(Errno::EINVAL)),
            ("6G", Err(Errno::EINVAL)),
            ("max", Err(Errno::EINVAL)),
            ("0000000000000000000000000000001", Ok(1)),
            ("00000000000000000000000000000001", Err(Errno::EINVAL)),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(parse(b"\xff"), Err(Errno::EINVAL));
    }
}
