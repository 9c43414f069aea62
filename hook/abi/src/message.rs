//! Messages between the daemon and a hook, on the daemon's `SOCK_SEQPACKET` socket.
//!
//! One packet is one message: a header of eight bytes, then the body, all little-endian. A packet of a wrong
//! length for its kind is an error and never read in part. Identity is never taken from a message: the daemon
//! asks the kernel (`SO_PEERPIDFD`, `SO_PEERCRED`).

use crate::NO_LIMIT;

/// First word of every packet: "gcg" and the version of this protocol.
pub const PROTOCOL: u32 = u32::from_le_bytes(*b"gcg\x01");

/// Maximum length of a packet to a hook's endpoint, bytes.
pub const MAX_LENGTH: usize = 64;

/// Kind of a packet.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// Hook to daemon, first packet, with the usage block's descriptor: [`Hello`].
    Hello = 1,
    /// Daemon to hook, answer to `Hello`, with the control block's descriptor if accepted:
    /// [`RegistrationReply`].
    RegistrationReply = 2,
    /// Doorbell, no body. Daemon to hook: check the control block. Hook to daemon: check the usage block.
    Doorbell = 3,
    /// Client to daemon, first packet: a request of the command line, whose body only the daemon defines.
    Request = 4,
    /// Process that has not registered to daemon, first packet: [`RoomQuery`].
    RoomQuery = 5,
    /// Daemon to such a process: [`RoomReply`].
    RoomReply = 6,
}

/// Reason why a packet is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Too short for a header, or of the wrong length for its kind.
    Length,
    /// Another protocol, or another version of this one.
    Protocol,
    /// An unknown kind.
    Tag,
}

/// First packet of a hook, with the settings that the process was started with (`GCGROUP_MEMORY_LIMIT`, …).
/// They apply only until the control file is written, and cannot loosen what was set for the process before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// [`crate::VERSION`] of the hook's blocks.
    pub abi: u32,
    /// Bytes; [`NO_LIMIT`] if not set.
    pub memory_limit: u64,
    /// 0 to 15; all ones if not set.
    pub priority: u32,
    /// 1 to start frozen.
    pub freeze: u32,
    /// 1 if large allocations can be swapped out.
    pub can_swap: u32,
    /// Bytes that may be swapped out; 0 if not set.
    pub memory_swap_max: u64,
    /// Group in which the process starts.
    pub group: GroupName,
    /// 1 if the daemon must refuse the process (`EACCES`) instead of starting it outside `group`. Sent as bit
    /// 1 of the word whose bit 0 is `can_swap`.
    pub insists: u32,
    /// 1 if the process could start no helper thread, so that freezes are not confirmed. Bit 2 of that word.
    pub lacks_helper: u32,
}

/// Path of a group below the root, such as `a/b`; empty if not set. Padded with zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupName([u8; Self::LONGEST]);

impl GroupName {
    /// Maximum length, bytes.
    pub const LONGEST: usize = 128;

    pub const NONE: Self = Self([0; Self::LONGEST]);

    /// Returns the name; `None` if the text is too long or contains a zero byte.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut name = Self::NONE;
        name.0.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        (!text.contains('\0')).then_some(name)
    }

    /// Returns the text; `None` if it is empty or not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let text = self.0.split(|byte| *byte == 0).next()?;
        core::str::from_utf8(text).ok().filter(|text| !text.is_empty())
    }
}

impl Hello {
    /// A registration without settings.
    pub const PLAIN: Hello = Hello {
        abi: crate::VERSION,
        memory_limit: NO_LIMIT,
        priority: u32::MAX,
        freeze: 0,
        can_swap: 0,
        memory_swap_max: 0,
        group: GroupName::NONE,
        insists: 0,
        lacks_helper: 0,
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
        at.u32((self.can_swap & 1) | ((self.insists & 1) << 1) | ((self.lacks_helper & 1) << 2));
        at.u64(self.memory_swap_max);
        at.put(&self.group.0);
        out
    }

    /// # Errors
    /// [`Malformed`].
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
            lacks_helper: (bits >> 2) & 1,
        })
    }
}

/// Returns [`Hello::abi`] of a `Hello` of any version: of everything that follows the header, only its
/// position is fixed.
///
/// # Errors
/// [`Malformed`].
pub fn version(hello: &[u8]) -> Result<u32, Malformed> {
    match tag(hello)? {
        Tag::Hello => Reader {
            rest: hello.get(8..).unwrap_or(&[]),
        }
        .u32(),
        _ => Err(Malformed::Tag),
    }
}

/// The daemon's answer to [`Hello`]. Its layout is the same in all versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistrationReply {
    /// [`crate::VERSION`] of the daemon's blocks.
    pub abi: u32,
    /// 0 if accepted, with a descriptor; otherwise an errno, and the process is not governed.
    pub status: u32,
    /// Whether a rule forbids CUDA to the process while it is not governed. Sent as the highest bit of the
    /// word of `status`.
    pub bars_cuda: bool,
}

impl RegistrationReply {
    pub const LENGTH: usize = 8 + 8;
    const BARS_CUDA: u32 = 1 << 31;

    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        let mut at = Writer { out: &mut out, at: 0 };
        at.header(Tag::RegistrationReply);
        at.u32(self.abi);
        at.u32(self.status | if self.bars_cuda { Self::BARS_CUDA } else { 0 });
        out
    }

    /// # Errors
    /// [`Malformed`].
    pub fn from_bytes(packet: &[u8]) -> Result<Self, Malformed> {
        let mut at = Reader::of(packet, Tag::RegistrationReply, Self::LENGTH)?;
        let (abi, word) = (at.u32()?, at.u32()?);
        Ok(Self {
            abi,
            status: word & !Self::BARS_CUDA,
            bars_cuda: word & Self::BARS_CUDA != 0,
        })
    }
}

