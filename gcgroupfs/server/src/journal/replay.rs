//! Reads and rewrites the contents of a state file: of several lines with one key the one with the highest
//! number counts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Key;
use super::line::{Fault, decode, encode, is_torn};

/// Highest number accepted; as many more are left to assign.
const MAX_NUMBER: u64 = u64::MAX / 2;

/// First line. Its checksum has no salt.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// Start times are meaningless after a reboot.
    boot_id: String,
}

/// First line of a file of version 1, whose lines have no checksums.
#[derive(Debug, Deserialize)]
struct OldHeader {
    gcgroupfs_settings: u32,
    boot_id: String,
}

/// Any other line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record<S> {
    pub(super) seq: u64,
    #[serde(flatten)]
    pub(super) key: Key,
    /// Number of lines that follow in the same write(2). The lines of a write count only if all are in the
    /// file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) more: usize,
    pub(super) settings: S,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde requires")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl<S> Record<S> {
    /// Returns a record that is the only one of its write, or the last.
    pub(super) fn alone(seq: u64, key: Key, settings: S) -> Self {
        Self {
            seq,
            key,
            more: 0,
            settings,
        }
    }
}

/// Contents of a file.
#[derive(Debug)]
pub(super) struct Replay<S> {
    pub(super) latest: BTreeMap<Key, Record<S>>,
    pub(super) highest: u64,
    /// Damage found in the file; an unfinished last line is none.
    pub(super) fault: Option<&'static str>,
    /// Number of damaged lines; 1 for a file of an unknown format.
    pub(super) nr_damaged: u64,
    /// End of the last line that has a newline and counts, in bytes.
    pub(super) end: usize,
    /// Key of a record after that, which only lacks its newline.
    pub(super) tail: Option<Key>,
}

/// Meaning of the first line for the others.
enum First {
    /// They are of this boot; says whether lines of version 1 are among them.
    Ours { is_old: bool },
    /// They are of another boot.
    Others,
    /// Their format is unknown.
    Unknown(&'static str),
    /// The first line is damaged. Records of this boot are recognised by their checksums.
    Damaged,
}

impl<S: DeserializeOwned> Replay<S> {
    /// Reads the text of a file; `boot` is this boot's id.
    pub(super) fn of(text: &[u8], boot: &str) -> Self {
        let newline = text.iter().rposition(|byte| *byte == b'\n');
        let mut replay = Self {
            latest: BTreeMap::new(),
            highest: 0,
            fault: None,
            nr_damaged: 0,
            end: newline.map_or(0, |at| at + 1),
            tail: None,
        };
        let is_newline = |byte: &u8| *byte == b'\n';
        let mut lines = text.split_inclusive(is_newline);
        let Some(first) = lines.next() else { return replay };
        let is_old = match First::of(first, boot) {
            // Nothing may be appended to it.
            First::Others => {
                replay.end = 0;
                return replay;
            }
            First::Unknown(fault) => {
                (replay.end, replay.fault, replay.nr_damaged) = (0, Some(fault), 1);
                return replay;
            }
            First::Ours { is_old } => is_old,
            First::Damaged => {
                replay.fault = Some("not a file of settings");
                // This line may be the first record.
                lines = text.split_inclusive(is_newline);
                false
            }
        };
        let read = text.len() - lines.clone().map(<[u8]>::len).sum::<usize>();
        if let Some(begin) = begin_of_unfinished(&text[read..], boot) {
            replay.end = read + begin;
            lines = text[read..replay.end].split_inclusive(is_newline);
        }
        lines.for_each(|line| replay.read(line, boot, is_old));
        if replay.fault.is_some() {
            replay.nr_damaged = replay.nr_damaged.max(1);
        }
        if replay.nr_damaged > 0 && !replay.latest.is_empty() {
            replay.fault = Some("damaged");
        }
        replay
    }

    fn read(&mut self, line: &[u8], boot: &str, is_old: bool) {
        // An older daemon's unfinished line may be followed by an empty line.
        if line == b"\n" {
            return;
        }
        let is_whole = line.ends_with(b"\n");
        let record = match decode::<Record<S>>(boot, line) {
            Err(Fault::Form) if is_old => serde_json::from_slice(line).map_err(|_| Fault::Form),
            record => record,
        };
        match record {
            // No daemon assigns such numbers, and later records could never exceed this one.
            Ok(record) if record.seq > MAX_NUMBER => self.damage("damaged"),
            Ok(record) => {
                self.tail = (!is_whole).then_some(record.key);
                self.take(record);
            }
            Err(Fault::Newer) => self.damage("written by a newer version"),
            Err(Fault::Form) if is_old && !is_whole => {}
            Err(_) if !is_whole && is_torn(line) => {}
            Err(_) => self.damage("damaged"),
        }
    }

