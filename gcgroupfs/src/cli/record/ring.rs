//! File of fixed-size slots that are overwritten in turn. Each slot has a sequence number and a checksum, so
//! that a slot that was half written when the machine or the recorder stopped is skipped.
//!
//! ```text
//! file:  header, slots; both of 80 bytes
//! header: "gcgroup-record 1", zeroes
//! slot:   sequence u64 (from 1), record, zeroes, CRC-32 of all before it; little-endian
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, ensure};
use nix::fcntl::{Flock, FlockArg};

use super::entry::{Entry, LENGTH};

const MAGIC: &[u8; 16] = b"gcgroup-record 1";

/// Length of a slot, bytes.
const SLOT: usize = 80;

/// Offset of the checksum in a slot.
const CHECKSUM: usize = SLOT - 4;

/// Bounds of a file's size, bytes.
pub(super) const SMALLEST: u64 = 4 << 10;
pub(super) const LARGEST: u64 = 64 << 30;

/// File that is being recorded into.
#[derive(Debug)]
pub(super) struct Ring {
    file: Flock<File>,
    nr_slots: u64,
    /// Sequence number of the next record.
    next: u64,
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
            // The header comes last, so that a file with a header has its size.
            file.set_len(size)
                .with_context(|| format!("cannot resize {name}"))?;
            file.write_all_at(MAGIC, 0)
                .with_context(|| format!("cannot write {name}"))?;
        }
        let mut last = 0;
        for_each(&file, |sequence, _| last = last.max(sequence))
            .with_context(|| format!("cannot continue {name}"))?;
        let nr_slots = nr_slots(&file)?;
        Ok(Self {
            file,
            nr_slots,
            next: last.wrapping_add(1),
        })
    }

    /// Writes a record in place of the oldest.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub(super) fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut slot = [0; SLOT];
        let body = self.next.to_le_bytes().into_iter().chain(entry.to_bytes());
        slot.iter_mut().zip(body).for_each(|(to, from)| *to = from);
        let (body, checksum) = slot.split_at_mut(CHECKSUM);
        checksum.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        self.file.write_all_at(&slot, offset(self.next, self.nr_slots))?;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }
}

/// Returns all records, the oldest first.
///
/// # Errors
/// The file cannot be read, or is no recording.
pub(super) fn entries(path: &Path) -> io::Result<Vec<Entry>> {
    let file = File::open(path)?;
    let mut found = Vec::new();
    for_each(&file, |sequence, bytes| {
        found.extend(Entry::from_bytes(bytes).map(|entry| (sequence, entry)));
    })?;
    found.sort_by_key(|(sequence, _)| *sequence);
    Ok(found.into_iter().map(|(_, entry)| entry).collect())
}

/// Returns the number of slots of a file.
///
/// # Errors
/// The file is too short.
fn nr_slots(file: &File) -> io::Result<u64> {
    let nr_slots = (file.metadata()?.len() / SLOT as u64).saturating_sub(1);
    match nr_slots {
        0 => Err(invalid()),
        nr_slots => Ok(nr_slots),
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file is no recording")
}

/// Returns the offset of a sequence number's slot.
fn offset(sequence: u64, nr_slots: u64) -> u64 {
    (sequence.wrapping_sub(1) % nr_slots + 1) * SLOT as u64
}

/// Calls `take` with the sequence number and record of each intact slot.
fn for_each(mut file: &File, mut take: impl FnMut(u64, &[u8])) -> io::Result<()> {
    use std::io::Seek as _;
    let nr_slots = nr_slots(file)?;
    file.rewind()?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut slot = [0; SLOT];
    reader.read_exact(&mut slot)?;
    if !slot.starts_with(MAGIC) {
        return Err(invalid());
    }
    for index in 1..=nr_slots {
        reader.read_exact(&mut slot)?;
        let (body, checksum) = slot.split_at(CHECKSUM);
        let Some((sequence, record)) = body.split_first_chunk() else {
            continue;
        };
        let sequence = u64::from_le_bytes(*sequence);
        let is_intact = sequence != 0
            && offset(sequence, nr_slots) == index * SLOT as u64
            && checksum == crc32fast::hash(body).to_le_bytes();
        if is_intact {
            take(sequence, record.get(..LENGTH).unwrap_or_default());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::record::entry::Gpu;

    fn entry(time: u64) -> Entry {
        Entry::Gpu(Gpu::parse(time, "0 memory_used=1").unwrap())
    }

    fn times(path: &Path) -> Vec<u64> {
        entries(path).unwrap().iter().map(Entry::time).collect()
    }

    #[test]
    fn full_ring_keeps_the_latest_and_is_continued() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        // 51 slots of 80 bytes: the header and 50 records.
        let size = 4096;
        let mut ring = Ring::open(&path, size).unwrap();
        assert!(Ring::open(&path, size).is_err(), "it is locked");
        (0..30).for_each(|time| ring.append(&entry(time)).unwrap());
        assert_eq!(times(&path), Vec::from_iter(0..30));
        drop(ring);
        // The size of an existing file is kept.
        let mut ring = Ring::open(&path, 2 * size).unwrap();
        (30..170).for_each(|time| ring.append(&entry(time)).unwrap());
        assert_eq!(times(&path), Vec::from_iter(120..170));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
    }

    #[test]
    fn damaged_slots_are_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        let mut ring = Ring::open(&path, 4096).unwrap();
        (0..60).for_each(|time| ring.append(&entry(time)).unwrap());
        // In the slot of 57, as a write that was cut off leaves it.
        ring.file
            .write_all_at(&[7; 40], offset(58, ring.nr_slots))
            .unwrap();
        drop(ring);
        let expected: Vec<u64> = (10..60).filter(|time| *time != 57).collect();
        assert_eq!(times(&path), expected);
        let mut ring = Ring::open(&path, 4096).unwrap();
        ring.append(&entry(60)).unwrap();
        assert_eq!(
            times(&path),
            expected.into_iter().skip(1).chain([60]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn other_files_are_refused_and_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text");
        for text in ["x".repeat(10), "x".repeat(8192)] {
            std::fs::write(&path, &text).unwrap();
            assert!(Ring::open(&path, 4096).is_err());
            assert!(entries(&path).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(entries(&directory.path().join("missing")).is_err());
    }
}
