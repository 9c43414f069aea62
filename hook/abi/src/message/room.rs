//! Room on a device for a process that has not registered: query and answer.

use super::{GroupName, Malformed, Reader, Tag, Writer};
use crate::NO_LIMIT;

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
