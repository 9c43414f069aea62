//! The journal: a state file with all settings, for the next daemon.
//!
//! The first line has the boot id. After it comes one JSON line for each change, appended by one write(2)
//! before the write that caused it is answered; a daemon killed at any point loses at most what it was
//! writing. The first line has the number of the last one and is written after it: a line that is missing is
//! noticed, and of records that change together, which are one write, all lines count or none. Each line
//! holds all settings of one process or group, and a number; of several lines with one key the highest
//! number counts, so lines may be appended in any order. Lines have a version and a checksum ([`line`]). The
//! journal does not know what the settings mean.
//!
//! A full or read-only disk or a removed file is survived: lines that cannot be stored are held in memory,
//! the latest of each process and group, and [`Journal::tend`] tries again. Changes are acknowledged
//! meanwhile.

mod key;
pub(crate) mod line;
mod replay;
pub(crate) mod state_file;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::{info, warn};

pub use self::key::Key;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use self::replay::check;
use self::replay::{Replay, boot_id, header, object};
use self::state_file::{Fresh, Refusal};
use self::stored::Stored;

/// The file's name in the state directory.
const NAME: &str = "settings.jsonl";

/// Minimum number of bytes appended since the last compaction before the next one, which also waits until as
/// much has been appended as was left. So a file is at most twice as long as what it must keep, plus this,
/// and rewriting costs no more than appending. Also bounds the lines held in memory.
const COMPACT_AFTER: u64 = 1 << 20;

/// While the held lines are at most this long, in bytes, each new change tries to store all of them.
const AT_ONCE: u64 = 64 << 10;

/// First and longest pause between two attempts to store held lines.
const RETRY: Duration = Duration::from_millis(250);
const LONGEST_RETRY: Duration = Duration::from_secs(8);

/// Minimum time between two log lines about the journal's trouble.
const QUIET: Duration = Duration::from_secs(10);

/// Interval between checks that the file still exists.
const CHECK: Duration = Duration::from_secs(1);

/// Condition of the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Condition {
    /// Whether there are settings that are not stored.
    pub is_degraded: bool,
    /// Number of damaged and missing lines in the file that this daemon found.
    pub nr_damaged: u64,
}

/// An open state file, locked while it is open, so that no other daemon writes it.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Boot id of the running system.
    boot: String,
    next: AtomicU64,
    nr_damaged: u64,
    is_degraded: AtomicBool,
    state: Mutex<Stored>,
}

impl Journal {
    /// Opens or creates the state file in `directory` and returns the stored records that `sift` keeps. The
    /// file is replaced atomically. If the file system refuses that, the journal continues with the old file,
    /// or without any.
    ///
    /// # Errors
    /// The file belongs to another user, can be written by others or is not a regular file, or another daemon
    /// holds its lock.
    pub fn open<S: Serialize + DeserializeOwned + Default>(
        directory: &Path,
        sift: impl FnOnce(&mut BTreeMap<Key, S>),
    ) -> anyhow::Result<(Self, BTreeMap<Key, S>)> {
        let path = directory.join(NAME);
        let locked = state_file::lock(&path);
        Self::begin(path, locked, sift)
    }

