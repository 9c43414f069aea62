//! Contents of the control files of one directory. A file that a daemon of another version lacks or writes
//! otherwise has no value.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// Contents of control files, by name. One text holds all of them, since there are many of each snapshot.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Names, each followed by the file's contents without the final newline.
    text: String,
    /// Where each name and the contents after it end, bytes.
    ends: Vec<(usize, usize)>,
}

impl Files {
    pub fn insert(&mut self, name: &str, text: &str) {
        self.text.push_str(name);
        let of_name = self.text.len();
        self.text.push_str(text.trim_end());
        self.ends.push((of_name, self.text.len()));
    }

    /// Returns a file's text without the final newline.
    pub fn text(&self, name: &str) -> Option<&str> {
        let begins = [0].into_iter().chain(self.ends.iter().map(|(_, end)| *end));
        let mut files = begins.zip(&self.ends);
        files.find_map(|(begin, (of_name, end))| {
            let is_it = self.text.get(begin..*of_name)? == name;
            is_it.then(|| self.text.get(*of_name..*end)).flatten()
        })
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
    pub fn keys(&self, name: &str) -> Keys {
        Keys(self.text(name).unwrap_or_default().to_owned())
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

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Contents)
    }
}

/// Reads [`Files`] from a map.
struct Contents;

impl<'de> Visitor<'de> for Contents {
    type Value = Files;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("contents of files by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Files, A::Error> {
        let mut files = Files::default();
        while map.next_key_seed(Append(&mut files.text))?.is_some() {
            let of_name = files.text.len();
            map.next_value_seed(Append(&mut files.text))?;
            let contents = files.text.get(of_name..).unwrap_or_default();
            files.text.truncate(of_name + contents.trim_end().len());
            files.ends.push((of_name, files.text.len()));
        }
        Ok(files)
    }
}

/// Appends a string that is read.
struct Append<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.push_str(text);
        Ok(())
    }
}

/// Numbers by key: the text of a flat-keyed file.
#[derive(Debug, Clone, Default)]
pub struct Keys(String);

impl Keys {
    pub fn get(&self, key: &str) -> Option<u64> {
        value(&self.0, key)?.parse().ok()
    }

    /// Adds a key, or changes its number.
    pub fn insert(&mut self, key: &str, number: u64) {
        let others: Vec<(String, u64)> = self
            .iter()
            .map(|(key, number)| (key.to_owned(), number))
            .collect();
        self.0.clear();
        for (other, number) in others.iter().filter(|(other, _)| other != key) {
            self.push(other, *number);
        }
        self.push(key, number);
    }

    fn push(&mut self, key: &str, number: u64) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{key} {number}");
    }

    /// Returns the keys with their numbers.
    fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let pairs = self.0.lines().filter_map(|line| line.split_once(' '));
        pairs.filter_map(|(key, value)| Some((key, value.parse().ok()?)))
    }
}

impl Serialize for Keys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut keys = Self::default();
        for (key, number) in pairs {
            keys.push(&key, number);
        }
        Ok(keys)
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
            files.insert(name, text);
        }
        assert_eq!(files.number("memory.limit"), None);
        assert_eq!(files.number("memory.current"), Some(7));
        assert_eq!(files.key("memory.events", "max"), Some(3));
        assert_eq!(files.key("memory.events", "oom"), None);
        assert_eq!(files.key("memory.events", "ma"), None);
        assert_eq!(files.keys("memory.events").iter().count(), 2);
        let pressure = files.pressure("memory.pressure").unwrap();
        assert!((pressure.some.avg10, pressure.full.avg60) == (1.5, 0.25));
        assert_eq!((pressure.some.total_usec, pressure.full.total_usec), (12, 5));
        assert!(files.pressure("compute.pressure").is_none());
    }
}
