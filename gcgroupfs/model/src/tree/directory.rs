//! Names of directories, processes and groups, and their owners.

use gcgroup_abi::MAX_DEVICES;
use serde::{Deserialize, Serialize};

/// Identifies one program that a process runs. Derived from the kernel's data about the process, so that a
/// restarted daemon computes it again; 48 bits, so that a stale one matches no other process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// Identifies a group. Numbers count up and are never reused, also by later daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The lowest group number; processes' numbers are below.
    pub const FIRST: Self = Self(1 << 48);

    /// The end of the numbers for which inode numbers have room.
    pub const END: Self = Self(1 << 49);
}

/// Owner of a directory and its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Owner and mode of a directory or file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    #[serde(flatten)]
    pub owner: Owner,
    /// Permission bits.
    pub mode: u16,
}

/// Permission bits of a directory unless changed.
pub const DIRECTORY_MODE: u16 = 0o755;

/// The caller of an operation: the opener of a mounted file, or the peer of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// The entity that a directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entity {
    Root,
    Process(ProcessId),
    Group(GroupId),
}

/// A directory. `entity` is 0 for the root, else the number of a process or a group. With `device`, the
/// directory of that entity on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Directory {
    pub entity: u64,
    pub device: Option<u8>,
}

impl Directory {
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

    /// Returns the directory of a group, or the root for `None`.
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

    /// Returns the directory of the same entity for all devices.
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

/// A directory, or with `file`, the name and the unchanged mode of a control file in it.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    pub directory: Directory,
    pub file: Option<(&'static str, u16)>,
}

impl From<Directory> for Item {
    fn from(directory: Directory) -> Self {
        Self {
            directory,
            file: None,
        }
    }
}

impl Item {
    /// `gcgroup.procs` of a group or the root.
    pub fn procs(directory: Directory) -> Self {
        Self {
            directory,
            file: Some(("gcgroup.procs", 0o644)),
        }
    }

    /// Returns whether this is a directory that is not of one device.
    pub(super) fn is_whole_directory(self) -> bool {
        self.file.is_none() && self.directory.device.is_none()
    }
}

/// The kinds of directory, which determine the files in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Root,
    Process,
    ProcessDevice,
    Group,
    GroupDevice,
}
