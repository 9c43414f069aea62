//! Groups that the configuration makes: `[[group]]`.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::list::{Gid, Uid};
use super::settings::{self, RuleSettings};
use crate::file::check_group_path;

/// All `[[group]]` tables, in their order. No two have the same path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfiguredGroups(Vec<ConfiguredGroup>);

/// One group: where it lies, who owns it, and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredGroup {
    #[serde(deserialize_with = "path")]
    name: String,
    uid: Option<Uid>,
    gid: Option<Gid>,
    #[serde(default, deserialize_with = "mode")]
    mode: Option<u16>,
    #[serde(default, deserialize_with = "settings::memory_of_group")]
    memory: RuleSettings,
    #[serde(default, deserialize_with = "settings::compute")]
    compute: RuleSettings,
    #[serde(default, deserialize_with = "settings::gcgroup_of_group")]
    gcgroup: RuleSettings,
}

impl ConfiguredGroups {
    pub fn iter(&self) -> impl Iterator<Item = &ConfiguredGroup> {
        self.0.iter()
    }
}

impl<'de> Deserialize<'de> for ConfiguredGroups {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let groups = Vec::<ConfiguredGroup>::deserialize(from)?;
        let mut seen = BTreeSet::new();
        match groups.iter().find(|group| !seen.insert(&group.name)) {
            Some(twice) => Err(D::Error::custom(format!("group {:?} is there twice", twice.name))),
            None => Ok(Self(groups)),
        }
    }
}

impl ConfiguredGroup {
    /// Returns the path from the root, as `a/b`.
    pub fn path(&self) -> &str {
        &self.name
    }

    /// Returns owner, owning group and mode of the directory, as far as they are given.
    pub fn access(&self) -> (Option<u32>, Option<u32>, Option<u16>) {
        let uid = self.uid.as_ref().map(|uid| uid.number);
        let gid = self.gid.as_ref().map(|gid| gid.number);
        (uid, gid, self.mode)
    }

    /// Returns the control files that are set, with the values that they will show.
    pub fn values(&self) -> BTreeMap<String, String> {
        let all = self.memory.with(&self.compute).with(&self.gcgroup).lines();
        let pairs = all.iter().filter_map(|line| line.split_once(' '));
        pairs
            .map(|(file, value)| (file.to_owned(), value.to_owned()))
            .collect()
    }
}

fn path<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let path = String::deserialize(from)?;
    check_group_path(&path).map_err(D::Error::custom)?;
    Ok(path)
}

/// Deserializes permission bits, written in octal as for chmod(1).
fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    let text = String::deserialize(from)?;
    let mode = u16::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777);
    let expected = "a mode in octal is expected, as \"0750\"";
    mode.map(Some).ok_or_else(|| D::Error::custom(expected))
}