    /// Opens the state file like [`open`](Self::open), but ignores a lock held by a killed predecessor that
    /// cannot exit: it writes no more, and the file that it has locked is replaced here.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_beside_killed<S: Serialize + DeserializeOwned + Default>(
        directory: &Path,
        sift: impl FnOnce(&mut BTreeMap<Key, S>),
    ) -> anyhow::Result<(Self, BTreeMap<Key, S>)> {
        let path = directory.join(NAME);
        let locked = match state_file::lock(&path) {
            Err(refusal @ Refusal::InUse(_)) => {
                warn!("{refusal}: the holder is a killed daemon");
                state_file::open(&path)
            }
            locked => locked,
        };
        Self::begin(path, locked, sift)
    }

    fn begin<S: Serialize + DeserializeOwned + Default>(
        path: PathBuf,
        locked: Result<File, Refusal>,
        sift: impl FnOnce(&mut BTreeMap<Key, S>),
    ) -> anyhow::Result<(Self, BTreeMap<Key, S>)> {
        let boot = boot_id();
        let (file, text) = match locked.and_then(|file| state_file::read_all(&path, file)) {
            Ok((file, text)) => (Some(file), text),
            Err(refusal @ Refusal::System { .. }) => {
                warn!("{refusal}: continuing without the stored settings");
                (None, header(&boot, 0))
            }
            Err(refusal) => return Err(refusal.into()),
        };
        let mut replay = Replay::of(&text, &boot);
        let before = replay.hashes()?;
        replay.sift(sift);
        let mut stored = Stored::new(file, replay.end as u64, replay.last);
        stored.is_spoilt |= replay.is_unfit;
        if replay.end < text.len() && !stored.is_spoilt {
            stored.cut();
        }
        stored.is_spoilt |= !stored.file.as_ref().is_some_and(state_file::is_writable);
        let journal = Self {
            path,
            boot,
            next: AtomicU64::new(replay.highest + 1),
            nr_damaged: replay.nr_damaged,
            is_degraded: AtomicBool::new(false),
            state: Mutex::new(stored),
        };
        journal.store_sifted(&replay, &before)?;
        let nr_records = replay.latest.len();
        if replay.nr_damaged > 0 {
            let (path, nr) = (journal.path.display(), replay.nr_damaged);
            warn!("{path}: {nr} lines are damaged or missing, {nr_records} records could be read");
        }
        info!("{nr_records} records restored from {}", journal.path.display());
        let records = replay.latest.into_iter();
        Ok((
            journal,
            records.map(|(key, record)| (key, record.settings)).collect(),
        ))
    }

    /// Stores the records that were read and sifted: in a new file or, if none can be created, as changed
    /// lines appended to the old one.
    fn store_sifted<S: Serialize + DeserializeOwned + Default>(
        &self,
        replay: &Replay<S>,
        before: &BTreeMap<Key, u64>,
    ) -> anyhow::Result<()> {
        let Err(error) = self.replace(&replay.objects()?, replay.end) else {
            return Ok(());
        };
        warn!("cannot compact the settings' file: {error}");
        let after = replay.hashes()?;
        let mut state = self.state.lock();
        for (key, record) in &replay.latest {
            if after.get(key) != before.get(key) {
                let seq = self.number();
                state.hold(seq, *key, object(seq, *key, &record.settings)?);
            }
        }
        for key in before.keys().filter(|key| !after.contains_key(key)) {
            let seq = self.number();
            state.hold(seq, *key, object(seq, *key, &S::default())?);
        }
        let stored = match state.is_spoilt {
            true => Err(error),
            false => state.flush(&self.boot),
        };
        self.note(&mut state, stored);
        Ok(())
    }

    /// Returns the next record number. Take it where changes are ordered, before [`Self::append`].
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Stores all settings of a process. A record that cannot be stored is held in memory until
    /// [`tend`](Self::tend) can store it.
    pub fn append<S: Serialize>(&self, seq: u64, key: Key, settings: &S) {
        self.append_all(&[(seq, key, settings)]);
    }

    /// Stores the settings of several processes and groups in one write: all of them or, if the daemon is
    /// killed, none.
    pub fn append_all<S: Serialize>(&self, records: &[(u64, Key, S)]) {
        let encoded = records
            .iter()
            .map(|(seq, key, settings)| object(*seq, *key, settings));
        let objects = encoded.collect::<io::Result<Vec<_>>>();
        let mut state = self.state.lock();
        if !state.is_spoilt && state.held.is_empty() {
            let stored = objects.and_then(|objects| state.write(&self.boot, &objects));
            if stored.is_err() {
                self.hold(&mut state, records);
            }
            return self.note(&mut state, stored);
        }
        self.hold(&mut state, records);
        if !state.is_spoilt && state.nr_held_bytes <= AT_ONCE {
            let stored = state.flush(&self.boot);
            self.note(&mut state, stored);
        }
    }

    /// Holds records in memory, each by itself, because a later one of its key may take its place.
    fn hold<S: Serialize>(&self, state: &mut Stored, records: &[(u64, Key, S)]) {
        for (seq, key, settings) in records {
            match object(*seq, *key, settings) {
                Ok(line) => state.hold(*seq, *key, line),
                // Cannot happen: all settings can be encoded.
                Err(error) => warn!("settings cannot be written as JSON: {error}"),
            }
        }
    }

    /// Returns the journal's condition.
    pub fn condition(&self) -> Condition {
        Condition {
            is_degraded: self.is_degraded.load(Relaxed),
            nr_damaged: self.nr_damaged,
        }
    }

    /// Returns whether [`Self::tend`] has work to do. Never waits for a disk: returns false while another
    /// thread writes, which checks afterwards.
    pub fn is_due(&self) -> bool {
        let state = self.state.try_lock();
        state.is_some_and(|state| state.is_wanting() && state.due.is_none())
    }

    /// Stores held lines, creates the file again if it was removed, and compacts it. Called by one thread, at
    /// the latest at the time returned; each failure lengthens the pause.
    pub fn tend(&self, now: Instant, is_alive: impl Fn(Key) -> bool) -> Instant {
        let Some(mut state) = self.state.try_lock() else {
            // Another thread writes, perhaps to a slow disk.
            return now + RETRY;
        };
        if now.saturating_duration_since(state.checked) >= CHECK {
            state.checked = now;
            let is_there = (state.file.as_ref()).is_none_or(|file| state_file::is_at(file, &self.path));
            if !is_there && !state.is_spoilt {
                (state.is_spoilt, state.due) = (true, None);
                self.note(&mut state, Err(io::Error::other("somebody has removed the file")));
            }
        }
        if !state.is_wanting() {
            (state.due, state.pause) = (None, Duration::ZERO);
        } else if state.due.is_none_or(|due| due <= now) {
            let stored = if state.is_spoilt || state.is_long() {
                drop(state);
                let stored = self.compact(is_alive);
                state = self.state.lock();
                stored
            } else {
                state.flush(&self.boot)
            };
            if stored.is_ok() {
                // The next compaction may be due at once: many processes may end within a second.
                (state.due, state.pause) = (None, Duration::ZERO);
            } else {
                state.pause = (state.pause * 2).clamp(RETRY, LONGEST_RETRY);
                state.due = Some(now + state.pause);
            }
            match stored {
                Err(error) if !state.is_spoilt && state.held.is_empty() => {
                    if state.pause == RETRY {
                        warn!("cannot compact the settings' file: {error}");
                    }
                }
                stored => self.note(&mut state, stored),
            }
        }
        let check = state.checked + CHECK;
        state.due.map_or(check, |due| due.min(check))
    }

    /// Rewrites the file without lines that are superseded or of dead processes, and with the lines held in
    /// memory. Appending continues meanwhile: only lines added during the rewrite are copied under the lock.
    ///
    /// # Errors
    /// The file system refuses; the old file is then still in place.
    fn compact(&self, is_alive: impl Fn(Key) -> bool) -> io::Result<()> {
        let (text, held) = {
            let state = self.state.lock();
            let text =
                (state.file.as_ref()).map_or(Ok(Vec::new()), |file| state_file::read(file, state.length))?;
            (text, state.held.keys().copied().collect::<Vec<_>>())
        };
        let kept = replay::compacted(&text, &self.boot, &is_alive)?;
        let replaced = self.replace(&kept, text.len());
        if replaced.is_err() && self.state.lock().nr_held_bytes > COMPACT_AFTER {
            let dead: Vec<Key> = held.into_iter().filter(|key| !is_alive(*key)).collect();
            let mut state = self.state.lock();
            // The file may have older lines of these processes, which the dropped lines would have
            // superseded.
            state.is_spoilt = true;
            dead.iter().for_each(|key| state.release(key));
        }
        replaced
    }

    /// Replaces the current file by one that begins with lines of these objects, which stand for the current
    /// file's first `end` bytes.
    fn replace(&self, objects: &[Vec<u8>], end: usize) -> io::Result<()> {
        let is_ours =
            (self.state.lock().file.as_ref()).is_some_and(|file| state_file::is_at(file, &self.path));
        // Fails if another daemon has created a file of that name meanwhile.
        let _lock = match is_ours {
            true => None,
            false => Some(
                state_file::lock_now(&self.path).map_err(|refusal| io::Error::other(refusal.to_string()))?,
            ),
        };
        let (fresh, file) = Fresh::beside(&self.path)?;
        let mut next = Stored::new(Some(file), 0, 0);
        next.write(&self.boot, objects)?;
        let kept = next.length;
        let mut state = self.state.lock();
        let all =
            (state.file.as_ref()).map_or(Ok(Vec::new()), |file| state_file::read(file, state.length))?;
        let mut added = replay::objects(all.get(end..).unwrap_or_default(), &self.boot);
        added.extend(state.held_objects());
        next.write(&self.boot, &added)?;
        fresh.install(&self.path)?;
        (state.file, state.length, state.last) = (next.file, next.length, next.last);
        (state.kept, state.is_spoilt) = (kept, false);
        state.has_stored();
        Ok(())
    }

    /// Records whether settings could be stored, and logs a change of that.
    fn note(&self, state: &mut Stored, stored: io::Result<()>) {
        let path = self.path.display();
        match (stored, self.is_degraded.load(Relaxed)) {
            (Ok(()), true) => {
                self.is_degraded.store(false, Relaxed);
                if state.is_told {
                    info!("{path}: settings are saved again");
                }
            }
            (Err(error), false) => {
                self.is_degraded.store(true, Relaxed);
                let now = Instant::now();
                // A nearly full disk stores some lines and not others.
                state.is_told = state
                    .told
                    .is_none_or(|told| now.saturating_duration_since(told) >= QUIET);
                if state.is_told {
                    state.told = Some(now);
                    warn!("{path}: settings are not saved: {error}");
                }
            }
            _ => {}
        }
    }
}
