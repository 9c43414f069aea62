//! Values of settings: their kinds, and which of two is tighter.

use gcgroup_abi::NO_LIMIT;
use serde::{Deserialize, Serialize};

use crate::quota::Quota;
use crate::text;
use crate::tree::idle_action::EXPECTED_IDLE;
use crate::tree::lease_action::{EXPECTED_ACTION, lease_action};

/// Value of a setting. Its JSON is a number, a flag or an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Number(u64),
    Flag(bool),
    Quota(Quota),
}

impl Value {
    /// No limit, of a setting in bytes.
    pub const MAX: Self = Self::Number(NO_LIMIT);

    /// Returns the number; 0 or 1 of a flag, microseconds of a quota.
    pub fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Flag(is_on) => is_on.into(),
            Self::Quota(quota) => quota.usec,
        }
    }

    pub fn is_on(self) -> bool {
        self.number() != 0
    }

    /// Returns the quota; none of a value of another kind.
    pub fn quota(self) -> Quota {
        match self {
            Self::Quota(quota) => quota,
            Self::Number(_) | Self::Flag(_) => Quota::NONE,
        }
    }

    /// Returns the number as that of a priority.
    pub fn priority(self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }
}

/// Kind of a setting's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes, or no limit.
    Bytes,
    /// Bytes, `limit` or `swap`.
    Visible,
    /// A number from 0 to `most`; `expected` says so.
    Number { most: u64, expected: &'static str },
    /// 0 or 1.
    Flag,
    /// A quota of GPU time.
    Quota,
    /// Seconds, or no end. What is kept is the time of the end, in milliseconds since boot.
    Seconds,
    /// A row of [`LEASE_ACTIONS`](crate::tree::LEASE_ACTIONS), by its rank.
    LeaseAction,
    /// `SECONDS ACTION` of `gcgroup.idle`, or never.
    Idle,
}

/// Values that a user other than root may set after root has set one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tighter {
    /// Lower than root's, or equal.
    Lower,
    /// Higher than root's, or equal.
    Higher,
    /// Any.
    Any,
}

impl Tighter {
    /// Returns the stricter of two values; the first of any.
    pub fn stricter(self, one: Value, other: Value) -> Value {
        match self.is_within(one, other) {
            true => one,
            false => other,
        }
    }

    /// Returns whether `value` is `bound` or tighter.
    pub fn is_within(self, value: Value, bound: Value) -> bool {
        match (self, value, bound) {
            (Self::Lower, Value::Quota(value), Value::Quota(bound)) => value.is_within(bound),
            (Self::Lower, ..) => value.number() <= bound.number(),
            (Self::Higher, ..) => value.number() >= bound.number(),
            (Self::Any, ..) => true,
        }
    }
}

impl Kind {
    /// Returns whether a value read from the journal is one of this kind.
    pub fn has(self, value: Value) -> bool {
        match (self, value) {
            (Self::Number { most, .. }, Value::Number(number)) => number <= most,
            (Self::LeaseAction, Value::Number(rank)) => lease_action(rank).is_some(),
            (Self::Bytes | Self::Visible | Self::Seconds | Self::Idle, Value::Number(_))
            | (Self::Flag, Value::Flag(_))
            | (Self::Quota, Value::Quota(_)) => true,
            _ => false,
        }
    }

    /// Returns the format in a configuration, for error messages.
    pub fn expected(self) -> &'static str {
        match self {
            Self::Bytes => "bytes, as 8589934592, \"8G\" or \"max\"",
            Self::Visible => text::VISIBLE,
            Self::Number { expected, .. } => expected,
            Self::Flag => "0 or 1",
            Self::Quota => "a quota, as \"25000 100000\", \"25%\" or \"max\"",
            Self::Seconds => text::SECONDS,
            Self::LeaseAction => EXPECTED_ACTION,
            Self::Idle => EXPECTED_IDLE,
        }
    }
}
