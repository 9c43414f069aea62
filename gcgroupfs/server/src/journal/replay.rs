//! Reads and rewrites the contents of a state file: of several lines with one key the one with the highest
//! number counts.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Key;
use super::line::{decode, encode, open};

/// Highest number of a record that is accepted; as many more are left to assign.
const MAX_NUMBER: u64 = u64::MAX / 2;

/// First line, whose number is 0. Its checksum has no salt, and its length does not change.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// Start times are meaningless after a reboot.
    boot_id: String,
    /// Number of the last line that was written, in 20 digits: a file that is cut off ends before it.
    last: String,
}

/// Any other line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record<S> {
    pub(super) seq: u64,
    #[serde(flatten)]
    pub(super) key: Key,
    pub(super) settings: S,
}

/// Contents of a file.
#[derive(Debug)]
pub(super) struct Replay<S> {
    pub(super) latest: BTreeMap<Key, Record<S>>,
    pub(super) highest: u64,
    /// Number of lines that are damaged or missing. Those of a torn last write are neither: its writer was
    /// killed before it was answered.
    pub(super) nr_damaged: u64,
    /// End of the last line that counts, in bytes.
    pub(super) end: usize,
    /// Number of the last line that counts.
    pub(super) last: u64,
    /// Whether nothing may be written to the file, because its first line is damaged or of another boot.
    pub(super) is_unfit: bool,
}

impl<S: DeserializeOwned> Replay<S> {
    /// Reads the text of a file; `boot` is this boot's id.
    pub(super) fn of(text: &[u8], boot: &str) -> Self {
        let mut replay = Self {
            latest: BTreeMap::new(),
            highest: 0,
            nr_damaged: 0,
            end: 0,
            last: 0,
            is_unfit: true,
        };
        let mut lines = text.split_inclusive(|byte| *byte == b'\n');
        let first = lines.clone().next().unwrap_or_default();
        let header = decode::<Header>("", first).map(|(_, header)| header);
        if header.as_ref().is_some_and(|header| header.boot_id != boot) {
            return replay;
        }
        let written = header.and_then(|header| header.last.parse().ok());
        if written.is_some() {
            (replay.end, replay.is_unfit) = (first.len(), false);
            lines.next();
        }
        let (mut at, mut nr_bad, mut nr_good) = (replay.end, 0, 0);
        for line in lines {
            at += line.len();
            let record = decode::<Record<S>>(boot, line).filter(|(_, record)| record.seq <= MAX_NUMBER);
            match record {
                // Without a newline it is the beginning of a line.
                None => nr_bad += u64::from(line.ends_with(b"\n")),
                // Its write was not completed.
                Some((number, _)) if written.is_some_and(|written| number > written) => {}
                Some((number, record)) => {
                    nr_good += u64::from(number > replay.last);
                    (replay.end, replay.last) = (at, replay.last.max(number));
                    replay.take(record);
                }
            }
        }
        let nr_missing = written.unwrap_or(replay.last).saturating_sub(nr_good);
        replay.nr_damaged = nr_bad.max(nr_missing).max(u64::from(written.is_none()));
        replay
    }

    pub(super) fn sift(&mut self, sift: impl FnOnce(&mut BTreeMap<Key, S>)) {
        let mut numbers = BTreeMap::new();
        let records = std::mem::take(&mut self.latest).into_iter();
        let mut values = records
            .map(|(key, record)| {
                numbers.insert(key, record.seq);
                (key, record.settings)
            })
            .collect();
        sift(&mut values);
        self.latest = values
            .into_iter()
            .map(|(key, settings)| {
                let seq = numbers.get(&key).copied().unwrap_or(self.highest);
                (key, Record { seq, key, settings })
            })
            .collect();
    }

    fn take(&mut self, record: Record<S>) {
        self.highest = self.highest.max(record.seq);
        if self
            .latest
            .get(&record.key)
            .is_none_or(|known| known.seq < record.seq)
        {
            self.latest.insert(record.key, record);
        }
    }
}

impl<S: Serialize> Replay<S> {
    /// Returns the lines of a file with this contents alone, as JSON objects.
    pub(super) fn objects(&self) -> io::Result<Vec<Vec<u8>>> {
        let records = self.latest.values();
        records
            .map(|record| object(record.seq, record.key, &record.settings))
            .collect()
    }

    /// Returns a hash of the settings of each key, for comparison.
    pub(super) fn hashes(&self) -> io::Result<BTreeMap<Key, u64>> {
        let records = self.latest.iter();
        let hashes = records.map(|(key, record)| {
            let mut hasher = DefaultHasher::new();
            hasher.write(&serde_json::to_vec(&record.settings)?);
            Ok((*key, hasher.finish()))
        });
        hashes.collect()
    }
}

/// Encodes a record as a JSON object.
pub(super) fn object<S: Serialize>(seq: u64, key: Key, settings: &S) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&Record { seq, key, settings })?)
}

/// Returns the objects of the file's lines without those that are superseded, damaged or of dead processes.
pub(super) fn compacted(text: &[u8], boot: &str, is_alive: impl Fn(Key) -> bool) -> io::Result<Vec<Vec<u8>>> {
    let mut replay = Replay::<Value>::of(text, boot);
    replay.latest.retain(|key, _| is_alive(*key));
    replay.objects()
}

/// Returns the objects of lines that this daemon has written.
pub(super) fn objects(lines: &[u8], boot: &str) -> Vec<Vec<u8>> {
    let lines = lines.split_inclusive(|byte| *byte == b'\n');
    lines.filter_map(|line| Some(open(boot, line)?.1)).collect()
}

/// Returns the first line of a file whose last line has this number.
pub(super) fn header(boot: &str, last: u64) -> Vec<u8> {
    let header = Header {
        boot_id: boot.to_owned(),
        last: format!("{last:020}"),
    };
    // Cannot fail: the keys are text.
    encode("", 0, &serde_json::to_vec(&header).unwrap_or_default())
}

/// Returns lines with these objects, the first of which has the number after `last`.
pub(super) fn lines<'a>(boot: &str, last: u64, objects: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let numbered = (last + 1..).zip(objects);
    numbered
        .flat_map(|(number, object)| encode(boot, number, object))
        .collect()
}

/// Panics if records, one JSON object per line, cannot be read again after writing.
#[cfg(any(test, fuzzing, feature = "fixture"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub fn check<S: Serialize + DeserializeOwned>(text: &[u8]) {
    let boot = boot_id();
    let written = |objects: &[Vec<u8>]| {
        let lines = lines(&boot, 0, objects.iter().map(Vec::as_slice));
        [header(&boot, objects.len() as u64), lines].concat()
    };
    // Also as the whole text of a file.
    let _ = Replay::<S>::of(text, &boot);
    let objects = text.split(|byte| *byte == b'\n').filter(|line| line.len() > 2);
    let first = Replay::<S>::of(&written(&objects.map(<[u8]>::to_vec).collect::<Vec<_>>()), &boot);
    let second = Replay::<S>::of(&written(&first.objects().unwrap()), &boot);
    assert_eq!(second.nr_damaged, 0);
    assert_eq!(first.objects().unwrap(), second.objects().unwrap());
}

/// Returns the boot id; empty if the kernel does not report it.
pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
