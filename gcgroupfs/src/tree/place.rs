//! Directories: what they are named by, of which kind they are, whom they belong to, and who asks.

use gcgroup_abi::MAX_DEVICES;
use serde::{Deserialize, Serialize};

/// One program that a process runs. It is made of what the kernel says of the process, so that a daemon that starts
/// again gives it again; and long enough that a stale one reaches nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// A group. Numbers are counted up and never given twice, by no daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The least: processes' numbers end below.
    pub const FIRST: Self = Self(1 << 48);

    /// The end of what an inode number has room for.
    pub const END: Self = Self(1 << 49);
}

/// Whom a directory and its files belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Whom a directory belongs to, and what it lets others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    #[serde(flatten)]
    pub owner: Owner,
    /// Permission bits.
    pub mode: u16,
}

/// The permission bits of a directory that nobody has given others.
pub const DIRECTORY_MODE: u16 = 0o755;

/// Who is asking: of a mounted file whoever opened it, on the socket its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// Whose directory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entity {
    Root,
    Process(ProcessId),
    Group(GroupId),
}

/// One directory. `entity` is zero for the root, else the number of a process or a group; `device` makes it the
/// directory of that entity on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    pub entity: u64,
    pub device: Option<u8>,
}

impl Place {
    pub const ROOT: Self = Self {
        entity: 0,
        device: None,
    };

    pub fn process(id: ProcessId) -> Self {
        Self {
            entity: id.0,
            device: None,
        }
    }

    pub fn group(id: GroupId) -> Self {
        Self {
            entity: id.0,
            device: None,
        }
    }

    /// The directory of a group; of none, the root.
    pub fn of(group: Option<GroupId>) -> Self {
        group.map_or(Self::ROOT, Self::group)
    }

    pub fn whose(self) -> Entity {
        match self.entity {
            0 => Entity::Root,
            number if number < GroupId::FIRST.0 => Entity::Process(ProcessId(number)),
            number => Entity::Group(GroupId(number)),
        }
    }

    /// The same entity's directory for all devices.
    pub fn whole(self) -> Self {
        Self { device: None, ..self }
    }

    pub(super) fn on(self, device: usize) -> Option<Self> {
        let device = u8::try_from(device)
            .ok()
            .filter(|index| usize::from(*index) < MAX_DEVICES)?;
        Some(Self {
            device: Some(device),
            ..self
        })
    }
}

/// The kinds of directory; which files one has depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Root,
    Process,
    ProcessDevice,
    Group,
    GroupDevice,
}
