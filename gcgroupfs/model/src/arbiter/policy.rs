//! Scheduling policies: the weights of competitors of different priorities.

use std::sync::LazyLock;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub type Time = u64;

/// Largest `compute.priority`, which is the lowest priority.
pub const MAX_PRIORITY: u32 = 15;

/// A scheduling policy: a row of [`POLICIES`].
#[derive(Debug)]
pub struct Policy {
    /// Name in `compute.policy`, in the configuration, in the journal and on the command line.
    pub name: &'static str,
    /// Meaning of the priorities, for the manual.
    pub doc: &'static str,
    /// Returns the weight of a competitor whose priority is that many numbers below the best of its siblings
    /// that compete.
    pub(super) weigh: Weigh,
}

/// See [`Policy::weigh`].
pub(super) type Weigh = fn(u32) -> u64;

/// All policies; the first is the default.
pub const POLICIES: &[&Policy] = &[WEIGHTED, STRICT];

pub const WEIGHTED: &Policy = &Policy {
    name: "weighted",
    doc: "siblings with work get GPU time in proportion to 2^(8-priority)",
    weigh: |below| 1 << (MAX_PRIORITY - below.min(MAX_PRIORITY)),
};

pub const STRICT: &Policy = &Policy {
    name: "strict",
    doc: "of siblings with work those of the highest priority run, others use the gaps",
    // Others get a millionth, which is no turn but in gaps; among themselves a fourth each.
    weigh: |below| match below {
        0 => 1 << 50,
        _ => 1 << (2 * (MAX_PRIORITY - below.min(MAX_PRIORITY))),
    },
};

impl Policy {
    /// Returns the policy of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        POLICIES.iter().copied().find(|policy| policy.name == name)
    }
}

/// Returns the names of all policies, for people to read: `weighted or strict`.
pub fn names() -> &'static str {
    static NAMES: LazyLock<String> = LazyLock::new(|| listed(|policy| policy.name.to_owned()));
    &NAMES
}

/// Returns the names of all policies with what they do, for the manual.
pub fn described() -> String {
    listed(|policy| format!("{} ({})", policy.name, policy.doc))
}

fn listed(text: fn(&Policy) -> String) -> String {
    let texts: Vec<String> = POLICIES.iter().map(|policy| text(policy)).collect();
    texts.join(" or ")
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Policy {}

impl Default for &'static Policy {
    fn default() -> Self {
        WEIGHTED
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name)
    }
}

impl<'de> Deserialize<'de> for &'static Policy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        Policy::named(&name)
            .ok_or_else(|| D::Error::custom(format_args!("expected {}, got {name:?}", names())))
    }
}
