//! Creation of a group, as it is stored.

use serde::{Deserialize, Serialize};

/// Creation of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Creation {
    pub name: String,
    /// The uid of the creator.
    pub by: u32,
    /// True if the group is removed with its last process and last child group.
    #[serde(skip_serializing_if = "is_default")]
    pub is_transient: bool,
    /// The command for which the group is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// True if the group was made for a job whose command may have ended.
    #[serde(skip_serializing_if = "is_default")]
    pub is_job: bool,
    /// True if a process or a job asked for the group.
    #[serde(skip_serializing_if = "is_default")]
    pub is_requested: bool,
    /// Set if the group has been removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retained: Option<Retained>,
    /// `memory.current` of processes that have left over time, bytes times seconds.
    #[serde(skip_serializing_if = "is_default")]
    pub byte_seconds: u128,
}

/// Where a removed group was, as stored in its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retained {
    pub(super) path: String,
    /// Milliseconds since boot.
    pub(super) until: u64,
}

/// The command that was started with a group of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub pid: u32,
    /// Clock ticks since boot.
    pub start_time: u64,
    /// The group that was asked for, which rules examine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wish: Option<String>,
    /// True if the command was started by a governed process, whose group then counts instead of a rule's.
    #[serde(default)]
    pub is_inherited: bool,
    /// True if the command has ended: the group is not held for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub has_ended: bool,
}

/// Returns whether a value need not be stored.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
