//! What passes over the daemon's `SOCK_SEQPACKET` socket between it and a hook.
//!
//! One packet is one message: eight bytes of header, then the body, all little-endian. Packets of another
//! length than their kind has are errors, never read in part. Identity is never in a message: the daemon asks
//! the kernel (`SO_PEERPIDFD`, `SO_PEERCRED`).

use crate::NO_LIMIT;

/// Begins every packet: "gcg" and the version of this protocol.
pub const PROTOCOL: u32 = u32::from_le_bytes(*b"gcg\x01");

/// The longest packet either side sends to the other's hook endpoint.
pub const MAX_LENGTH: usize = 64;

/// What a packet is.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// Hook to daemon, first packet, with the usage block's descriptor: [`Hello`].
    Hello = 1,
    /// Daemon to hook, the answer, with the control block's descriptor (if accepted): [`Welcome`].
    Welcome = 2,
    /// Daemon to hook: look at the control block. Hook to daemon: look at the usage block. No body.
    Doorbell = 3,
    /// Client to daemon, first packet: a request of the command line; the body is the daemon's own matter.
    Request = 4,
}

/// A packet that is not one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Too short for a header, or of the wrong length for its kind.
    Length,
    /// Another protocol, or another version of this one.
    Protocol,
    /// An unknown kind.
    Tag,
}

/// The first packet's wishes: what the process was started with (`GCGROUP_MEMORY_LIMIT`, …). They hold only
/// until somebody writes the file, and a process cannot loosen by them what was set for it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// [`crate::VERSION`] of the hook's blocks.
    pub abi: u32,
    /// Bytes; [`NO_LIMIT`]: no wish.
    pub memory_limit: u64,
    /// 0 to 15; all ones: no wish.
    pub priority: u32,
    /// 1: start frozen.
    pub freeze: u32,
    /// 1: large allocations can be swapped out.
    pub can_swap: u32,
    /// Bytes that may be; 0: no wish.
    pub memory_swap_max: u64,
    /// The group to begin in.
    pub group: GroupName,
    /// 1: the daemon refuses the process (`EACCES`) rather than have it begin outside of `group`. Travels as the second
    /// bit of the word of `can_swap`.
    pub insists: u32,
}

/// The path of a group below the root, as `a/b`; empty: no wish. What may follow it in its field is zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupName([u8; Self::LONGEST]);

impl GroupName {
    /// Bytes.
    pub const LONGEST: usize = 128;

    pub const NONE: Self = Self([0; Self::LONGEST]);

    /// Nothing if the text does not fit, or has a zero in it.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut name = Self::NONE;
        name.0.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        (!text.contains('\0')).then_some(name)
    }

    /// Nothing if it is empty or no text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let text = self.0.split(|byte| *byte == 0).next()?;
        core::str::from_utf8(text).ok().filter(|text| !text.is_empty())
    }
}

impl Hello {
    /// No wishes.
    pub const PLAIN: Hello = Hello {
        abi: crate::VERSION,
        memory_limit: NO_LIMIT,
        priority: u32::MAX,
        freeze: 0,
        can_swap: 0,
        memory_swap_max: 0,
        group: GroupName::NONE,
        insists: 0,
    };
    pub const LENGTH: usize = 8 + 32 + GroupName::LONGEST;

    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        let mut at = Writer { out: &mut out, at: 0 };
        at.header(Tag::Hello);
        at.u32(self.abi);
        at.u32(self.priority);
        at.u64(self.memory_limit);
        at.u32(self.freeze);
        at.u32((self.can_swap & 1) | ((self.insists & 1) << 1));
        at.u64(self.memory_swap_max);
        at.put(&self.group.0);
        out
    }

    /// # Errors
    /// What is wrong with the packet.
    pub fn from_bytes(packet: &[u8]) -> Result<Self, Malformed> {
        let mut at = Reader::of(packet, Tag::Hello, Self::LENGTH)?;
        let (abi, priority, memory_limit, freeze) = (at.u32()?, at.u32()?, at.u64()?, at.u32()?);
        let (bits, memory_swap_max) = (at.u32()?, at.u64()?);
        let group = GroupName(at.take()?);
        Ok(Self {
            abi,
            memory_limit,
            priority,
            freeze,
            can_swap: bits & 1,
            memory_swap_max,
            group,
            insists: (bits >> 1) & 1,
        })
    }
}

/// [`Hello::abi`] of a packet that says hello in whatever version: of everything that follows the header, it alone is
/// where it is for good.
///
/// # Errors
/// What is wrong with the packet.
pub fn version(hello: &[u8]) -> Result<u32, Malformed> {
    match tag(hello)? {
        Tag::Hello => Reader {
            rest: hello.get(8..).unwrap_or(&[]),
        }
        .u32(),
        _ => Err(Malformed::Tag),
    }
}

