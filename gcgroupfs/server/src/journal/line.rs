//! Encodes and decodes one line of a state file: a JSON object that begins with the format's version and a
//! checksum.
//!
//! `{"v":2,"crc":"89abcdef","seq":1,"pid":…}`. The checksum is the CRC-32 (IEEE) of a salt, the version's
//! digits and all that follows the checksum, so it detects any damage within 32 adjacent bits. The salt of a
//! record is the boot id: a valid record was written since the machine was booted, even if the file's first
//! line is damaged. The start of a line and the range of its checksum must not change in later versions, so
//! that a newer line is not taken for damage.

use std::io;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// Format version that is written. Lines of version 1 had neither version nor checksum.
pub(super) const VERSION: u32 = 2;

const HEAD: &[u8] = b"{\"v\":";
const BEFORE_CRC: &[u8] = b",\"crc\":\"";
const CRC_DIGITS: usize = 8;
const AFTER_CRC: &[u8] = b"\",";

/// Why a line cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The line is damaged or of version 1: its beginning is not valid.
    Form,
    /// The checksum does not match, or the object is not of the expected type.
    Damage,
    /// The line is valid, but of a later version.
    Newer,
}

/// Encodes an object as a line, with its newline.
///
/// # Errors
/// `value` is not a JSON object with at least one member.
pub(super) fn encode(salt: &str, value: &impl Serialize) -> io::Result<Vec<u8>> {
    let object = serde_json::to_vec(value)?;
    let body = object
        .strip_prefix(b"{")
        .filter(|body| body.len() > 1)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let version = VERSION.to_string();
    let crc = format!("{:08x}", checksum(salt, version.as_bytes(), body));
    let parts = [
        HEAD,
        version.as_bytes(),
        BEFORE_CRC,
        crc.as_bytes(),
        AFTER_CRC,
        body,
        b"\n",
    ];
    Ok(parts.concat())
}

/// A [`Fault`].
pub(super) fn decode<T: DeserializeOwned>(salt: &str, line: &[u8]) -> Result<T, Fault> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let Parts { version, crc, body } = split(line).ok_or(Fault::Form)?;
    if format!("{:08x}", checksum(salt, version, body)).as_bytes() != crc {
        return Err(Fault::Damage);
    }
    if version != VERSION.to_string().as_bytes() {
        return Err(Fault::Newer);
    }
    serde_json::from_slice(&[b"{", body].concat()).map_err(|_| Fault::Damage)
}

/// Returns whether `rest`, the end of a file, is the beginning of a line whose writer was killed. A line
/// damaged in its last byte, the newline, is not: a writer never stops there.
pub(super) fn is_torn(rest: &[u8]) -> bool {
    match split(rest) {
        Some(Parts { body, .. }) => {
            let object = serde_json::from_slice::<IgnoredAny>(&[b"{", body].concat());
            object.is_err_and(|error| error.is_eof())
        }
        None => {
            let version = VERSION.to_string();
            let digits = [b'0'; CRC_DIGITS];
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            let head = [HEAD, version.as_bytes(), BEFORE_CRC, &digits, AFTER_CRC].concat();
            let crc_at = HEAD.len() + version.len() + BEFORE_CRC.len();
            let crc_at = crc_at..crc_at + CRC_DIGITS;
            let mut bytes = rest.iter().zip(&head).enumerate();
            rest.len() < head.len()
                && bytes.all(|(at, (byte, expected))| match crc_at.contains(&at) {
                    true => is_digit(*byte),
                    false => byte == expected,
                })
        }
    }
}

/// Parts of a line.
struct Parts<'a> {
    /// Decimal digits.
    version: &'a [u8],
    crc: &'a [u8],
    /// The object's members and its closing brace.
    body: &'a [u8],
}

fn split(line: &[u8]) -> Option<Parts<'_>> {
    let rest = line.strip_prefix(HEAD)?;
    let (version, rest) = rest.split_at_checked(rest.iter().position(|byte| *byte == b',')?)?;
    let rest = rest.strip_prefix(BEFORE_CRC)?;
    let (crc, rest) = rest.split_at_checked(CRC_DIGITS)?;
    let body = rest.strip_prefix(AFTER_CRC)?;
    let is_number = !version.is_empty() && version.iter().all(u8::is_ascii_digit);
    is_number.then_some(Parts { version, crc, body })
}

fn checksum(salt: &str, version: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in [salt.as_bytes(), b"\n", version, b"\n", body] {
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Object {
        seq: u64,
        text: String,
    }

    fn object() -> Object {
        Object {
            seq: 7,
            text: "a \"b\" {c}, \u{e9}\n".into(),
        }
    }

    #[test]
    fn line_decodes_to_what_was_encoded() {
        let line = encode("salt", &object()).unwrap();
        assert!(line.ends_with(b"\n") && line.iter().filter(|byte| **byte == b'\n').count() == 1);
        assert_eq!(decode("salt", &line), Ok(object()));
        assert_eq!(decode("salt", &line[..line.len() - 1]), Ok(object()));
        assert_eq!(decode::<Object>("other", &line), Err(Fault::Damage));
        // Other programs can read it.
        assert!(serde_json::from_slice::<serde_json::Value>(&line).is_ok());
    }

    #[test]
    fn flipped_bit_never_decodes() {
        let line = encode("salt", &object()).unwrap();
        for bit in 0..(line.len() - 1) * 8 {
            let mut flipped = line.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode::<Object>("salt", &flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn prefix_is_torn_and_flipped_newline_is_not() {
        let line = encode("salt", &object()).unwrap();
        for cut in 0..line.len() - 1 {
            assert!(is_torn(&line[..cut]), "cut at {cut}");
        }
        for bit in 0..8 {
            let mut flipped = line.clone();
            *flipped.last_mut().unwrap() ^= 1 << bit;
            assert!(!is_torn(&flipped), "bit {bit}");
        }
        assert!(!is_torn(b"\0\0\0") && !is_torn(b"{\"seq\":1"));
    }

    #[test]
    fn later_version_is_told_from_damage() {
        let body = br#""future":1}"#;
        let crc = checksum("salt", b"3", body);
        let line = format!("{{\"v\":3,\"crc\":\"{crc:08x}\",\"future\":1}}\n");
        assert_eq!(decode::<Object>("salt", line.as_bytes()), Err(Fault::Newer));
        let line = line.replace("\"v\":3", "\"v\":4");
        assert_eq!(decode::<Object>("salt", line.as_bytes()), Err(Fault::Damage));
    }
}
