//! Reading a recording, also while it is being written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::{Decompress, FlushDecompress};

use super::{
    BLOCK_HEADER, FRAME_HEADER, HEADER, LARGEST_BLOCK, MAGIC, SMALLEST_BLOCK, Shape, block_header, checksum,
    invalid,
};
use crate::cli::record::frame::Frame;

/// Largest text of a frame, bytes: a damaged or hostile file takes no more memory.
const LARGEST_TEXT: usize = 64 << 20;

/// Recording that is read.
#[derive(Debug)]
pub(in crate::cli) struct Recording {
    file: File,
    shape: Shape,
    /// In the order of their sequence numbers.
    starts: Vec<Start>,
}

/// Intact header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) sequence: u64,
    /// Seconds since 1970.
    time: u64,
}

impl Recording {
    /// Opens a recording.
    ///
    /// # Errors
    /// The file cannot be read, or is no recording.
    pub(in crate::cli) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let (shape, starts) = index(&file)?;
        Ok(Self { file, shape, starts })
    }

    /// Looks for blocks that were written since.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(in crate::cli) fn refresh(&mut self) -> io::Result<()> {
        (self.shape, self.starts) = index(&self.file)?;
        Ok(())
    }

    /// Returns the sequence numbers of the blocks, in ascending order.
    pub(in crate::cli) fn blocks(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.starts.iter().map(|start| start.sequence)
    }

    /// Returns the last block that starts at `time` (seconds since 1970) or before. If there is none, returns
    /// the first block.
    pub(in crate::cli) fn block_of(&self, time: u64) -> Option<u64> {
        let after = self.starts.iter().position(|start| start.time > time);
        let block = after.unwrap_or(self.starts.len()).saturating_sub(1);
        self.starts.get(block).map(|start| start.sequence)
    }

    /// Calls `take` with each frame of a block, the first of which is a key frame. A block that was
    /// overwritten since [`Recording::refresh`] has none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(in crate::cli) fn for_each(&self, block: u64, mut take: impl FnMut(Frame)) -> io::Result<()> {
        let Some(start) = self.starts.iter().find(|start| start.sequence == block) else {
            return Ok(());
        };
        let mut bytes = vec![0; usize::try_from(self.shape.block).map_err(|_| invalid())?];
        self.file
            .read_exact_at(&mut bytes, self.shape.offset(start.sequence))?;
        let Some(mut frames) = bytes.strip_prefix(&block_header(start.sequence, start.time)) else {
            return Ok(());
        };
        let mut inflate = Decompress::new(false);
        while let Some((frame, rest)) = split(frames, start.sequence) {
            let text = text(&mut inflate, frame);
            let Some(frame) = text.and_then(|text| serde_json::from_slice(&text).ok()) else {
                break;
            };
            take(frame);
            frames = rest;
        }
        Ok(())
    }
}

/// Returns the bytes of the first intact frame, and what follows it.
fn split(frames: &[u8], sequence: u64) -> Option<(&[u8], &[u8])> {
    let (header, rest) = frames.split_first_chunk::<FRAME_HEADER>()?;
    let (length, crc) = header.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (frame, rest) = rest.split_at_checked(length)?;
    (length > 0 && crc == checksum(sequence, frame).to_le_bytes()).then_some((frame, rest))
}

/// Inflates the next part of a stream; `None` if it is damaged or too large.
pub(super) fn text(stream: &mut Decompress, bytes: &[u8]) -> Option<Vec<u8>> {
    let before = stream.total_in();
    let mut text = Vec::new();
    loop {
        text.reserve(4096 + 4 * bytes.len());
        let done = usize::try_from(stream.total_in() - before).ok()?;
        let rest = bytes.get(done..)?;
        stream
            .decompress_vec(rest, &mut text, FlushDecompress::Sync)
            .ok()?;
        let is_read = usize::try_from(stream.total_in() - before).ok()? >= bytes.len();
        if is_read && text.len() < text.capacity() {
            return Some(text);
        }
        if text.len() > LARGEST_TEXT {
            return None;
        }
    }
}

/// Reads the file's header and the blocks' headers.
///
/// # Errors
/// The file is no recording.
pub(super) fn index(file: &File) -> io::Result<(Shape, Vec<Start>)> {
    let mut header = [0; 20];
    file.read_exact_at(&mut header, 0).map_err(|_| invalid())?;
    let block = header.strip_prefix(MAGIC.as_slice()).ok_or_else(invalid)?;
    let block = u32::from_le_bytes(block.try_into().map_err(|_| invalid())?).into();
    if !(SMALLEST_BLOCK..=LARGEST_BLOCK).contains(&block) {
        return Err(invalid());
    }
    let nr_blocks = file.metadata()?.len().saturating_sub(HEADER) / block;
    let shape = Shape { block, nr_blocks };
    if nr_blocks == 0 {
        return Err(invalid());
    }
    let mut starts = Vec::new();
    for index in 1..=nr_blocks {
        let mut header = [0; BLOCK_HEADER];
        file.read_exact_at(&mut header, shape.offset(index))?;
        let number = |at: usize| {
            let bytes = header.get(at..at + 8).unwrap_or_default();
            bytes.try_into().map_or(0, u64::from_le_bytes)
        };
        let start = Start {
            sequence: number(0),
            time: number(8),
        };
        let is_here = start.sequence != 0 && shape.offset(start.sequence) == shape.offset(index);
        if is_here && header == block_header(start.sequence, start.time) {
            starts.push(start);
        }
    }
    starts.sort_by_key(|start| start.sequence);
    Ok((shape, starts))
}