/// The daemon's answer to [`Hello`]. It is the same for all versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// [`crate::VERSION`] of the daemon's blocks.
    pub abi: u32,
    /// Zero, and a descriptor comes along; else an errno and the process goes ungoverned.
    pub status: u32,
}

impl Welcome {
    pub const LENGTH: usize = 8 + 8;

    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        let mut at = Writer { out: &mut out, at: 0 };
        at.header(Tag::Welcome);
        at.u32(self.abi);
        at.u32(self.status);
        out
    }

    /// # Errors
    /// What is wrong with the packet.
    pub fn from_bytes(packet: &[u8]) -> Result<Self, Malformed> {
        let mut at = Reader::of(packet, Tag::Welcome, Self::LENGTH)?;
        Ok(Self {
            abi: at.u32()?,
            status: at.u32()?,
        })
    }
}

/// A packet without a body.
#[must_use]
pub fn bare(tag: Tag) -> [u8; 8] {
    let mut out = [0; 8];
    Writer { out: &mut out, at: 0 }.header(tag);
    out
}

/// The kind of a packet, by its header.
///
/// # Errors
/// What is wrong with the header.
pub fn tag(packet: &[u8]) -> Result<Tag, Malformed> {
    let mut at = Reader { rest: packet };
    if at.u32()? != PROTOCOL {
        return Err(Malformed::Protocol);
    }
    match at.u32()? {
        1 => Ok(Tag::Hello),
        2 => Ok(Tag::Welcome),
        3 => Ok(Tag::Doorbell),
        4 => Ok(Tag::Request),
        _ => Err(Malformed::Tag),
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        if let Some(place) = self.out.get_mut(self.at..end) {
            place.copy_from_slice(bytes);
        }
        self.at = end;
    }

    fn header(&mut self, tag: Tag) {
        self.u32(PROTOCOL);
        self.u32(tag as u32);
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn of(packet: &'a [u8], want: Tag, length: usize) -> Result<Self, Malformed> {
        if tag(packet)? != want {
            return Err(Malformed::Tag);
        }
        if packet.len() != length {
            return Err(Malformed::Length);
        }
        Ok(Self {
            rest: packet.get(8..).unwrap_or(&[]),
        })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed::Length)?;
        self.rest = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went() {
        let hello = Hello {
            abi: 7,
            memory_limit: 1 << 40,
            priority: 3,
            freeze: 1,
            can_swap: 1,
            memory_swap_max: 9,
            group: GroupName::new("team/a").unwrap(),
            insists: 1,
        };
        assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
        let welcome = Welcome { abi: 7, status: 95 };
        assert_eq!(Welcome::from_bytes(&welcome.to_bytes()), Ok(welcome));
        assert_eq!(tag(&bare(Tag::Doorbell)), Ok(Tag::Doorbell));
    }

    #[test]
    fn a_groups_name_is_text_that_fits() {
        let long = [b'x'; GroupName::LONGEST + 1];
        let long = core::str::from_utf8(&long).unwrap();
        for text in ["a", "a/\u{e9}", &long[1..]] {
            assert_eq!(GroupName::new(text).unwrap().as_str(), Some(text));
        }
        assert_eq!(GroupName::new(""), Some(GroupName::NONE));
        assert_eq!(GroupName::NONE.as_str(), None);
        assert_eq!(GroupName::new(long), None);
        assert_eq!(GroupName::new("a\0b"), None);
        assert_eq!(GroupName([0xff; GroupName::LONGEST]).as_str(), None);
    }

    #[test]
    fn every_truncation_and_extension_is_an_error() {
        let hello = Hello::PLAIN.to_bytes();
        for length in 0..hello.len() {
            assert!(Hello::from_bytes(&hello[..length]).is_err(), "{length}");
        }
        let mut longer = [0; Hello::LENGTH + 1];
        longer[..Hello::LENGTH].copy_from_slice(&hello);
        assert_eq!(Hello::from_bytes(&longer), Err(Malformed::Length));
        assert_eq!(
            Hello::from_bytes(&Welcome { abi: 1, status: 0 }.to_bytes()),
            Err(Malformed::Tag)
        );
    }

    #[test]
    fn a_version_is_read_whatever_else_is_said() {
        let hello = Hello {
            abi: 9,
            ..Hello::PLAIN
        }
        .to_bytes();
        let mut longer = [0; Hello::LENGTH + 24];
        longer[..Hello::LENGTH].copy_from_slice(&hello);
        for packet in [&hello[..12], &hello, &longer] {
            assert_eq!(version(packet), Ok(9));
        }
        assert_eq!(version(&hello[..11]), Err(Malformed::Length));
        assert_eq!(version(&bare(Tag::Doorbell)), Err(Malformed::Tag));
    }

    #[test]
    fn another_protocol_is_named_as_such() {
        let mut hello = Hello::PLAIN.to_bytes();
        hello[3] = 2;
        assert_eq!(Hello::from_bytes(&hello), Err(Malformed::Protocol));
    }
}
