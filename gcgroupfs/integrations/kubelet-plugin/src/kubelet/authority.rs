//! Connections of kubelets whose requests name the socket's path as their `:authority`, which is invalid.
//! The library rejects such requests with PROTOCOL_ERROR, so the name is replaced on the way.
//!
//! Kubelets with gRPC for Go before 1.34 do so (Kubernetes 1.20 does). Only the first request of a connection
//! spells the name out; later ones refer to it in the compression table (RFC 7541). The replacement has the
//! same length before compression, so that both ends evict entries of the table at the same time.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::net::UnixStream;

/// Bytes that are buffered in each direction.
const BUFFER: usize = 64 << 10;

/// Length of the bytes with which a client begins.
const PREFACE: usize = 24;

/// Length of a frame's header.
const HEADER: usize = 9;

/// Longest frame, unless the server permits more, which it does not.
const MAX_FRAME: usize = 16 << 10;

/// Type of a frame with the fields of a request.
const HEADERS: u8 = 1;

/// Flags of such a frame.
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Index of `:authority` in the static table.
const AUTHORITY: usize = 1;

/// Returns a connection on which requests have a valid authority. A task copies in both directions until one
/// end closes.
pub(super) fn repaired(kubelet: UnixStream) -> DuplexStream {
    let (ours, server) = duplex(BUFFER);
    tokio::spawn(async move {
        let (mut from_kubelet, mut to_kubelet) = kubelet.into_split();
        let (mut from_server, mut to_server) = split(ours);
        // An error of either direction ends the connection, of which the other end learns.
        tokio::select! {
            _ = copy_requests(&mut from_kubelet, &mut to_server) => {}
            _ = tokio::io::copy(&mut from_server, &mut to_kubelet) => {}
        }
    });
    server
}

