//! Contents of the control files of one directory.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Contents of control files, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Files(BTreeMap<String, String>);

impl Files {
    pub(crate) fn insert(&mut self, name: &str, text: String) {
        self.0.insert(name.to_owned(), text);
    }

    /// Returns a file's text without the final newline.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|text| text.trim_end())
    }

    /// Returns the number that is the whole content; `None` for `max` and other words.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns the number of a key in a flat-keyed file.
    pub(crate) fn key(&self, name: &str, key: &str) -> Option<u64> {
        let lines = &mut self.text(name)?.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
    }

    /// Returns the total of a pressure file's line, `some` or `full`, in microseconds.
    pub(crate) fn pressure(&self, name: &str, line: &str) -> Option<u64> {
        let line = self.text(name)?.lines().find(|text| text.starts_with(line))?;
        line.rsplit_once("total=")?.1.parse().ok()
    }

    /// Returns the sum of the submissions so far.
    pub(crate) fn submissions(&self) -> u64 {
        let counts = ["nr_launches", "nr_graphs", "nr_copies"].map(|key| self.key("compute.stat", key));
        counts.into_iter().flatten().fold(0, u64::saturating_add)
    }

    /// Returns whether all work has drained after a freeze, or is about to.
    pub(crate) fn is_frozen(&self) -> bool {
        self.key("gcgroup.events", "frozen") == Some(1) || self.number("compute.freeze") == Some(1)
    }
}

/// Returns the `KEY=VALUE` pairs of a line as flat keys, without those whose value is not a number.
pub(crate) fn flat_keyed(pairs: &str) -> String {
    let pairs = pairs.split(' ').filter_map(|pair| pair.split_once('='));
    pairs
        .filter(|(_, value)| value.parse::<u64>().is_ok())
        .map(|(key, value)| format!("{key} {value}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_each_format() {
        let mut files = Files::default();
        files.insert("memory.limit", "max\n".to_owned());
        files.insert("memory.current", "7\n".to_owned());
        files.insert("memory.events", "max 3\nmaximum 4\noom x\n".to_owned());
        files.insert(
            "memory.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
                .to_owned(),
        );
        assert_eq!(files.number("memory.limit"), None);
        assert_eq!(files.number("memory.current"), Some(7));
        assert_eq!(files.key("memory.events", "max"), Some(3));
        assert_eq!(files.key("memory.events", "oom"), None);
        assert_eq!(files.key("memory.events", "ma"), None);
        assert_eq!(files.pressure("memory.pressure", "some"), Some(12));
        assert_eq!(files.pressure("memory.pressure", "full"), Some(5));
        assert_eq!(files.pressure("compute.pressure", "full"), None);
    }

    #[test]
    fn unknown_values_of_devices_are_left_out() {
        assert_eq!(
            flat_keyed("memory_total=5 temperature=unknown used=1"),
            "memory_total 5\nused 1\n"
        );
    }
}
