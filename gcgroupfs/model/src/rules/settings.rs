//! Settings that a rule makes, by the names of the control files.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, Unexpected, Visitor};

use crate::files;
use crate::tree::{SETTINGS, Setting, Settings, Value, check_device_list};

const DEVICES: &str = "gcgroup.devices";

/// Settings for one directory, in the order of the table of settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleSettings {
    settings: Vec<(&'static Setting, Value)>,
    /// `gcgroup.devices`, as it is written to the control file; resolved when the group is made.
    devices: Option<String>,
}

impl RuleSettings {
    /// Returns the settings as if root had written them.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        for (setting, value) in &self.settings {
            // Settings by root are never refused.
            let _ = settings.set(setting, None, *value, true);
        }
        settings
    }

    /// Returns `gcgroup.devices`, as it would be written.
    pub fn devices(&self) -> Option<&str> {
        self.devices.as_deref()
    }

    /// Returns a line `FILE VALUE` for each file that is set, with the value that it will show.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.settings.iter();
        let lines =
            lines.map(|(setting, value)| format!("{} {}", setting.name, setting.show(*value).trim_end()));
        let devices = self.devices.iter().map(|list| format!("{DEVICES} {list}"));
        lines.chain(devices).collect()
    }

    /// Returns these settings and `others`, which are of another section.
    pub(super) fn with(&self, others: &Self) -> Self {
        let all = |setting: &&'static Setting| {
            let mut both = self.settings.iter().chain(&others.settings);
            both.find(|(other, _)| other == setting).copied()
        };
        Self {
            settings: SETTINGS.iter().filter_map(all).collect(),
            devices: self.devices.as_ref().or(others.devices.as_ref()).cloned(),
        }
    }
}

/// Deserializes `memory.*` of a group.
pub(super) fn memory_of_group<'de, D: Deserializer<'de>>(from: D) -> Result<RuleSettings, D::Error> {
    section("memory.", false, from)
}

/// Deserializes `memory.*` of a process.
pub(super) fn memory_of_process<'de, D: Deserializer<'de>>(from: D) -> Result<RuleSettings, D::Error> {
    section("memory.", true, from)
}

/// Deserializes `compute.*`.
pub(super) fn compute<'de, D: Deserializer<'de>>(from: D) -> Result<RuleSettings, D::Error> {
    section("compute.", true, from)
}

/// Deserializes `gcgroup.*` of a group.
pub(super) fn gcgroup_of_group<'de, D: Deserializer<'de>>(from: D) -> Result<RuleSettings, D::Error> {
    section("gcgroup.", false, from)
}

/// Deserializes `gcgroup.*` of a process.
pub(super) fn gcgroup_of_process<'de, D: Deserializer<'de>>(from: D) -> Result<RuleSettings, D::Error> {
    section("gcgroup.", true, from)
}

/// Deserializes the settings whose names begin with `prefix`, by the rest of their names.
fn section<'de, D: Deserializer<'de>>(
    prefix: &str,
    of_processes: bool,
    from: D,
) -> Result<RuleSettings, D::Error> {
    let mut settings = RuleSettings::default();
    Section {
        prefix,
        of_processes,
        settings: &mut settings,
    }
    .deserialize(from)?;
    Ok(settings)
}

/// Table of settings whose names begin with `prefix`.
struct Section<'a> {
    prefix: &'a str,
    /// Whether only files of processes may be set, not those that only groups have.
    of_processes: bool,
    settings: &'a mut RuleSettings,
}

impl<'de> DeserializeSeed<'de> for Section<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Section<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "settings {}*", self.prefix)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        while let Some(name) = from.next_key_seed(Key(self.prefix, self.of_processes))? {
            if name == DEVICES {
                self.settings.devices = Some(from.next_value_seed(DeviceText)?);
                continue;
            }
            match SETTINGS.iter().find(|setting| setting.name == name) {
                Some(setting) => {
                    let value = from.next_value_seed(Written(setting))?;
                    self.settings.settings.push((setting, value));
                }
                None => from.next_value_seed(Section {
                    prefix: &format!("{name}."),
                    of_processes: self.of_processes,
                    settings: self.settings,
                })?,
            }
        }
        Ok(())
    }
}

/// Key in a table: the rest of the name of a setting or of several after the prefix. The value is the name.
/// With `true`, only of settings that processes have.
struct Key<'a>(&'a str, bool);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
        from.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the name of a setting {}*", self.0)
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<String, E> {
        let names = SETTINGS.iter().filter(|setting| setting.for_rules);
        let names = names.map(|setting| setting.name).chain([DEVICES]);
        let names = names
            .filter(|name| !self.1 || files::all().any(|file| file.name == *name && file.is_of_processes()));
        let names: Vec<&str> = names.filter(|name| name.starts_with(self.0)).collect();
        let name = format!("{}{key}", self.0);
        let is_it = |one: &str| {
            let rest = one.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if names.iter().any(|one| is_it(one)) {
            return Ok(name);
        }
        let names = names.join(", ");
        Err(E::custom(format_args!(
            "unknown field `{key}`, there are {names}"
        )))
    }
}

/// Value in a control file's format: a string, or a number.
struct Written(&'static Setting);

impl<'de> DeserializeSeed<'de> for Written {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for Written {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.kind.expected())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        if number < 0 {
            return Err(E::invalid_value(Unexpected::Signed(number), &self));
        }
        self.visit_str(&number.to_string())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        let parsed = self.0.parse(text.trim(), self.0.default, None);
        parsed.map_err(E::custom)
    }
}

/// A list of devices in the control file's format: a string, or one index. Whether they exist is known only
/// when the group is made.
struct DeviceText;

impl<'de> DeserializeSeed<'de> for DeviceText {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for DeviceText {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("devices, as \"0,2-3\"")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        check_device_list(text.trim()).map_err(E::custom)?;
        Ok(text.trim().to_owned())
    }
}