async fn copy_requests(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
) -> std::io::Result<()> {
    let mut frame = vec![0; PREFACE];
    from.read_exact(&mut frame).await?;
    to.write_all(&frame).await?;
    loop {
        frame.resize(HEADER, 0);
        from.read_exact(&mut frame).await?;
        let length = frame
            .iter()
            .take(3)
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if length > MAX_FRAME {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        frame.resize(HEADER + length, 0);
        if let Some(payload) = frame.get_mut(HEADER..) {
            from.read_exact(payload).await?;
        }
        let repaired = repair(&frame);
        to.write_all(repaired.as_deref().unwrap_or(&frame)).await?;
    }
}

/// Returns a frame with a valid authority, if this one spells out an invalid one.
fn repair(frame: &[u8]) -> Option<Vec<u8>> {
    let (header, payload) = frame.split_at_checked(HEADER)?;
    let (kind, flags) = (*header.get(3)?, *header.get(4)?);
    if kind != HEADERS || flags & PADDED != 0 {
        return None;
    }
    let fields = if flags & PRIORITY != 0 { 5 } else { 0 };
    let (start, end, length) = find_path(payload, fields)?;
    let mut fixed = payload.get(..start)?.to_vec();
    // A string that is not compressed.
    push_number(&mut fixed, 7, 0, length);
    fixed.extend(std::iter::repeat_n(b'x', length));
    fixed.extend(payload.get(end..)?);
    if fixed.len() > MAX_FRAME {
        return None;
    }
    let size = u32::try_from(fixed.len()).ok()?.to_be_bytes();
    let mut whole = size.get(1..)?.to_vec();
    whole.extend(header.get(3..)?);
    whole.extend(fixed);
    Some(whole)
}

/// Finds an authority that begins with a slash. Returns where its string begins and ends, and how many
/// characters it has.
fn find_path(block: &[u8], mut at: usize) -> Option<(usize, usize, usize)> {
    while let Some(first) = block.get(at) {
        let prefix = match first {
            0x80.. => 7,
            0x40..=0x7f => 6,
            0x20..=0x3f => 5,
            _ => 4,
        };
        let index;
        (index, at) = number(block, at, prefix)?;
        if matches!(prefix, 7 | 5) {
            continue;
        }
        if index == 0 {
            at = text(block, at)?.1;
        }
        let (value, end) = text(block, at)?;
        if index == AUTHORITY {
            let is_compressed = block.get(at)? & 0x80 != 0;
            let length = match (is_compressed, value.first()?) {
                (false, b'/') => value.len(),
                (true, first) if first >> 2 == 0b01_1000 => nr_characters(value)?,
                _ => return None,
            };
            return Some((at, end, length));
        }
        at = end;
    }
    None
}

/// Decodes a number whose first byte has `prefix` bits of it. Returns it and where it ends.
fn number(block: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let most = (1 << prefix) - 1;
    let mut value = usize::from(*block.get(at)?) & most;
    if value < most {
        return Some((value, at + 1));
    }
    for (count, byte) in block.get(at + 1..)?.iter().enumerate().take(3) {
        value += usize::from(byte & 0x7f) << (7 * count);
        if byte & 0x80 == 0 {
            return Some((value, at + 2 + count));
        }
    }
    None
}

fn push_number(block: &mut Vec<u8>, prefix: u32, first: u8, value: usize) {
    let most = (1_usize << prefix) - 1;
    let low = |value: usize| u8::try_from(value & 0xff).unwrap_or(u8::MAX);
    if value < most {
        block.push(first | low(value));
        return;
    }
    block.push(first | low(most));
    let mut rest = value - most;
    while rest >= 0x80 {
        block.push(low(rest & 0x7f) | 0x80);
        rest >>= 7;
    }
    block.push(low(rest));
}

/// Returns the bytes of a string and where it ends.
fn text(block: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let (length, start) = number(block, at, 7)?;
    let end = start.checked_add(length)?;
    Some((block.get(start..end)?, end))
}

/// Returns the number of characters of a compressed string, if all are common ones: the code is canonical, so
/// the first bits tell a character's length.
fn nr_characters(bytes: &[u8]) -> Option<usize> {
    let bit = |at: usize| Some(bytes.get(at / 8)? >> (7 - at % 8) & 1);
    // Beyond the end there are ones, as in the padding.
    let bits = |at, count| (at..at + count).fold(0_u32, |sum, at| sum << 1 | u32::from(bit(at).unwrap_or(1)));
    let (mut at, mut count) = (0, 0);
    while at < 8 * bytes.len() {
        at += match bits(at, 8) {
            first if first >> 3 <= 0b0_1001 => 5,
            first if first >> 2 <= 0b10_1101 => 6,
            first if first >> 1 <= 0b111_1011 => 7,
            first if first <= 0b1111_1101 => 8,
            _ if 8 * bytes.len() - at < 8 => return Some(count),
            _ => return None,
        };
        count += 1;
    }
    (at == 8 * bytes.len()).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a HEADERS frame with a block.
    fn frame(block: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, u8::try_from(block.len()).unwrap(), HEADERS, 4, 0, 0, 0, 1];
        frame.extend(block);
        frame
    }

    #[test]
    fn characters_of_compressed_strings_are_counted() {
        // RFC 7541, C.4.1 and C.6.1.
        let host = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(nr_characters(&host), Some("www.example.com".len()));
        assert_eq!(nr_characters(&[0x64, 0x02]), Some("302".len()));
        assert_eq!(nr_characters(&[]), Some(0));
        assert_eq!(nr_characters(&[0xff, 0xff]), None);
    }

    #[test]
    fn path_becomes_a_name_of_the_same_length() {
        // :method POST, :scheme http, :authority "/a/b", and a literal field.
        let rest = [0x40, 1, b'k', 1, b'v'];
        let with = |value: &[u8]| frame(&[&[0x83, 0x86, 0x41][..], value, &rest].concat());
        let fixed = with(&[4, b'x', b'x', b'x', b'x']);
        assert_eq!(repair(&with(b"\x04/a/b")), Some(fixed.clone()));
        // 011000 00011 011000 100011 and padding.
        assert_eq!(
            repair(&with(&[0x83, 0b0110_0000, 0b0110_1100, 0b0100_0111])),
            Some(fixed)
        );
    }

    #[test]
    fn other_frames_and_names_stay() {
        for block in [
            &b"\x83\x86\x41\x09localhost"[..],
            b"\x83\x86\xbe",
            b"\x41",
            b"\x41\x7f\xff\xff\xff\xff",
            b"",
        ] {
            assert_eq!(repair(&frame(block)), None, "{block:?}");
        }
        let mut data = frame(b"\x41\x02/a");
        data[3] = 0;
        assert_eq!(repair(&data), None);
        assert_eq!(repair(b"short"), None);
    }

    #[test]
    fn numbers_round_trip() {
        for value in [0, 1, 126, 127, 128, 300, 16383] {
            let mut block = Vec::new();
            push_number(&mut block, 7, 0, value);
            assert_eq!(number(&block, 0, 7), Some((value, block.len())), "{value}");
        }
    }
}
