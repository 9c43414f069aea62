//! Encodes and decodes one line of a state file: a JSON object with the format's version, a checksum and the
//! line's number.
//!
//! `{"v":3,"crc":"89abcdef","n":7,"seq":1,"pid":…}`. The checksum is the CRC-32 (IEEE) of a salt and all that
//! follows the checksum, so it detects any damage within 32 adjacent bits. The salt of a record is the boot
//! id: a valid record was written since the machine was booted, even if the file's first line is damaged.

use serde::de::DeserializeOwned;

const HEAD: &[u8] = b"{\"v\":3,\"crc\":\"";
const CRC_DIGITS: usize = 8;
const AFTER_CRC: &[u8] = b"\",\"n\":";

/// Encodes a JSON object with at least one member as a line, with its newline.
pub(crate) fn encode(salt: &str, number: u64, object: &[u8]) -> Vec<u8> {
    let members = object.strip_prefix(b"{").unwrap_or(object);
    let body = [number.to_string().as_bytes(), b",", members].concat();
    let crc = format!("{:08x}", checksum(salt, &body));
    [HEAD, crc.as_bytes(), AFTER_CRC, &body, b"\n"].concat()
}

/// Returns the number of a line and its object; `None` if the line is damaged.
pub(crate) fn open(salt: &str, line: &[u8]) -> Option<(u64, Vec<u8>)> {
    let rest = line.strip_suffix(b"\n")?.strip_prefix(HEAD)?;
    let (crc, rest) = rest.split_at_checked(CRC_DIGITS)?;
    let body = rest.strip_prefix(AFTER_CRC)?;
    if format!("{:08x}", checksum(salt, body)).as_bytes() != crc {
        return None;
    }
    let (number, members) = body.split_at_checked(body.iter().position(|byte| *byte == b',')?)?;
    let number = str::from_utf8(number).ok()?.parse().ok()?;
    Some((number, [b"{", members.get(1..)?].concat()))
}

/// Returns the number of a line and its decoded object; `None` if the line is damaged.
pub(crate) fn decode<T: DeserializeOwned>(salt: &str, line: &[u8]) -> Option<(u64, T)> {
    let (number, object) = open(salt, line)?;
    Some((number, serde_json::from_slice(&object).ok()?))
}

fn checksum(salt: &str, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in [salt.as_bytes(), b"\n", body] {
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

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

    fn line() -> Vec<u8> {
        encode("salt", 12, &serde_json::to_vec(&object()).unwrap())
    }

    #[test]
    fn line_decodes_to_what_was_encoded() {
        let line = line();
        assert!(line.ends_with(b"\n") && line.iter().filter(|byte| **byte == b'\n').count() == 1);
        assert_eq!(decode("salt", &line), Some((12, object())));
        assert_eq!(decode::<Object>("other", &line), None);
        // Other programs can read it.
        assert!(serde_json::from_slice::<serde_json::Value>(&line).is_ok());
    }

    #[test]
    fn flipped_bit_or_missing_end_never_decodes() {
        let line = line();
        for bit in 0..line.len() * 8 {
            let mut flipped = line.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode::<Object>("salt", &flipped), None, "bit {bit}");
        }
        for cut in 0..line.len() {
            assert_eq!(decode::<Object>("salt", &line[..cut]), None, "cut at {cut}");
        }
    }
}
