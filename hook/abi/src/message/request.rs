//! Requests of clients to the daemon, for use without the mount, and their answers.
//!
//! Requests are packets with [`Tag::Request`] on the socket that hooks register on; each has one answer.
//! After the eight bytes of header, little-endian:
//!
//! ```text
//! request:  operation u32, offset u32, length of name u32, name, value
//! answer:   status u32 (an errno, or 0), total length of the text u32, the text from `offset` on
//!           (of a list that goes on: one more than the length so far)
//! ```
//!
//! | operation | name | value | answer |
//! |---|---|---|---|
//! | get | a control file's path below the mount point | | its text |
//! | set | a control file's path below the mount point | one write | |
//! | list | names of control files, one per line | | JSON, one line for each process and each of its devices
//! |
//! | make | a group's path | | |
//! | remove | a group's path | | |
//! | list groups | names of control files, one per line | | JSON, one line for each group that the client may
//! find, and for each of its devices |
//! | may begin | a group's path | | status 0 if a process of the client's may begin there, or if rules decide
//! later |
//! | explain | a process's or a group's path | | an `Explanation` (`gcgroupfs/model/src/tree/explain.rs`) as
//! JSON |
//! | hold | settings to hold, `FILE VALUE`, one per line | paths of processes and groups, one per line | |
//! | devices | the path of a group to begin in, or nothing | nothing, or `=` and `CUDA_VISIBLE_DEVICES` |
//! nothing if the client may use all devices; or two lines: the UUIDs of those that it may use, separated by
//! commas, and the value of `CUDA_VISIBLE_DEVICES` for it |
//! | ended | a pid, or nothing | | JSON, one line for each program that has ended (`Exited` in
//! `gcgroupfs/model/src/tree/exited.rs`), the oldest first; empty lines have no meaning |
//! | events | number of the last event that the client has seen, or nothing | | JSON, one line for each later
//! event (`gcgroupfs/model/src/event.rs`) |
//! | begin | the path of a group to begin in, or nothing | name of the job, or nothing; a NUL; path of the
//! program | path of the group that was made for the job |
//!
//! `devices` is the request of a hook before the driver or NVML lists devices. It registers nothing: the
//! answer is that for the group in which the process is, or would begin.
//!
//! `begin` makes a transient group for the command that the client is about to execute, and for its
//! descendants. The group is held until the client's process has ended. A job without a name is named
//! `job-PID`.
//!
//! `hold` holds settings for the process that connected, all or none of them, until that process has ended;
//! what it executes and what becomes of the connection does not matter
//! (`gcgroupfs/model/src/tree/groups.md`).
//!
//! A line of `list` is `{"pid", "device", "uid", "comm", "group", "files": {name: text}}`, a line of
//! `list groups` is `{"group", "device", "uid", "files": {name: text}}`, where `uid` is the group's owner.
//!
//! A text longer than a packet is read in parts: it is rendered at offset 0 and kept by the connection, as an
//! open file keeps it; the next request names the offset at which the last part ended. A list is rendered
//! part by part, each within a millisecond, so that other clients are served between them. Refusals carry the
//! errno of the mount, and as text a sentence that explains it.

use super::{Malformed, Tag, bare, tag};

/// Length of a header, bytes.
const HEADER: usize = 8;

/// Longest packet of a request, bytes.
pub const MAX_REQUEST: usize = 16 << 10;

/// Longest packet of an answer, bytes; the socket's send buffer has room for several.
pub const MAX_ANSWER: usize = 32 << 10;

/// Longest part of a text in an answer, bytes.
pub const MAX_PART: usize = MAX_ANSWER - HEADER - 8;

#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Get = 1,
    Set = 2,
    List = 3,
    Make = 4,
    Remove = 5,
    MayBegin = 6,
    Explain = 7,
    Begin = 8,
    ListGroups = 9,
    Hold = 10,
    Devices = 11,
    Ended = 12,
    Events = 13,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    pub operation: Operation,
    pub offset: u32,
    pub name: &'a str,
    pub value: &'a [u8],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<'a> {
    /// 0 or an errno.
    pub status: u32,
    /// Length of the whole text, bytes.
    pub total: u32,
    /// Part of the text; of a refusal, its reason in words.
    pub part: &'a [u8],
}

impl<'a> Request<'a> {
    /// Returns the packet; `Bytes` is a `Vec` where there is one.
    #[must_use]
    pub fn to_bytes<Bytes: Default + for<'b> Extend<&'b u8>>(&self) -> Bytes {
        let words = [self.operation as u32, self.offset, length(self.name.as_bytes())];
        packet(&words, &[self.name.as_bytes(), self.value])
    }

    /// Parses a packet.
    ///
    /// # Errors
    /// What is wrong with the packet.
    pub fn from_bytes(packet: &'a [u8]) -> Result<Self, Malformed> {
        let ([operation, offset, length], body) = words(packet)?;
        let operation = match operation {
            1 => Operation::Get,
            2 => Operation::Set,
            3 => Operation::List,
            4 => Operation::Make,
            5 => Operation::Remove,
            6 => Operation::MayBegin,
            7 => Operation::Explain,
            8 => Operation::Begin,
            9 => Operation::ListGroups,
            10 => Operation::Hold,
            11 => Operation::Devices,
            12 => Operation::Ended,
            13 => Operation::Events,
            _ => return Err(Malformed::Tag),
        };
        let length = usize::try_from(length).map_err(|_| Malformed::Length)?;
        let (name, value) = body.split_at_checked(length).ok_or(Malformed::Length)?;
        let name = core::str::from_utf8(name).map_err(|_| Malformed::Length)?;
        Ok(Self {
            operation,
            offset,
            name,
            value,
        })
    }
}

