//! The state file: every setting, so that a daemon that starts again has it.
//!
//! A header line, then one JSON line for each change, appended by one write(2) and so on file as soon as the write
//! that caused it is answered; a daemon killed at any point loses at most the line it was writing. Each line holds
//! all settings of one process or group and a number; of several for one of them the highest number counts, so that lines
//! may be appended in any order. What settings are, it does not know.

mod replay;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

#[cfg(any(test, fuzzing))]
pub use self::replay::check;
use self::replay::{Record, Replay, line};

/// The file's name in the state directory.
const NAME: &str = "settings.jsonl";

/// How long a lock is waited for, and the time between two attempts.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// Bytes appended since the last compaction that call for another, if that left less. So a file has no more than twice what
/// is to be kept and this, and rewriting it costs no more than appending has.
const COMPACT_AFTER: u64 = 1 << 20;

/// What a line is about. A process for as long as the machine is up: its pid (as the daemon sees it) and its start time in clock ticks
/// since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub pid: u32,
    pub start_time: u64,
}

impl Key {
    /// What is asked of everybody: no process has this pid.
    pub const ROOT: Self = Self {
        pid: 0,
        start_time: 0,
    };

    /// Of a group: no process has this pid either.
    pub fn group(number: u64) -> Self {
        Self {
            pid: 0,
            start_time: number,
        }
    }

    /// The number of the group, if it is one's.
    pub fn group_number(self) -> Option<u64> {
        Some(self.start_time).filter(|number| self.pid == 0 && *number != 0)
    }
}

/// An open state file. Locked for as long as it is open, so that no other daemon writes it.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Read-locked to append, write-locked only to put a compacted file in its place.
    file: RwLock<Flock<File>>,
    next: AtomicU64,
    appended: AtomicU64,
    /// Bytes that the last compaction left.
    kept: AtomicU64,
    failed: AtomicBool,
}

impl Journal {
    /// Opens or begins the state file in `directory` and returns what is on file of those that `sift` keeps. What it changes
    /// takes the place of what was there in one step.
    ///
    /// # Errors
    /// The directory is not to be written, the file belongs to somebody else, or another daemon holds it.
    pub fn open<S: Serialize + DeserializeOwned>(
        directory: &Path,
        sift: impl FnOnce(&mut BTreeMap<Key, S>),
    ) -> anyhow::Result<(Self, BTreeMap<Key, S>)> {
        let path = directory.join(NAME);
        let mut old = lock(&path)?;
        Self::begin(path, &mut old, sift)
    }

