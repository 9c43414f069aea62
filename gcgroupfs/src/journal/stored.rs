//! The file that is appended to, and the lines that it could not take.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::{COMPACT_AFTER, Key};

/// What is stored, and what is not.
#[derive(Debug)]
pub(super) struct Stored {
    /// None where it could not be opened.
    pub(super) file: Option<File>,
    /// Bytes of the file that are whole lines.
    pub(super) length: u64,
    /// Bytes that the last compaction left.
    pub(super) kept: u64,
    /// Lines that could not be stored, and their numbers: the latest of each process and group.
    pub(super) held: BTreeMap<Key, (u64, Vec<u8>)>,
    pub(super) nr_held_bytes: u64,
    /// Nothing more can be appended to the file, and another must take its place.
    pub(super) is_spoilt: bool,
    /// The file of that name is to be kept as a copy when another takes its place.
    pub(super) keep_copy: bool,
    /// When to try again, and the pause before that.
    pub(super) due: Option<Instant>,
    pub(super) pause: Duration,
    /// When it was last looked whether the file is there.
    pub(super) checked: Instant,
    /// When trouble was last logged, and whether this one was.
    pub(super) told: Option<Instant>,
    pub(super) is_told: bool,
}

impl Stored {
    pub(super) fn new(file: Option<File>, length: u64) -> Self {
        Self {
            is_spoilt: file.is_none(),
            file,
            length,
            kept: 0,
            held: BTreeMap::new(),
            nr_held_bytes: 0,
            keep_copy: false,
            due: None,
            pause: Duration::ZERO,
            checked: Instant::now(),
            told: None,
            is_told: false,
        }
    }

    /// Holds a line in memory, in the place of older ones of that key.
    pub(super) fn hold(&mut self, seq: u64, key: Key, line: Vec<u8>) {
        if self.held.get(&key).is_some_and(|(held, _)| *held > seq) {
            return;
        }
        self.nr_held_bytes += line.len() as u64;
        if let Some((_, before)) = self.held.insert(key, (seq, line)) {
            self.nr_held_bytes -= before.len() as u64;
        }
    }

    /// Holds the line of that key no longer.
    pub(super) fn release(&mut self, key: &Key) {
        if let Some((_, line)) = self.held.remove(key) {
            self.nr_held_bytes -= line.len() as u64;
        }
    }

    /// Returns all lines that are held. Those of processes are before those of the groups that they have
    /// left, and the root's is the last: what a write that is cut off has lost counts nowhere, and nothing
    /// counts twice.
    pub(super) fn held_text(&self) -> Vec<u8> {
        let lines = self.held.values().rev().flat_map(|(_, line)| line);
        lines.copied().collect()
    }

    /// Notes that all lines that were held are in the file.
    pub(super) fn has_stored(&mut self) {
        self.held.clear();
        self.nr_held_bytes = 0;
    }

    /// Appends all lines that are held.
    ///
    /// # Errors
    /// They cannot be stored, and are held on.
    pub(super) fn flush(&mut self, header: &[u8]) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        self.write(header, &self.held_text())?;
        self.has_stored();
        Ok(())
    }

    /// Appends lines by one write(2), so that a daemon that is killed leaves at most a line that is cut off;
    /// `header` comes first in an empty file.
    ///
    /// # Errors
    /// The file system takes less than all of it; then it has none.
    pub(super) fn write(&mut self, header: &[u8], text: &[u8]) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let header = if self.length == 0 { header } else { &[] };
        let text = [header, text].concat();
        if let Err(error) = file.write_all(&text) {
            self.cut();
            return Err(error);
        }
        self.length += text.len() as u64;
        Ok(())
    }

    /// Cuts off what is not a whole line.
    pub(super) fn cut(&mut self) {
        let cut = self.file.as_ref().map(|file| file.set_len(self.length));
        self.is_spoilt |= !matches!(cut, Some(Ok(())));
    }

    /// Returns whether enough has been appended for a compaction to be worth its while.
    pub(super) fn is_long(&self) -> bool {
        self.length.saturating_sub(self.kept) >= self.kept.max(COMPACT_AFTER)
    }

    /// Returns whether there is anything to store, or to compact.
    pub(super) fn is_wanting(&self) -> bool {
        self.is_spoilt || !self.held.is_empty() || self.is_long()
    }
}