    fn damage(&mut self, fault: &'static str) {
        self.nr_damaged += 1;
        self.fault.get_or_insert(fault);
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
                (key, Record::alone(seq, key, settings))
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
    /// Returns a file with this contents alone.
    pub(super) fn text(&self, boot: &str) -> io::Result<Vec<u8>> {
        let mut text = header(boot)?;
        for record in self.latest.values() {
            text.extend(encode(
                boot,
                &Record::alone(record.seq, record.key, &record.settings),
            )?);
        }
        Ok(text)
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

impl First {
    fn of(line: &[u8], boot: &str) -> Self {
        match decode::<Header>("", line) {
            Ok(header) if header.boot_id == boot => Self::Ours { is_old: false },
            Ok(_) => Self::Others,
            Err(Fault::Newer) => Self::Unknown("written by a newer version"),
            Err(Fault::Damage) => Self::Damaged,
            Err(Fault::Form) => match serde_json::from_slice::<OldHeader>(line) {
                Ok(header) if header.gcgroupfs_settings != 1 => Self::Unknown("written by another version"),
                Ok(header) if header.boot_id == boot => Self::Ours { is_old: true },
                Ok(_) => Self::Others,
                Err(_) => Self::Damaged,
            },
        }
    }
}

/// Returns where the lines of the last write begin in `text` if some of them are missing: its writer was
/// killed. The kernel may end a write(2) of a killed process at any page.
fn begin_of_unfinished(text: &[u8], boot: &str) -> Option<usize> {
    let more = |line: &[u8]| decode::<Record<IgnoredAny>>(boot, line).map_or(0, |record| record.more);
    let mut begin = text.len();
    let mut lines = text.split_inclusive(|byte| *byte == b'\n').rev().peekable();
    if let Some(torn) = lines.next_if(|line| !line.ends_with(b"\n") && is_torn(line)) {
        begin -= torn.len();
    }
    let mut missing = more(lines.peek()?);
    if missing == 0 {
        return None;
    }
    while let Some(line) = lines.next_if(|line| more(line) == missing) {
        begin -= line.len();
        missing = missing.checked_add(1)?;
    }
    Some(begin)
}

/// Returns the file's text without lines that are superseded, damaged or of dead processes. Takes no more
/// memory than the file has bytes, and some for each record.
pub(super) fn compacted(text: &[u8], boot: &str, is_alive: impl Fn(Key) -> bool) -> io::Result<Vec<u8>> {
    let is_newline = |byte: &u8| *byte == b'\n';
    let first = text.split_inclusive(is_newline).next().unwrap_or_default();
    let is_old = matches!(First::of(first, boot), First::Ours { is_old: true });
    let renew = |record: Record<Value>| {
        let record = Record { more: 0, ..record };
        io::Result::Ok((record.seq, record.key, encode(boot, &record)?.into()))
    };
    let mut latest = BTreeMap::<Key, (u64, Cow<'_, [u8]>)>::new();
    for line in text.split_inclusive(is_newline) {
        let found = match decode::<Record<IgnoredAny>>(boot, line) {
            Ok(record) if record.more == 0 => Some((record.seq, record.key, Cow::Borrowed(line))),
            // The lines after it may be left out.
            Ok(_) => decode(boot, line).ok().map(renew).transpose()?,
            Err(Fault::Form) if is_old => serde_json::from_slice(line).ok().map(renew).transpose()?,
            Err(_) => None,
        };
        let Some((seq, key, line)) = found else { continue };
        if seq <= MAX_NUMBER && latest.get(&key).is_none_or(|(known, _)| *known < seq) {
            latest.insert(key, (seq, line));
        }
    }
    let kept = latest.iter().filter(|(key, _)| is_alive(**key));
    Ok(kept.fold(header(boot)?, |mut text, (_, (_, line))| {
        text.extend_from_slice(line);
        text
    }))
}

/// Returns the first line of a file.
pub(super) fn header(boot: &str) -> io::Result<Vec<u8>> {
    let boot_id = boot.to_owned();
    encode("", &Header { boot_id })
}

/// Panics if the contents read from a state file, of this boot or another, cannot be read again after
/// writing.
#[cfg(any(test, fuzzing, feature = "fixture"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub fn check<S: Serialize + DeserializeOwned>(text: &[u8]) {
    let boot = boot_id();
    let old = format!("{{\"gcgroupfs_settings\":1,\"boot_id\":\"{boot}\"}}\n");
    let header = header(&boot).unwrap();
    for header in [&[][..], old.as_bytes(), &header] {
        let first = Replay::<S>::of(&[header, text].concat(), &boot);
        let second = Replay::<S>::of(&first.text(&boot).unwrap(), &boot);
        assert!(second.fault.is_none());
        let words =
            |replay: &Replay<S>| serde_json::to_string(&replay.latest.values().collect::<Vec<_>>()).unwrap();
        assert_eq!(words(&first), words(&second));
    }
}

/// Returns the boot id; empty if the kernel does not report it.
pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
