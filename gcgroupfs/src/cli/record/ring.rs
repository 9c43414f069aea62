//! File of blocks that are overwritten in turn. Each block has a key frame and the changes after it, and can
//! be read without the others. A frame that was half written when the machine or the recorder stopped ends
//! its block.
//!
//! ```text
//! file:   header of one sector of 512 bytes ("gcgroup-record 2", size of a block u32, zeroes), blocks
//! block:  sequence u64 (from 1), start u64 (seconds since 1970), CRC-32 of both, frames
//! frame:  length u32, CRC-32 of the block's sequence and the bytes, bytes
//! bytes of all frames of a block: one deflate stream of JSON lines; all numbers are little-endian
//! ```

mod read;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, ensure};
use flate2::{Compress, Compression, FlushCompress};
use nix::fcntl::{Flock, FlockArg};

use super::frame::Frame;

pub(in crate::cli) use self::read::Recording;

const MAGIC: &[u8; 16] = b"gcgroup-record 2";

/// Length of the file's header, bytes.
const HEADER: u64 = 512;

/// Length of a block's header, bytes.
const BLOCK_HEADER: usize = 20;

/// Length of a frame's header, bytes.
const FRAME_HEADER: usize = 8;

/// Bounds of a block's size, bytes.
const SMALLEST_BLOCK: u64 = 16 << 10;
const LARGEST_BLOCK: u64 = 1 << 20;

/// Bounds of a file's size, bytes.
pub(super) const SMALLEST: u64 = 64 << 10;
pub(super) const LARGEST: u64 = 64 << 30;

/// File that is being recorded into.
#[derive(Debug)]
pub(super) struct Ring {
    file: Flock<File>,
    shape: Shape,
    /// Sequence number of the next block.
    next: u64,
    /// The block that has room.
    open: Option<Block>,
}

/// Sizes that the file's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Length of a block, bytes.
    block: u64,
    nr_blocks: u64,
}

/// Block that is being written.
#[derive(Debug)]
struct Block {
    sequence: u64,
    /// Bytes written, the header included.
    length: usize,
    deflate: Compress,
    /// Key frame of the last sample.
    last: Frame,
}

impl Shape {
    /// Returns the offset of a block.
    fn offset(self, sequence: u64) -> u64 {
        HEADER + (sequence.wrapping_sub(1) % self.nr_blocks) * self.block
    }
}

impl Ring {
    /// Opens a file, or makes one of `size` bytes that only its owner can read.
    ///
    /// # Errors
    /// The file is no recording, or another process records into it.
    pub(super) fn open(path: &Path, size: u64) -> anyhow::Result<Self> {
        let name = path.display();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("cannot open {name}"))?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| errno)
            .with_context(|| format!("cannot lock {name}: another process records into it"))?;
        let metadata = file.metadata()?;
        ensure!(metadata.is_file(), "{name} is not a regular file");
        if metadata.len() == 0 {
            let block = (size / 256).clamp(SMALLEST_BLOCK, LARGEST_BLOCK);
            let block = u32::try_from(block)?.to_le_bytes();
            // The header comes last, so that a file with a header has its size.
            file.set_len(size)
                .with_context(|| format!("cannot resize {name}"))?;
            file.write_all_at(&[MAGIC.as_slice(), &block].concat(), 0)
                .with_context(|| format!("cannot write {name}"))?;
        }
        let (shape, starts) = read::index(&file).with_context(|| format!("cannot continue {name}"))?;
        let last = starts.last().map_or(0, |start| start.sequence);
        Ok(Self {
            file,
            shape,
            next: last.wrapping_add(1),
            open: None,
        })
    }

    /// Writes a sample. When the block is full, the next one takes the place of the oldest.
    ///
    /// # Errors
    /// The disk is full or fails, or the sample is larger than a block.
    pub(super) fn append(&mut self, now: Frame) -> anyhow::Result<()> {
        if let Some(mut block) = self.open.take() {
            let change = now.since(&block.last);
            if let Some(bytes) = block.pack(&change, self.shape)? {
                let offset = self.shape.offset(block.sequence) + block.length as u64;
                self.file.write_all_at(&bytes, offset)?;
                block.length += bytes.len();
                block.last = now;
                self.open = Some(block);
                return Ok(());
            }
        }
        let mut block = Block {
            sequence: self.next,
            length: BLOCK_HEADER,
            deflate: Compress::new(Compression::default(), false),
            last: Frame::default(),
        };
        let Some(bytes) = block.pack(&now, self.shape)? else {
            anyhow::bail!("a sample of this node needs a larger file (--size)");
        };
        // Truncated: the fraction is in the frame.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let start = now.time as u64;
        let written = [block_header(block.sequence, start).as_slice(), &bytes].concat();
        self.file
            .write_all_at(&written, self.shape.offset(block.sequence))?;
        self.next = self.next.wrapping_add(1);
        block.length = written.len();
        block.last = now;
        self.open = Some(block);
        Ok(())
    }
}

impl Block {
    /// Returns the bytes of the next frame; `None` if they do not fit in the block.
    fn pack(&mut self, frame: &Frame, shape: Shape) -> anyhow::Result<Option<Vec<u8>>> {
        let mut text = serde_json::to_vec(frame)?;
        text.push(b'\n');
        let bytes = deflate(&mut self.deflate, &text)?;
        if (self.length + FRAME_HEADER + bytes.len()) as u64 > shape.block {
            return Ok(None);
        }
        let length = u32::try_from(bytes.len())?.to_le_bytes();
        let checksum = checksum(self.sequence, &bytes).to_le_bytes();
        Ok(Some([length.as_slice(), &checksum, &bytes].concat()))
    }
}

/// Returns the next part of a deflate stream. It can be inflated without the parts after it.
fn deflate(stream: &mut Compress, text: &[u8]) -> Result<Vec<u8>, flate2::CompressError> {
    let before = stream.total_in();
    // Room for text that cannot be compressed, for the end of the part, and so for all in one step.
    let mut bytes = Vec::with_capacity(text.len() + text.len() / 8 + 64);
    loop {
        let done = usize::try_from(stream.total_in() - before).unwrap_or(usize::MAX);
        let rest = text.get(done..).unwrap_or_default();
        stream.compress_vec(rest, &mut bytes, FlushCompress::Sync)?;
        let done = usize::try_from(stream.total_in() - before).unwrap_or(usize::MAX);
        // With room left, nothing is left in the stream.
        if done >= text.len() && bytes.len() < bytes.capacity() {
            return Ok(bytes);
        }
        bytes.reserve(text.len() + 64);
    }
}

/// Returns the checksum of a frame. Frames that an earlier block left in the same place have another one.
fn checksum(sequence: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

fn block_header(sequence: u64, start: u64) -> [u8; BLOCK_HEADER] {
    let mut header = [0; BLOCK_HEADER];
    let (numbers, crc) = header.split_at_mut(16);
    let bytes = sequence.to_le_bytes().into_iter().chain(start.to_le_bytes());
    numbers.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    crc.copy_from_slice(&crc32fast::hash(numbers).to_le_bytes());
    header
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file is no recording")
}

#[cfg(test)]
mod tests;
