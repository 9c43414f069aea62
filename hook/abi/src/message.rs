//! Messages between the daemon and a hook, on the daemon's `SOCK_SEQPACKET` socket.
//!
//! One packet is one message: a header of eight bytes, then the body, all little-endian. A packet of a wrong
//! length for its kind is an error and never read in part. Identity is never taken from a message: the daemon
//! asks the kernel (`SO_PEERPIDFD`, `SO_PEERCRED`).

mod group_name;
mod registration;
mod request;
mod room;

pub use self::group_name::GroupName;
pub use self::registration::{Hello, RegistrationReply, version};
pub use self::request::{Answer, MAX_ANSWER, MAX_PART, MAX_REQUEST, Operation, Request};
pub use self::room::{RoomQuery, RoomReply};

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
    /// Client to daemon, first packet: [`Request`]. Daemon to client: [`Answer`].
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
            has_jobs_limits: 1,
            names_job: 1,
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
    fn packet_of_other_protocol_is_named_as_such() {
        let mut hello = Hello::PLAIN.to_bytes();
        hello[3] = 2;
        assert_eq!(Hello::from_bytes(&hello), Err(Malformed::Protocol));
    }
}
