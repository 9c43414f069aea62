//! Records in shared memory that one daemon leaves for the next.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;

/// Capacity for processes, and for polled files. What does not fit is unknown to the next daemon: a reader
/// may then briefly miss a process, and a poller sleep until the next change.
const NR_SLOTS: u64 = 16 << 10;

/// Records of `N` bytes in shared memory, which outlive their writer. Each is written by one pwrite(2), so
/// none is torn.
#[derive(Debug)]
pub(super) struct Slots<const N: usize> {
    file: File,
    state: Mutex<Positions<N>>,
}

#[derive(Debug)]
struct Positions<const N: usize> {
    at: HashMap<[u8; N], u64>,
    free: Vec<u64>,
    next: u64,
}

impl<const N: usize> Slots<N> {
    pub(super) fn new(file: File) -> Self {
        let state = Positions {
            at: HashMap::new(),
            free: Vec::new(),
            next: 0,
        };
        Self {
            file,
            state: Mutex::new(state),
        }
    }

    /// Returns the records left by a predecessor. Each is kept until it is [`remove`](Self::remove)d. Call
    /// once, before [`put`](Self::put).
    ///
    /// # Errors
    /// The memory cannot be read.
    pub(super) fn inherit(&self) -> io::Result<Vec<[u8; N]>> {
        let mut bytes = Vec::new();
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut bytes)?;
        let mut state = self.state.lock();
        let (records, _) = bytes.as_chunks::<N>();
        for (record, at) in records.iter().zip(0..) {
            if *record == [0; N] || state.at.contains_key(record) {
                state.free.push(at);
            } else {
                state.at.insert(*record, at);
            }
            state.next = at + 1;
        }
        Ok(state.at.keys().copied().collect())
    }

    /// Stores a record, if there is room and it is not stored yet.
    pub(super) fn put(&self, record: [u8; N]) {
        let mut state = self.state.lock();
        if state.at.contains_key(&record) {
            return;
        }
        let next = state.next;
        let Some(at) = state.free.pop().or_else(|| (next < NR_SLOTS).then_some(next)) else {
            return;
        };
        state.next = next.max(at + 1);
        if self.write(at, record) {
            state.at.insert(record, at);
        } else {
            state.free.push(at);
        }
    }

    pub(super) fn remove(&self, record: [u8; N]) {
        let mut state = self.state.lock();
        if let Some(at) = state.at.remove(&record) {
            self.write(at, [0; N]);
            state.free.push(at);
        }
    }

    fn write(&self, at: u64, record: [u8; N]) -> bool {
        let result = self.file.write_all_at(&record, at * N as u64);
        if let Err(error) = &result {
            tracing::debug!(%error, "cannot store a record for the next daemon");
        }
        result.is_ok()
    }
}

impl<const N: usize> AsFd for Slots<N> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_outlive_their_writer() {
        let file = tempfile::tempfile().unwrap();
        let first = Slots::<8>::new(file.try_clone().unwrap());
        for number in 1..=5_u64 {
            first.put(number.to_le_bytes());
        }
        first.put(1_u64.to_le_bytes());
        first.remove(3_u64.to_le_bytes());
        drop(first);
        let second = Slots::<8>::new(file.try_clone().unwrap());
        let mut found: Vec<_> = second
            .inherit()
            .unwrap()
            .into_iter()
            .map(u64::from_le_bytes)
            .collect();
        found.sort_unstable();
        assert_eq!(found, [1, 2, 4, 5]);
        second.put(6_u64.to_le_bytes());
        second.remove(1_u64.to_le_bytes());
        assert_eq!(file.metadata().unwrap().len(), 40, "places are used again");
        assert_eq!(Slots::<8>::new(file).inherit().unwrap().len(), 4);
    }
}
