//! What a state file says, read and written: of several lines for one key the one with the highest number counts.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Key;
use super::line::{Fault, decode, encode, is_torn};

/// The highest number that is believed: there are as many more to give.
const MAX_NUMBER: u64 = u64::MAX / 2;

/// The first line. Its checksum has no salt.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// Start times mean nothing after a reboot.
    boot_id: String,
}

/// The first line of a file of version 1, whose lines have no checksums.
#[derive(Debug, Deserialize)]
struct OldHeader {
    gcgroupfs_settings: u32,
    boot_id: String,
}

/// Every other line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record<S> {
    pub(super) seq: u64,
    #[serde(flatten)]
    pub(super) key: Key,
    pub(super) settings: S,
}

/// What a file says.
#[derive(Debug)]
pub(super) struct Replay<S> {
    pub(super) latest: BTreeMap<Key, Record<S>>,
    pub(super) highest: u64,
    /// What is wrong with the file, beyond a last line that was not finished.
    pub(super) fault: Option<&'static str>,
    /// Lines that are damaged; 1 of a file that is not understood.
    pub(super) nr_damaged: u64,
    /// Where the last line that ends with a newline ends, in bytes.
    pub(super) end: usize,
    /// The key of a record after that, which lacks nothing but its newline.
    pub(super) tail: Option<Key>,
}

/// What the first line says of those that follow.
enum First {
    /// They are of this boot. Whether lines of version 1 are among them.
    Ours { is_old: bool },
    /// They are of another boot.
    Others,
    /// They are of a format that is not known.
    Unknown(&'static str),
    /// The first line is damaged. Records of this boot are known by their checksums.
    Damaged,
}

impl<S: DeserializeOwned> Replay<S> {
    /// Reads a file of which `boot` is this boot's id.
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
            // Nothing is to be appended to it.
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
                // It may be the first record.
                lines = text.split_inclusive(is_newline);
                false
            }
        };
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
        // What an older daemon could not finish is followed by an empty line.
        if line == b"\n" {
            return;
        }
        let is_whole = line.ends_with(b"\n");
        let record = match decode::<Record<S>>(boot, line) {
            Err(Fault::Form) if is_old => serde_json::from_slice(line).map_err(|_| Fault::Form),
            record => record,
        };
        match record {
            // No daemon has come so far: those that follow would count for less, and never again for more.
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
    /// A file that says this and nothing else.
    pub(super) fn text(&self, boot: &str) -> io::Result<Vec<u8>> {
        let mut text = header(boot)?;
        for record in self.latest.values() {
            text.extend(encode(boot, record)?);
        }
        Ok(text)
    }

    /// Returns the settings of each key, serialised, to be compared.
    pub(super) fn values(&self) -> io::Result<BTreeMap<Key, Vec<u8>>> {
        let records = self.latest.iter();
        let values = records.map(|(key, record)| Ok((*key, serde_json::to_vec(&record.settings)?)));
        values.collect()
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

/// Returns the first line of a file.
pub(super) fn header(boot: &str) -> io::Result<Vec<u8>> {
    let boot_id = boot.to_owned();
    encode("", &Header { boot_id })
}

/// Panics if what is understood of a state file, of this boot or another, would not be understood again.
#[cfg(any(test, fuzzing))]
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

/// This boot of the machine; empty where the kernel does not tell.
pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
