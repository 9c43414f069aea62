//! Row of the table of settings. It names by variants what layers above do for this setting alone; a layer
//! does not compile without a handler of each variant.

use gcgroup_abi::message::Hello;
use gcgroup_abi::{VISIBLE_LIMIT, VISIBLE_SWAP};

use super::{Kind, Tighter, Value};
use crate::error::{Error, Result};
use crate::text::{self, parse_flag, parse_number, parse_quota, parse_seconds, parse_size, parse_visible};
use crate::tree::idle_action::{parse_idle, show_idle};
use crate::tree::lease_action::{lease_action, parse_lease_action};

/// Row of the table of settings.
#[derive(Debug)]
pub struct Setting {
    /// Name of the control file, and of the key in rules.
    pub name: &'static str,
    /// Name in the journal.
    pub key: &'static str,
    pub kind: Kind,
    /// Value until set.
    pub default: Value,
    /// Value of a process as a whole until set, where it is another.
    pub process_default: Option<Value>,
    /// Values that users other than root may set after root's.
    pub tighter: Tighter,
    /// Text of the error for any other.
    pub refusal: &'static str,
    /// Whether a value set for the whole replaces those of the devices, and one from a group above holds
    /// until there is one here. Otherwise all hold, each by itself.
    pub inherits: bool,
    /// Whether the value of a job's group bounds each process of the job as well: a process shows the
    /// stricter of both, and accepts none that the job's would make ineffective.
    pub(in crate::tree) bounds_jobs: bool,
    /// Whether rules may set it.
    pub for_rules: bool,
    /// How a program asks for it at its start.
    pub run_option: Option<RunOption>,
    /// The value that the control file shows; `None`: the value set here.
    pub(in crate::tree) shown: Option<Computed>,
    /// Check of a value before it is set.
    pub(in crate::tree) check: Option<Check>,
    /// Action after each write, beyond publishing.
    pub(in crate::tree) after_write: Option<AfterWrite>,
    /// Option of `gcgroupfs hold`; `None`: it cannot be held.
    pub hold_option: Option<HoldOption>,
    /// How the value is stored into control blocks; `None`: only the daemon reads it.
    pub(in crate::tree) publish: Option<Publish>,
    /// Entry in the manual page gcgroupfs(5).
    pub doc: &'static str,
}

/// Value that a control file shows in place of the one set; computed by `View::setting`.
#[derive(Debug, Clone, Copy)]
pub(in crate::tree) enum Computed {
    LeaseLeft,
    Priority,
    SwapMax,
    Visible,
}

/// Check of a value before it is set; made by `Edit::check`.
#[derive(Debug, Clone, Copy)]
pub(in crate::tree) enum Check {
    Priority,
    Protection,
    Suspend,
    SwapMax,
}

/// Action after a write; taken by `Edit::after_write`.
#[derive(Debug, Clone, Copy)]
pub(in crate::tree) enum AfterWrite {
    ApplyHigh,
    ApplyIdle,
    ApplyLease,
    BoundSwap,
    CountOverLimit,
    NoteEvents,
    Suspend,
}

/// How a value is stored into control blocks; done by `enforce::setting`.
#[derive(Debug, Clone, Copy)]
pub(in crate::tree) enum Publish {
    Freeze,
    Limit,
    Priority,
    SwapMax,
    Visible,
    #[cfg(any(test, feature = "fixture"))]
    Sample,
}

/// How a program asks for a setting at its start.
#[derive(Debug)]
pub struct RunOption {
    /// Option of `gcgroupfs run`, without its dashes.
    pub name: &'static str,
    /// Environment variable that the hook reads.
    pub variable: &'static str,
    /// Value of the option if it is given without one; `None`: it must have one.
    pub bare: Option<&'static str>,
    /// Description of the option.
    pub help: &'static str,
    /// Value that a registration asks for.
    pub asked: fn(&Hello) -> Option<Value>,
}

/// Option of `gcgroupfs hold`.
#[derive(Debug)]
pub struct HoldOption {
    /// Name without its dashes.
    pub name: &'static str,
    pub help: &'static str,
}

impl Setting {
    pub(super) const PLAIN: Self = Self {
        name: "",
        key: "",
        kind: Kind::Bytes,
        default: Value::MAX,
        process_default: None,
        tighter: Tighter::Lower,
        refusal: "",
        inherits: false,
        bounds_jobs: false,
        for_rules: true,
        run_option: None,
        shown: None,
        check: None,
        after_write: None,
        hold_option: None,
        publish: None,
        doc: "",
    };

    /// Parses a value in the format of the control file. A quota without a period has that of `before`; a
    /// percentage of memory is one of `memory` bytes.
    ///
    /// # Errors
    /// * `ERANGE`: a number out of range.
    /// * `EOPNOTSUPP`: a percentage of memory without `memory`.
    /// * `EINVAL`: anything else.
    pub fn parse(&self, text: &str, before: Value, memory: Option<u64>) -> Result<Value> {
        Ok(match self.kind {
            Kind::Bytes => Value::Number(parse_size(text, memory)?),
            Kind::Visible => Value::Number(parse_visible(text, memory)?),
            Kind::Number { most, expected } => Value::Number(parse_number(text, most, expected)?),
            Kind::Flag => Value::Flag(parse_flag(text)?),
            Kind::Quota => Value::Quota(parse_quota(text, before.quota().period_usec)?),
            Kind::Seconds => Value::Number(parse_seconds(text)?),
            Kind::LeaseAction => Value::Number(parse_lease_action(text)?),
            Kind::Idle if text == "max" => Value::MAX,
            Kind::Idle => Value::Number(parse_idle(text)?),
        })
    }

    /// Returns the error for a value beyond the one that root has set.
    pub(in crate::tree) fn beyond_root(&self, bound: Value) -> Error {
        Error::BeyondRoot {
            rule: self.refusal,
            bound: match self.kind {
                Kind::Seconds => "an earlier end".to_owned(),
                _ => self.show(bound).trim_end().to_owned(),
            },
        }
    }

    /// Formats a value as the control file shows it, with a newline.
    pub fn show(&self, value: Value) -> String {
        match value {
            Value::Number(bytes) if self.kind == Kind::Bytes => text::bytes(bytes),
            Value::Number(VISIBLE_LIMIT) if self.kind == Kind::Visible => text::value("limit"),
            Value::Number(VISIBLE_SWAP) if self.kind == Kind::Visible => text::value("swap"),
            Value::MAX if self.kind == Kind::Seconds => text::value("max"),
            Value::Number(rank) if self.kind == Kind::LeaseAction => {
                text::value(lease_action(rank).map_or("unknown", |action| action.name))
            }
            Value::Number(number) if self.kind == Kind::Idle => text::value(show_idle(number)),
            Value::Number(number) => text::value(number),
            Value::Flag(is_on) => text::flag(is_on),
            Value::Quota(quota) => text::quota(quota),
        }
    }
}

impl PartialEq for Setting {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Setting {}
