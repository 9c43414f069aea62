//! The settings of one directory, as stored in the journal: an object of the settings that have been written,
//! by [`Setting::key`].

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{SETTINGS, Setting, Value};

/// One setting. Both values are absent until written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Bounded {
    /// The value in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<Value>,
    /// The last value written by root, which bounds what other users may set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) root: Option<Value>,
}

/// Settings by key, without those that have not been written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Values(BTreeMap<&'static str, Bounded>);

impl Values {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, setting: &Setting) -> Bounded {
        self.0.get(setting.key).copied().unwrap_or_default()
    }

    pub(super) fn change(&mut self, setting: &'static Setting, change: impl FnOnce(&mut Bounded)) {
        let mut bounded = self.get(setting);
        change(&mut bounded);
        if bounded == Bounded::default() {
            self.0.remove(setting.key);
        } else {
            self.0.insert(setting.key, bounded);
        }
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ValuesVisitor)
    }
}

struct ValuesVisitor;

impl<'de> Visitor<'de> for ValuesVisitor {
    type Value = Values;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Values, A::Error> {
        let mut values = Values::default();
        while let Some(key) = from.next_key::<String>()? {
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else {
                // Written by a later version.
                from.next_value::<IgnoredAny>()?;
                continue;
            };
            let read: Bounded = from.next_value()?;
            if [read.value, read.root]
                .into_iter()
                .flatten()
                .any(|value| !setting.kind.has(value))
            {
                return Err(A::Error::custom(format_args!("not a value of {}", setting.name)));
            }
            values.change(setting, |bounded| *bounded = read);
        }
        Ok(values)
    }
}
