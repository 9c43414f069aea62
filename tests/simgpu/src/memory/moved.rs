//! Contents of device memory that are moved to the host and back, at the same addresses.

use std::fs::File;
use std::os::fd::AsRawFd;

use super::block::{Block, HOST, Kind};
use super::{Arena, Space};

/// A range of bytes that has been moved out.
#[derive(Debug)]
pub struct Moved {
    at: u64,
    bytes: Vec<u8>,
}

impl Arena {
    /// Moves out all written bytes of a range, which then reads as zero.
    fn take_out(&self, at: u64, length: u64, moved: &mut Vec<Moved>) {
        let Some(file) = self.file() else { return };
        let (mut from, end) = (at - self.start(), at - self.start() + length);
        while let Some(first) = seek(file, from, libc::SEEK_DATA).filter(|first| *first < end) {
            let next = seek(file, first, libc::SEEK_HOLE).unwrap_or(end).min(end);
            let (address, length) = (self.start() + first, usize::try_from(next - first).unwrap_or(0));
            // SAFETY: bytes of this arena's own mapping, which no engine accesses while the process is
            // locked.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, length) }.to_vec();
            // SAFETY: as above; the copy has been made.
            unsafe { (address as *mut u8).write_bytes(0, length) };
            self.discard(address, next - first);
            moved.push(Moved { at: address, bytes });
            from = next;
        }
    }
}

fn seek(file: &File, from: u64, what: i32) -> Option<u64> {
    // SAFETY: the descriptor is open; nothing else uses its offset.
    let at = unsafe { libc::lseek(file.as_raw_fd(), from.cast_signed(), what) };
    u64::try_from(at).ok()
}

impl Space {
    /// Returns whether there is a block that `wanted` accepts.
    pub fn has(&self, wanted: impl Fn(&Block) -> bool) -> bool {
        self.blocks.read().by_base.values().any(wanted)
    }

    /// Moves the contents of all device memory out. Memory that the host addresses too stays where it is.
    pub fn take_out(&self) -> Vec<Moved> {
        let mut moved = Vec::new();
        let blocks = self.blocks.read();
        for block in blocks.by_base.values() {
            let is_device = block.device != HOST && !block.is_on_host() && block.kind != Kind::Imported;
            // Before `cuMemSetAccess` gives the host access, its mapping does not exist.
            let is_mapped_by_host = matches!(block.kind, Kind::Mapped(_)) && block.access.of(HOST) != 0;
            if !is_device || is_mapped_by_host {
                continue;
            }
            for arena in self.arenas() {
                if arena.contains(block.bytes) {
                    arena.take_out(block.bytes, block.size, &mut moved);
                }
            }
        }
        moved
    }

    /// Moves contents back to where they were.
    pub fn put_back(&self, moved: &[Moved]) {
        for Moved { at, bytes } in moved {
            // SAFETY: bytes of an arena, which is never unmapped; no engine accesses them while the process
            // is locked.
            unsafe { (*at as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
    }
}