impl<'a> Answer<'a> {
    /// Returns the answer with the part of `text` from `offset` on that fits in a packet.
    #[must_use]
    pub fn part(text: &'a [u8], offset: u32) -> Self {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| text.get(offset..))
            .unwrap_or_default();
        let part = rest.get(..MAX_PART).unwrap_or(rest);
        Self {
            status: 0,
            total: length(text),
            part,
        }
    }

    /// Returns a refusal with its explanation, cut to fit in a packet.
    #[must_use]
    pub fn refusal(errno: i32, why: &'a str) -> Self {
        Self {
            status: errno.unsigned_abs(),
            ..Self::part(why.as_bytes(), 0)
        }
    }

    /// Returns the packet; `Bytes` is a `Vec` where there is one.
    #[must_use]
    pub fn to_bytes<Bytes: Default + for<'b> Extend<&'b u8>>(&self) -> Bytes {
        packet(&[self.status, self.total], &[self.part])
    }

    /// Parses a packet.
    ///
    /// # Errors
    /// What is wrong with the packet.
    pub fn from_bytes(packet: &'a [u8]) -> Result<Self, Malformed> {
        let ([status, total], part) = words(packet)?;
        Ok(Self { status, total, part })
    }
}

fn packet<Bytes: Default + for<'b> Extend<&'b u8>>(words: &[u32], parts: &[&[u8]]) -> Bytes {
    let mut out = Bytes::default();
    out.extend(&bare(Tag::Request));
    for word in words {
        out.extend(&word.to_le_bytes());
    }
    for part in parts {
        out.extend(*part);
    }
    out
}

/// Checks the header, and returns the first words of the body and the rest.
fn words<const N: usize>(packet: &[u8]) -> Result<([u32; N], &[u8]), Malformed> {
    if tag(packet)? != Tag::Request {
        return Err(Malformed::Tag);
    }
    let mut rest = packet.get(HEADER..).ok_or(Malformed::Length)?;
    let mut words = [0; N];
    for word in &mut words {
        let (head, tail) = rest.split_first_chunk().ok_or(Malformed::Length)?;
        *word = u32::from_le_bytes(*head);
        rest = tail;
    }
    Ok((words, rest))
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn requests_and_answers_round_trip() {
        let request = Request {
            operation: Operation::Set,
            offset: 7,
            name: "1/memory.limit",
            value: b"1G\n",
        };
        assert_eq!(Request::from_bytes(&request.to_bytes::<Vec<u8>>()), Ok(request));
        let answer = Answer {
            status: 22,
            total: 0,
            part: b"",
        };
        assert_eq!(Answer::from_bytes(&answer.to_bytes::<Vec<u8>>()), Ok(answer));
    }

    #[test]
    fn truncated_request_is_error_or_loses_value_only() {
        let request = Request {
            operation: Operation::Set,
            offset: 0,
            name: "a/b",
            value: b"12",
        };
        let packet: Vec<u8> = request.to_bytes();
        for end in 0..packet.len() {
            match Request::from_bytes(&packet[..end]) {
                Ok(cut) => assert!(end >= packet.len() - 2 && cut.name == "a/b", "{end}"),
                Err(_) => assert!(end < packet.len() - 2, "{end}"),
            }
        }
    }

    #[test]
    fn request_with_hostile_words_is_error() {
        let good: Vec<u8> = Request {
            operation: Operation::Get,
            offset: 0,
            name: "abcd",
            value: b"",
        }
        .to_bytes();
        let with = |at: usize, word: u32| {
            let mut packet = good.clone();
            packet[at..at + 4].copy_from_slice(&word.to_le_bytes());
            Request::from_bytes(&packet).map(|_| ())
        };
        assert_eq!(with(8, 99), Err(Malformed::Tag));
        assert_eq!(with(16, u32::MAX), Err(Malformed::Length));
        assert_eq!(with(16, 5), Err(Malformed::Length));
        assert_eq!(with(20, 0xffff_ffff), Err(Malformed::Length), "not UTF-8");
    }

    #[test]
    fn long_text_is_read_in_parts_that_fit_packets() {
        let text: Vec<u8> = (0..100_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut got: Vec<u8> = Vec::new();
        while got.len() < text.len() {
            let packet: Vec<u8> = Answer::part(&text, u32::try_from(got.len()).unwrap()).to_bytes();
            assert!(packet.len() <= MAX_ANSWER);
            let answer = Answer::from_bytes(&packet).unwrap();
            assert_eq!(answer.total as usize, text.len());
            got.extend(answer.part);
        }
        assert_eq!(got, text);
        assert_eq!(Answer::part(&text, u32::MAX).part, b"");
    }
}
