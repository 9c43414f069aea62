//! Contents of the control files of one directory. A file that a daemon of another version lacks or writes
//! otherwise has no value.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Pressure, Stall};

/// Control files that are read of a process or a group, and of one on a GPU.
pub const FILES: &[&str] = &[
    "memory.current",
    "memory.peak",
    "memory.limit",
    "memory.high",
    "memory.swap.current",
    "memory.swap.max",
    "memory.events",
    "memory.pressure",
    "compute.priority",
    "compute.freeze",
    "compute.max",
    "compute.stat",
    "compute.pressure",
    "gcgroup.events",
    "gcgroup.suspend",
    "gcgroup.waits",
    "gcgroup.lease",
    "gcgroup.lease.action",
];

/// Contents of control files, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Files(BTreeMap<String, String>);

impl Files {
    pub fn insert(&mut self, name: &str, text: String) {
        self.0.insert(name.to_owned(), text);
    }

    /// Returns a file's text without the final newline.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|text| text.trim_end())
    }

    /// Returns the number that is the whole content; `None` for `max` and other words.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns the value of a key in a flat-keyed file.
    pub fn value(&self, name: &str, key: &str) -> Option<&str> {
        value(self.text(name)?, key)
    }

    /// Returns the number of a key in a flat-keyed file.
    pub fn key(&self, name: &str, key: &str) -> Option<u64> {
        self.value(name, key)?.parse().ok()
    }

    /// Returns the numbers of all keys in a flat-keyed file.
    pub fn keys(&self, name: &str) -> BTreeMap<String, u64> {
        let lines = self.text(name).unwrap_or_default().lines();
        let pairs = lines.filter_map(|line| {
            let (key, value) = line.split_once(' ')?;
            Some((key.to_owned(), value.parse().ok()?))
        });
        pairs.collect()
    }

    /// Returns the content of a pressure file, which has the format of the kernel's PSI.
    pub fn pressure(&self, name: &str) -> Option<Pressure> {
        let text = self.text(name)?;
        let stall = |what: &str| {
            let line = value(text, what).unwrap_or_default();
            let word = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key));
            let average = |key: &str| word(key).and_then(|text| text.parse().ok()).unwrap_or(0.0);
            Stall {
                avg10: average("avg10="),
                avg60: average("avg60="),
                avg300: average("avg300="),
                total_usec: word("total=").and_then(|text| text.parse().ok()).unwrap_or(0),
            }
        };
        Some(Pressure {
            some: stall("some"),
            full: stall("full"),
        })
    }
}

/// Returns the value of a key in the text of a flat-keyed file.
pub fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_each_format() {
        let mut files = Files::default();
        for (name, text) in [
            ("memory.limit", "max\n"),
            ("memory.current", "7\n"),
            ("memory.events", "max 3\nmaximum 4\noom x\n"),
            (
                "memory.pressure",
                "some avg10=1.50 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.25 avg300=0.00 total=5\n",
            ),
        ] {
            files.insert(name, text.to_owned());
        }
        assert_eq!(files.number("memory.limit"), None);
        assert_eq!(files.number("memory.current"), Some(7));
        assert_eq!(files.key("memory.events", "max"), Some(3));
        assert_eq!(files.key("memory.events", "oom"), None);
        assert_eq!(files.key("memory.events", "ma"), None);
        assert_eq!(files.keys("memory.events").len(), 2);
        let pressure = files.pressure("memory.pressure").unwrap();
        assert!((pressure.some.avg10, pressure.full.avg60) == (1.5, 0.25));
        assert_eq!((pressure.some.total_usec, pressure.full.total_usec), (12, 5));
        assert!(files.pressure("compute.pressure").is_none());
    }
}