/// Asks what the groups in which the process would begin allow it on one device. Registers nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoomQuery {
    /// UUID of the device, as in `ControlDevice::uuid`.
    pub uuid: [u64; 2],
    /// Group in which the process starts.
    pub group: GroupName,
}

impl RoomQuery {
    pub const LENGTH: usize = 8 + 16 + GroupName::LONGEST;

    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        let mut at = Writer { out: &mut out, at: 0 };
        at.header(Tag::RoomQuery);
        self.uuid.into_iter().for_each(|word| at.u64(word));
        at.put(&self.group.0);
        out
    }

    /// # Errors
    /// [`Malformed`].
    pub fn from_bytes(packet: &[u8]) -> Result<Self, Malformed> {
        let mut at = Reader::of(packet, Tag::RoomQuery, Self::LENGTH)?;
        Ok(Self {
            uuid: [at.u64()?, at.u64()?],
            group: GroupName(at.take()?),
        })
    }
}

/// The daemon's answer to [`RoomQuery`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoomReply {
    /// The smallest memory limit of the groups on the device, bytes; [`NO_LIMIT`] without one.
    pub limit: u64,
    /// Bytes that all limits of the groups leave; [`NO_LIMIT`] without one.
    pub room: u64,
}

impl RoomReply {
    pub const LENGTH: usize = 8 + 16;

    /// Answer for a process in no group that has a limit.
    pub const NO_LIMIT: Self = Self {
        limit: NO_LIMIT,
        room: NO_LIMIT,
    };

    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        let mut at = Writer { out: &mut out, at: 0 };
        at.header(Tag::RoomReply);
        at.u64(self.limit);
        at.u64(self.room);
        out
    }

    /// # Errors
    /// [`Malformed`].
    pub fn from_bytes(packet: &[u8]) -> Result<Self, Malformed> {
        let mut at = Reader::of(packet, Tag::RoomReply, Self::LENGTH)?;
        Ok(Self {
            limit: at.u64()?,
            room: at.u64()?,
        })
    }
}

/// Returns a packet without a body.
#[must_use]
pub fn bare(tag: Tag) -> [u8; 8] {
    let mut out = [0; 8];
    Writer { out: &mut out, at: 0 }.header(tag);
    out
}

/// Returns the kind of a packet, from its header.
///
/// # Errors
/// [`Malformed`].
pub fn tag(packet: &[u8]) -> Result<Tag, Malformed> {
    let mut at = Reader { rest: packet };
    if at.u32()? != PROTOCOL {
        return Err(Malformed::Protocol);
    }
    match at.u32()? {
        1 => Ok(Tag::Hello),
        2 => Ok(Tag::RegistrationReply),
        3 => Ok(Tag::Doorbell),
        4 => Ok(Tag::Request),
        5 => Ok(Tag::RoomQuery),
        6 => Ok(Tag::RoomReply),
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
    fn messages_survive_encoding_and_decoding() {
        let hello = Hello {
            abi: 7,
            memory_limit: 1 << 40,
            priority: 3,
            freeze: 1,
            can_swap: 1,
            memory_swap_max: 9,
            group: GroupName::new("team/a").unwrap(),
            insists: 1,
            lacks_helper: 1,
        };
        assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
        for bars_cuda in [false, true] {
            let reply = RegistrationReply {
                abi: 7,
                status: 95,
                bars_cuda,
            };
            assert_eq!(RegistrationReply::from_bytes(&reply.to_bytes()), Ok(reply));
        }
        assert_eq!(tag(&bare(Tag::Doorbell)), Ok(Tag::Doorbell));
        let query = RoomQuery {
            uuid: [1, 2],
            group: GroupName::new("a").unwrap(),
        };
        assert_eq!(RoomQuery::from_bytes(&query.to_bytes()), Ok(query));
        let reply = RoomReply { limit: 3, room: 4 };
        assert_eq!(RoomReply::from_bytes(&reply.to_bytes()), Ok(reply));
        assert!(RoomQuery::from_bytes(&reply.to_bytes()).is_err());
    }

    #[test]
    fn group_name_is_text_that_fits() {
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
    fn packet_of_wrong_length_or_kind_is_an_error() {
        let hello = Hello::PLAIN.to_bytes();
        for length in 0..hello.len() {
            assert!(Hello::from_bytes(&hello[..length]).is_err(), "{length}");
        }
        let mut longer = [0; Hello::LENGTH + 1];
        longer[..Hello::LENGTH].copy_from_slice(&hello);
        assert_eq!(Hello::from_bytes(&longer), Err(Malformed::Length));
        assert_eq!(
            Hello::from_bytes(
                &RegistrationReply {
                    abi: 1,
                    status: 0,
                    bars_cuda: false
                }
                .to_bytes()
            ),
            Err(Malformed::Tag)
        );
    }

    #[test]
    fn version_is_read_from_any_hello() {
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
    fn packet_of_other_protocol_is_named_as_such() {
        let mut hello = Hello::PLAIN.to_bytes();
        hello[3] = 2;
        assert_eq!(Hello::from_bytes(&hello), Err(Malformed::Protocol));
    }
}
