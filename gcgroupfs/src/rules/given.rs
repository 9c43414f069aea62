//! Settings that a rule makes, by the names of the control files.

use std::fmt;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::Result;
use crate::text::{self, parse_bytes, parse_priority, parse_quota};
use crate::tree::Settings;

/// `memory.*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Memory {
    limit: Option<Bytes>,
    swap: Swap,
}

/// `memory.swap.*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Swap {
    max: Option<Bytes>,
}

/// `compute.*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Compute {
    priority: Option<Priority>,
    max: Option<Quota>,
}

/// Settings for one directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    memory: Memory,
    compute: Compute,
}

impl Given {
    pub(super) fn new(memory: &Memory, compute: &Compute) -> Self {
        Self {
            memory: memory.clone(),
            compute: compute.clone(),
        }
    }

    /// Returns the settings as if root had written them.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        // Settings by root are never refused.
        let _ = self.store(&mut settings);
        settings
    }

    fn store(&self, settings: &mut Settings) -> Result<()> {
        if let Some(Bytes(bytes)) = self.memory.limit {
            settings.set_memory_limit(None, bytes, true)?;
        }
        if let Some(Bytes(bytes)) = self.memory.swap.max {
            settings.set_memory_swap_max(None, bytes, true)?;
        }
        if let Some(Priority(priority)) = self.compute.priority {
            settings.set_priority(None, priority, true)?;
        }
        if let Some(Quota { usec, period_usec }) = self.compute.max {
            settings.set_compute_max(None, usec, period_usec, true)?;
        }
        Ok(())
    }

    /// Returns a line `FILE VALUE` for each file that is set, with the value that it will show.
    pub fn lines(&self) -> Vec<String> {
        let settings = self.settings();
        let lines = [
            (
                self.memory.limit.is_some(),
                "memory.limit",
                text::bytes(settings.memory_limit(None)),
            ),
            (
                self.memory.swap.max.is_some(),
                "memory.swap.max",
                text::bytes(settings.memory_swap_max(None)),
            ),
            (
                self.compute.priority.is_some(),
                "compute.priority",
                text::value(settings.priority(None)),
            ),
            (
                self.compute.max.is_some(),
                "compute.max",
                text::quota(settings.compute_max(None)),
            ),
        ];
        lines
            .into_iter()
            .filter(|(given, ..)| *given)
            .map(|(_, name, value)| format!("{name} {}", value.trim_end()))
            .collect()
    }
}

/// Bytes in the format of `memory.limit`, or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bytes(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Priority(u32);

/// Quota in the format of `compute.max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quota {
    usec: u64,
    period_usec: Option<u64>,
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        written(from, "bytes, as 8589934592, \"8G\" or \"max\"", parse_bytes).map(Self)
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        written(from, "a number from 0 to 15", parse_priority).map(Self)
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let parsed = written(from, "a quota, as \"25000 100000\" or \"max\"", parse_quota);
        parsed.map(|(usec, period_usec)| Self { usec, period_usec })
    }
}

/// Deserializes a value in a control file's format: a string, or a number.
fn written<'de, D: Deserializer<'de>, T>(
    from: D,
    expected: &'static str,
    parse: fn(&str) -> Result<T>,
) -> std::result::Result<T, D::Error> {
    let text = from.deserialize_any(Written(expected))?;
    parse(&text).map_err(D::Error::custom)
}

struct Written(&'static str);

impl Visitor<'_> for Written {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> std::result::Result<String, E> {
        if number < 0 {
            return Err(E::invalid_value(Unexpected::Signed(number), &self));
        }
        Ok(number.to_string())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<String, E> {
        Ok(text.trim().to_owned())
    }
}
