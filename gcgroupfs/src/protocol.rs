//! Requests of the command line to the daemon, for places without the mount.
//!
//! They go over the socket that hooks register on, as packets of [`Tag::Request`]; one answer to each. After the
//! eight bytes of header, little-endian:
//!
//! ```text
//! request:  operation u32, offset u32, length of name u32, name, value
//! answer:   status u32 (an errno, or 0), total length of the text u32, the text from `offset` on
//! ```
//!
//! | operation | name | value | answers |
//! |---|---|---|---|
//! | get | a control file's path below the mount point | | its text |
//! | set | likewise | one write | |
//! | list | names of control files, one a line | | a JSON line for each process and each of its devices: `{"pid", "device", "uid", "comm", "group", "files": {name: text}}` |
//! | make | a group's path | | |
//! | remove | likewise | | |
//! | may begin | likewise | | whether a process of the asker's may begin there; yes where there are rules, which decide later |
//!
//! A text longer than a packet comes in parts: it is made anew at offset 0 and kept by the connection, as an open file
//! keeps it; ask on from where the last part ended. Refusals come with an errno, as from the mount.

use gcgroup_abi::message::{self, Malformed, Tag};

/// Bytes of a header.
const HEADER: usize = 8;

/// The longest packet of a request.
pub const MAX_REQUEST: usize = 16 << 10;

/// The longest packet of an answer; the socket's send buffer has room for several.
pub const MAX_ANSWER: usize = 32 << 10;

#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Get = 1,
    Set = 2,
    List = 3,
    Make = 4,
    Remove = 5,
    MayBegin = 6,
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
    /// Zero or an errno.
    pub status: u32,
    /// Bytes of the whole text.
    pub total: u32,
    pub part: &'a [u8],
}

impl<'a> Request<'a> {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = message::bare(Tag::Request).to_vec();
        for word in [self.operation as u32, self.offset, length(self.name.as_bytes())] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.name.as_bytes());
        out.extend(self.value);
        out
    }

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
            _ => return Err(Malformed::Tag),
        };
        let length = usize::try_from(length).map_err(|_| Malformed::Length)?;
        let (name, value) = body.split_at_checked(length).ok_or(Malformed::Length)?;
        let name = str::from_utf8(name).map_err(|_| Malformed::Length)?;
        Ok(Self {
            operation,
            offset,
            name,
            value,
        })
    }
}

impl<'a> Answer<'a> {
    /// The part of `text` that begins at `offset`, as much of it as a packet takes.
    pub fn part(text: &'a [u8], offset: u32) -> Self {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| text.get(offset..))
            .unwrap_or_default();
        let part = rest.get(..MAX_ANSWER - HEADER - 8).unwrap_or(rest);
        Self {
            status: 0,
            total: length(text),
            part,
        }
    }

    pub fn refusal(errno: i32) -> Self {
        Self {
            status: errno.unsigned_abs(),
            total: 0,
            part: &[],
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = message::bare(Tag::Request).to_vec();
        for word in [self.status, self.total] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.part);
        out
    }

    /// # Errors
    /// What is wrong with the packet.
    pub fn from_bytes(packet: &'a [u8]) -> Result<Self, Malformed> {
        let ([status, total], part) = words(packet)?;
        Ok(Self { status, total, part })
    }
}

/// Checks the header and takes the first words of the body.
fn words<const N: usize>(packet: &[u8]) -> Result<([u32; N], &[u8]), Malformed> {
    if message::tag(packet)? != Tag::Request {
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
    use super::*;

    #[test]
    fn requests_and_answers_come_back_as_they_went() {
        let request = Request {
            operation: Operation::Set,
            offset: 7,
            name: "1/memory.limit",
            value: b"1G\n",
        };
        assert_eq!(Request::from_bytes(&request.to_bytes()), Ok(request));
        let answer = Answer {
            status: 22,
            total: 0,
            part: b"",
        };
        assert_eq!(Answer::from_bytes(&answer.to_bytes()), Ok(answer));
    }

    #[test]
    fn every_truncation_of_a_request_is_an_error_or_loses_value_only() {
        let request = Request {
            operation: Operation::Set,
            offset: 0,
            name: "a/b",
            value: b"12",
        };
        let packet = request.to_bytes();
        for end in 0..packet.len() {
            match Request::from_bytes(&packet[..end]) {
                Ok(cut) => assert!(end >= packet.len() - 2 && cut.name == "a/b", "{end}"),
                Err(_) => assert!(end < packet.len() - 2, "{end}"),
            }
        }
    }

    #[test]
    fn hostile_words_are_errors() {
        let good = Request {
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
    fn a_long_text_comes_in_parts_that_fit_packets() {
        let text: Vec<u8> = (0..100_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut got: Vec<u8> = Vec::new();
        while got.len() < text.len() {
            let packet = Answer::part(&text, u32::try_from(got.len()).unwrap()).to_bytes();
            assert!(packet.len() <= MAX_ANSWER);
            let answer = Answer::from_bytes(&packet).unwrap();
            assert_eq!(answer.total as usize, text.len());
            got.extend(answer.part);
        }
        assert_eq!(got, text);
        assert_eq!(Answer::part(&text, u32::MAX).part, b"");
    }
}
