//! Inode numbers, computed from a node's position in the tree. There is no inode map and no reference count.
//! Numbers of entities are not reused, so a stale inode finds nothing.
//!
//! From the top bit: the entity, seven bits for the device (0: none), eight bits for the slot. Slot 1 is the
//! directory itself, slot `2 + n` the n-th file of the table. The root is entity 0, so its inode is 1, as
//! FUSE requires.

use fuser::INodeNo;

use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::file::{self, ControlFile, Node};
use gcgroupfs_model::files;
use gcgroupfs_model::tree::{Directory, Tree};

const SLOT_BITS: u32 = 8;
const DEVICE_BITS: u32 = 7;
const DIRECTORY: u64 = 1;

/// Returns the inode number of a node.
pub(super) fn number(node: Node) -> INodeNo {
    let (directory, slot) = match node {
        Node::Dir(directory) => (directory, DIRECTORY),
        Node::File(directory, file) => (directory, DIRECTORY + 1 + files::position(file) as u64),
    };
    let device = directory.device.map_or(0, |device| u64::from(device) + 1);
    INodeNo(((directory.entity << DEVICE_BITS | device) << SLOT_BITS) | slot)
}

/// Returns the entity of an inode number.
pub(super) fn entity(INodeNo(number): INodeNo) -> u64 {
    number >> (SLOT_BITS + DEVICE_BITS)
}

/// Returns the directory of an inode number, and the file unless it is the directory itself; whether or not
/// they exist.
///
/// # Errors
/// `ENOENT` if no node can have this number.
fn parts(INodeNo(number): INodeNo) -> Result<(Directory, Option<&'static ControlFile>)> {
    let (directory, slot) = (number >> SLOT_BITS, number & ((1 << SLOT_BITS) - 1));
    let device = directory & ((1 << DEVICE_BITS) - 1);
    let directory = Directory {
        entity: directory >> DEVICE_BITS,
        device: device.checked_sub(1).and_then(|device| u8::try_from(device).ok()),
    };
    let file = match slot.checked_sub(DIRECTORY).ok_or(Error::NotFound)?.checked_sub(1) {
        None => None,
        Some(position) => {
            let position = usize::try_from(position).map_err(|_| Error::NotFound)?;
            Some(files::all().nth(position).ok_or(Error::NotFound)?)
        }
    };
    Ok((directory, file))
}

/// Returns the node of an inode number.
///
/// # Errors
/// `ENODEV` if the node no longer exists, `ENOENT` if it never did.
pub(super) fn node(tree: &Tree, number: INodeNo) -> Result<Node> {
    match parts(number)? {
        (directory, None) => tree.level(directory).map(|_| Node::Dir(directory)),
        (directory, Some(file)) => {
            file::check(tree, directory, file)?;
            Ok(Node::File(directory, file))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use gcgroupfs_model::tree::fixture::World;

    #[test]
    fn root_is_inode_1() {
        assert_eq!(number(Node::Dir(Directory::ROOT)), INodeNo::ROOT);
    }

    #[test]
    fn numbers_are_unique_and_lead_back_to_nodes() {
        let world = World::new(3);
        world.join(100);
        world.join(101);
        let mut seen = HashSet::new();
        for path in ["", "100", "100/0", "100/2", "101", "101/0"] {
            let Node::Dir(directory) = file::resolve(&world.tree, path).unwrap() else {
                panic!()
            };
            let files = file::files_in(&world.tree, directory)
                .unwrap()
                .map(|file| Node::File(directory, file));
            for expected in files.chain([Node::Dir(directory)]) {
                let ino = number(expected);
                assert!(seen.insert(ino), "{ino:?}");
                match (expected, node(&world.tree, ino).unwrap()) {
                    (Node::Dir(expected), Node::Dir(directory)) => assert_eq!(directory, expected),
                    (Node::File(expected, row), Node::File(directory, file)) => {
                        assert_eq!((directory, file.name), (expected, row.name));
                    }
                    (expected, got) => panic!("{expected:?} became {got:?}"),
                }
            }
        }
    }

    #[test]
    fn invalid_numbers_are_errors() {
        let world = World::new(1);
        let id = world.join(100);
        let process = number(Node::Dir(Directory::process(id))).0;
        for ino in [
            0,
            2 + 254,
            process + 254,
            process - 1,
            process + (5 << SLOT_BITS),
            process << 1,
            u64::MAX,
        ] {
            assert!(node(&world.tree, INodeNo(ino)).is_err(), "{ino:#x}");
        }
    }
}
