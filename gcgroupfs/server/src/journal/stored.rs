//! The file that is appended to, and the lines that could not be stored in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::replay::{header, lines};
use super::{COMPACT_AFTER, Key};

/// The open file and the lines held in memory.
#[derive(Debug)]
pub(super) struct Stored {
    /// `None` if it could not be opened.
    pub(super) file: Option<File>,
    /// Length of the file's complete lines, in bytes.
    pub(super) length: u64,
    /// Number of the last line.
    pub(super) last: u64,
    /// Length of the file after the last compaction, in bytes.
    pub(super) kept: u64,
    /// Lines that could not be stored, as JSON objects with the numbers of their records: the latest of each
    /// process and group.
    pub(super) held: BTreeMap<Key, (u64, Vec<u8>)>,
    pub(super) nr_held_bytes: u64,
    /// Nothing can be appended to the file any more; it must be replaced.
    pub(super) is_spoilt: bool,
    /// Time of the next attempt, and the pause before it.
    pub(super) due: Option<Instant>,
    pub(super) pause: Duration,
    /// Time of the last check that the file exists.
    pub(super) checked: Instant,
    /// Time of the last log line about trouble, and whether the present trouble was logged.
    pub(super) told: Option<Instant>,
    pub(super) is_told: bool,
}

impl Stored {
    pub(super) fn new(file: Option<File>, length: u64, last: u64) -> Self {
        Self {
            is_spoilt: file.is_none(),
            file,
            length,
            last,
            kept: 0,
            held: BTreeMap::new(),
            nr_held_bytes: 0,
            due: None,
            pause: Duration::ZERO,
            checked: Instant::now(),
            told: None,
            is_told: false,
        }
    }

    /// Holds a line in memory, in place of an older one with this key.
    pub(super) fn hold(&mut self, seq: u64, key: Key, line: Vec<u8>) {
        if self.held.get(&key).is_some_and(|(held, _)| *held > seq) {
            return;
        }
        self.nr_held_bytes += line.len() as u64;
        if let Some((_, before)) = self.held.insert(key, (seq, line)) {
            self.nr_held_bytes -= before.len() as u64;
        }
    }

    /// Drops the held line with this key.
    pub(super) fn release(&mut self, key: &Key) {
        if let Some((_, line)) = self.held.remove(key) {
            self.nr_held_bytes -= line.len() as u64;
        }
    }

    /// Returns all held lines.
    pub(super) fn held_objects(&self) -> Vec<Vec<u8>> {
        self.held.values().map(|(_, line)| line.clone()).collect()
    }

    /// Drops all held lines, which are in the file now.
    pub(super) fn has_stored(&mut self) {
        self.held.clear();
        self.nr_held_bytes = 0;
    }

    /// Appends all held lines.
    ///
    /// # Errors
    /// They cannot be stored, and remain held.
    pub(super) fn flush(&mut self, boot: &str) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        self.write(boot, &self.held_objects())?;
        self.has_stored();
        Ok(())
    }

    /// Appends lines with one write(2), of which a killed daemon leaves a part at most, and then notes the
    /// last one's number in the first line.
    ///
    /// # Errors
    /// The file system cannot take all of it; then nothing is appended.
    pub(super) fn write(&mut self, boot: &str, objects: &[Vec<u8>]) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let first = if self.length == 0 {
            header(boot, 0)
        } else {
            Vec::new()
        };
        let lines = lines(boot, self.last, objects.iter().map(Vec::as_slice));
        let text = [first, lines].concat();
        let last = self.last + objects.len() as u64;
        let written = file.write_all_at(&text, self.length);
        if let Err(error) = written.and_then(|()| file.write_all_at(&header(boot, last), 0)) {
            self.cut();
            return Err(error);
        }
        (self.length, self.last) = (self.length + text.len() as u64, last);
        Ok(())
    }

    /// Truncates the file after its last complete line.
    pub(super) fn cut(&mut self) {
        let cut = self.file.as_ref().map(|file| file.set_len(self.length));
        self.is_spoilt |= !matches!(cut, Some(Ok(())));
    }

    /// Returns whether enough has been appended for a compaction.
    pub(super) fn is_long(&self) -> bool {
        self.length.saturating_sub(self.kept) >= self.kept.max(COMPACT_AFTER)
    }

    /// Returns whether there are lines to store, or a compaction is due.
    pub(super) fn is_wanting(&self) -> bool {
        self.is_spoilt || !self.held.is_empty() || self.is_long()
    }
}