    /// As [`open`](Self::open), but does not mind a lock that is held by a predecessor that was killed and cannot end: it
    /// writes no more, and what it has locked is no longer the file of that name when this is done.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_beside_killed<S: Serialize + DeserializeOwned>(
        directory: &Path,
        sift: impl FnOnce(&mut BTreeMap<Key, S>),
    ) -> anyhow::Result<(Self, BTreeMap<Key, S>)> {
        let path = directory.join(NAME);
        match lock(&path) {
            Ok(mut old) => Self::begin(path, &mut old, sift),
            Err(error) => {
                warn!("{error:#}: by a daemon that was killed");
                let mut old = open(&path, false)?;
                is_ours(&path, &old)?;
                Self::begin(path, &mut old, sift)
            }
        }
    }

    fn begin<S: Serialize + DeserializeOwned>(
        path: PathBuf,
        old: &mut File,
        sift: impl FnOnce(&mut BTreeMap<Key, S>),
    ) -> anyhow::Result<(Self, BTreeMap<Key, S>)> {
        let mut text = Vec::new();
        old.read_to_end(&mut text)
            .with_context(|| format!("cannot read {}", path.display()))?;

        let mut replay = Replay::of(&text);
        if let Some(fault) = replay.fault.filter(|_| !text.is_empty()) {
            let aside = path.with_extension("corrupt");
            // It may be a link.
            let _ = fs::remove_file(&aside);
            open(&aside, true)
                .and_then(|mut file| file.write_all(&text))
                .with_context(|| format!("cannot write {}", aside.display()))?;
            warn!(
                "{}: {fault}; a copy is in {}, {} records could be read",
                path.display(),
                aside.display(),
                replay.latest.len()
            );
        }
        replay.sift(sift);
        let text = replay.text()?;
        let file = write_compacted(&path, &text)?;
        fs::rename(compacted(&path), &path)?;
        let journal = Self {
            path,
            file: RwLock::new(file),
            next: AtomicU64::new(replay.highest + 1),
            appended: AtomicU64::new(0),
            kept: AtomicU64::new(text.len() as u64),
            failed: AtomicBool::new(false),
        };
        info!(
            "{} records restored from {}",
            replay.latest.len(),
            journal.path.display()
        );
        Ok((
            journal,
            replay
                .latest
                .into_iter()
                .map(|(key, record)| (key, record.settings))
                .collect(),
        ))
    }

    /// The number for a change: take it where changes are ordered, before [`Self::append`].
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Puts all settings of a process on file. A failure (a full disk) is logged once: the settings hold as long as
    /// the daemon does.
    pub fn append<S: Serialize>(&self, seq: u64, key: Key, settings: &S) {
        self.append_all(&[(seq, key, settings)]);
    }

    /// Likewise of several, in one write.
    pub fn append_all<S: Serialize>(&self, records: &[(u64, Key, S)]) {
        let lines = records.iter().map(|(seq, key, settings)| {
            line(&Record {
                seq: *seq,
                key: *key,
                settings,
            })
        });
        let written = lines.collect::<io::Result<Vec<_>>>().and_then(|lines| {
            let mut text = lines.concat();
            if self.failed.load(Relaxed) {
                // What failed may have left half a line.
                text.insert(0, b'\n');
            }
            // One write(2) to a file opened with O_APPEND: lines of several threads do not mix.
            (&**self.file.read()).write_all(&text)?;
            Ok(self.appended.fetch_add(text.len() as u64, Relaxed))
        });
        match written {
            Ok(_) => self.failed.store(false, Relaxed),
            Err(error) if !self.failed.swap(true, Relaxed) => {
                warn!("{}: settings are not saved: {error}", self.path.display());
            }
            Err(_) => {}
        }
    }

    /// Whether enough has been appended for [`Self::compact`] to be worth its while.
    pub fn is_long(&self) -> bool {
        self.appended.load(Relaxed) >= self.kept.load(Relaxed).max(COMPACT_AFTER)
    }

    /// Rewrites the file without what is superseded or of dead processes. Appending goes on meanwhile: only the lines
    /// that came during the rewriting are copied under the lock. Call from one thread at a time.
    ///
    /// # Errors
    /// The directory cannot be written; the old file is then still in place.
    pub fn compact(&self, is_alive: impl Fn(Key) -> bool) -> anyhow::Result<()> {
        self.appended.store(0, Relaxed);
        let text = fs::read(&self.path)?;
        // A line may be half written: it belongs to what comes after.
        let end = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        let mut replay = Replay::<serde_json::Value>::of(text.get(..end).unwrap_or_default());
        replay.latest.retain(|key, _| is_alive(*key));
        let kept = replay.text()?;
        let mut file = write_compacted(&self.path, &kept)?;

        let mut current = self.file.write();
        current.seek(SeekFrom::Start(end as u64))?;
        io::copy(&mut **current, &mut *file)?;
        fs::rename(compacted(&self.path), &self.path)?;
        *current = file;
        self.kept.store(kept.len() as u64, Relaxed);
        Ok(())
    }
}

/// Opens the file and locks it, and makes sure that it is still the one of that name.
fn lock(path: &Path) -> anyhow::Result<Flock<File>> {
    loop {
        let file = open(path, false).with_context(|| format!("cannot open {}", path.display()))?;
        let Some(file) = take(file) else {
            bail!(
                "{} is in use by another gcgroupfs (give this one another --state-dir)",
                path.display()
            );
        };
        let ours = is_ours(path, &file)?;
        if fs::metadata(path).is_ok_and(|named| named.ino() == ours.ino() && named.dev() == ours.dev()) {
            return Ok(file);
        }
    }
}

/// The file's metadata, if nobody else has made it.
fn is_ours(path: &Path, file: &File) -> anyhow::Result<fs::Metadata> {
    let ours = file.metadata()?;
    if ours.uid() != nix::unistd::geteuid().as_raw() {
        bail!("{} belongs to somebody else", path.display());
    }
    Ok(ours)
}

/// Locks a file, waiting for a moment: a daemon that was killed while it started a process may have left a lock to that
/// process, which lets go of it when it executes its program or ends.
fn take(mut file: File) -> Option<Flock<File>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Some(locked),
            Err(_) if Instant::now() > deadline => return None,
            Err((back, _)) => file = back,
        }
        thread::sleep(PAUSE);
    }
}

/// Never follows a link: the directory may be one that others write.
fn open(path: &Path, truncate: bool) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)?;
    if truncate {
        file.set_len(0)?;
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

fn compacted(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Writes a fresh file beside `path`, locked before it can have that name.
fn write_compacted(path: &Path, text: &[u8]) -> anyhow::Result<Flock<File>> {
    let path = compacted(path);
    let fresh = open(&path, true).with_context(|| format!("cannot write {}", path.display()))?;
    let Some(mut fresh) = take(fresh) else {
        bail!("{} is in use by another gcgroupfs", path.display());
    };
    fresh.write_all(text)?;
    Ok(fresh)
}
