//! What a state file says, read and written: of several lines for one key the one with the highest number counts.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Key;

/// Of the file's format. A daemon sets another's aside.
const VERSION: u32 = 1;

/// The highest number that is believed: there are as many more to give.
const MAX_NUMBER: u64 = u64::MAX / 2;

/// The first line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    gcgroupfs_settings: u32,
    /// Start times mean nothing after a reboot.
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
pub(super) struct Replay<S> {
    pub(super) latest: BTreeMap<Key, Record<S>>,
    pub(super) highest: u64,
    /// What is wrong with it, beyond a last line that was not finished.
    pub(super) fault: Option<&'static str>,
}

impl<S: DeserializeOwned> Replay<S> {
    pub(super) fn of(text: &[u8]) -> Self {
        let mut replay = Self {
            latest: BTreeMap::new(),
            highest: 0,
            fault: None,
        };
        let mut lines = text.split_inclusive(|byte| *byte == b'\n');
        match lines.next().map(serde_json::from_slice::<Header>) {
            Some(Ok(header)) if header.gcgroupfs_settings != VERSION => {
                replay.fault = Some("written by another version");
                return replay;
            }
            Some(Ok(header)) if header.boot_id != boot_id() => return replay,
            Some(Ok(_)) => {}
            _ => {
                replay.fault = Some("not a file of settings");
                return replay;
            }
        }
        for line in lines {
            if line == b"\n" {
                continue;
            }
            match serde_json::from_slice::<Record<S>>(line) {
                // No daemon has come so far: those that follow would count for less, and never again for more.
                Ok(record) if record.seq > MAX_NUMBER => replay.fault = Some("damaged"),
                Ok(record) => replay.take(record),
                Err(_) if !line.ends_with(b"\n") => {}
                Err(_) => replay.fault = Some("damaged"),
            }
        }
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
    /// A file that says this and nothing else.
    pub(super) fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = line(&Header {
            gcgroupfs_settings: VERSION,
            boot_id: boot_id(),
        })?;
        for record in self.latest.values() {
            text.extend(line(record)?);
        }
        Ok(text)
    }
}

/// Panics if what is understood of a state file, of this boot or another, would not be understood again.
#[cfg(any(test, fuzzing))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub fn check<S: Serialize + DeserializeOwned>(text: &[u8]) {
    let header = line(&Header {
        gcgroupfs_settings: VERSION,
        boot_id: boot_id(),
    })
    .unwrap();
    for text in [text.to_vec(), [&header, text].concat()] {
        let first = Replay::<S>::of(&text);
        let second = Replay::<S>::of(&first.text().unwrap());
        assert!(second.fault.is_none());
        let words =
            |replay: &Replay<S>| serde_json::to_string(&replay.latest.values().collect::<Vec<_>>()).unwrap();
        assert_eq!(words(&first), words(&second));
    }
}

pub(super) fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
