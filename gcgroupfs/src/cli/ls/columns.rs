//! Columns of `gcgroupfs ls`; a new column is a row here.

use std::cmp::Ordering;
use std::fmt::{self, Display};

use super::row::{Row, What};
use crate::cli::format::{size, time_left};
use gcgroupfs_model::text::word;

/// Row of the table of columns.
#[derive(Debug)]
pub(super) struct Column {
    /// Name on the command line; in capitals, the title.
    name: &'static str,
    pub(super) is_number: bool,
    pub(super) value: fn(&Row<'_>) -> Value,
    help: &'static str,
}

/// Content of a cell, in the order of `--sort`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    Absent,
    Text(String),
    Number(u64),
    Bytes(u64),
    /// Time in seconds.
    Seconds(u64),
    /// Hundredths of a percent.
    Percent(u64),
    /// No limit.
    Max,
}

impl Value {
    fn number(number: impl TryInto<u64>) -> Self {
        number.try_into().map_or(Self::Absent, Self::Number)
    }

    fn limit(bytes: Option<u64>) -> Self {
        bytes.map_or(Self::Max, Self::Bytes)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("-"),
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Bytes(bytes) => f.write_str(&size(*bytes)),
            Self::Seconds(seconds) => f.write_str(&time_left(*seconds)),
            Self::Percent(hundredths) => write!(f, "{}.{:02}", hundredths / 100, hundredths % 100),
            Self::Max => f.write_str("max"),
        }
    }
}

/// Columns of a table, and of a tree, unless others are asked for.
pub(super) const TABLE: &[&str] = &[
    "pid",
    "user",
    "comm",
    "group",
    "gpu",
    "memory",
    "limit",
    "priority",
    "frozen",
    "suspended",
    "kernels",
];
pub(super) const TREE: &[&str] = &[
    "name",
    "user",
    "gpu",
    "memory",
    "limit",
    "priority",
    "frozen",
    "suspended",
    "lease",
    "kernels",
];

const COLUMNS: &[Column] = &[
    Column {
        name: "pid",
        is_number: true,
        value: |row| match row.what {
            What::Process(process) => Value::number(process.pid),
            What::Group(_) => Value::Absent,
        },
        help: "process id; - for a group",
    },
    Column {
        name: "user",
        is_number: false,
        value: |row| match row.what {
            What::Process(process) => text(&process.user),
            What::Group(group) => text(&group.user),
        },
        help: "the process's user, or the group's owner",
    },
    Column {
        name: "comm",
        is_number: false,
        value: |row| match row.what {
            What::Process(process) => text(&process.comm),
            What::Group(_) => Value::Absent,
        },
        help: "short name of the program",
    },
    Column {
        name: "group",
        is_number: false,
        value: |row| {
            let path = row.group();
            path.map_or(Value::Absent, |path| Value::Text(format!("/{}", word(path))))
        },
        help: "path of the group; - if it is hidden",
    },
    Column {
        name: "name",
        is_number: false,
        value: |row| {
            let indent = "  ".repeat(row.depth);
            Value::Text(match row.what {
                What::Process(process) => format!("{indent}{} {}", process.pid, word(&process.comm)),
                What::Group(group) => {
                    let name = group.path.rsplit('/').next().unwrap_or_default();
                    format!("{indent}{}/", word(name))
                }
            })
        },
        help: "pid and program, or the group's name, indented in a tree",
    },
    Column {
        name: "gpu",
        is_number: true,
        value: |row| row.on.map_or(Value::Absent, |on| Value::number(on.index)),
        help: "index of the GPU; - if none is used",
    },
    Column {
        name: "memory",
        is_number: true,
        value: |row| Value::Bytes(row.usage().memory.current),
        help: "device memory charged now",
    },
    Column {
        name: "peak",
        is_number: true,
        value: |row| Value::Bytes(row.usage().memory.peak),
        help: "most device memory so far",
    },
    Column {
        name: "swap",
        is_number: true,
        value: |row| Value::Bytes(row.usage().memory.swap.current),
        help: "memory that was moved to the host",
    },
    Column {
        name: "limit",
        is_number: true,
        value: |row| Value::limit(row.usage().memory.effective_limit),
        help: "smallest memory limit that applies, of all groups above too",
    },
    Column {
        name: "own_limit",
        is_number: true,
        value: |row| Value::limit(row.usage().memory.limit),
        help: "memory limit set here",
    },
    Column {
        name: "high",
        is_number: true,
        value: |row| {
            let set = [row.whole().memory.high, row.usage().memory.high];
            Value::limit(set.into_iter().flatten().min())
        },
        help: "memory.high set here: memory beyond it is reclaimed",
    },
    Column {
        name: "refused",
        is_number: true,
        value: |row| Value::Number(row.usage().refusals()),
        help: "allocations that a limit refused",
    },
    Column {
        name: "priority",
        is_number: true,
        value: |row| Value::Number(row.usage().compute.priority),
        help: "priority in force, 0 is highest",
    },
    Column {
        name: "quota",
        is_number: true,
        value: |row| {
            let quota = row.usage().compute.max.quota_usec;
            quota.map_or(Value::Max, Value::Number)
        },
        help: "GPU time per period, microseconds",
    },
    Column {
        name: "frozen",
        is_number: false,
        value: |row| Value::Text(row.frozen().to_owned()),
        help: "yes, soon (until submitted work has completed) or no",
    },
    Column {
        name: "suspended",
        is_number: false,
        value: |row| Value::Text(row.suspended().to_owned()),
        help: "yes, soon (until its memory is on the host), failed or no",
    },
    Column {
        name: "lease",
        is_number: true,
        value: |row| match row.what {
            What::Group(group) => match &group.lease {
                Some(lease) if lease.expired => Value::Text("expired".to_owned()),
                Some(lease) => Value::Seconds(lease.seconds),
                None => Value::Max,
            },
            What::Process(_) => Value::Absent,
        },
        help: "time until the group's lease expires, or expired",
    },
    Column {
        name: "kernels",
        is_number: true,
        value: |row| Value::Number(row.usage().stat("nr_launches")),
        help: "kernels launched so far",
    },
    Column {
        name: "gpu_usec",
        is_number: true,
        value: |row| Value::Number(row.usage().stat("usage_usec")),
        help: "GPU time measured so far, microseconds",
    },
    Column {
        name: "waits",
        is_number: true,
        value: |row| {
            percent(
                row.whole()
                    .compute
                    .pressure
                    .as_ref()
                    .map(|stall| stall.some.avg10),
            )
        },
        help: "percent of the last 10 s in which a thread waited to submit",
    },
    Column {
        name: "memory_waits",
        is_number: true,
        value: |row| percent(row.whole().memory.pressure.as_ref().map(|stall| stall.some.avg10)),
        help: "percent of the last 10 s in which a thread waited for memory",
    },
];

fn text(name: &str) -> Value {
    Value::Text(word(name).to_string())
}

fn percent(percent: Option<f64>) -> Value {
    let shown = percent.map(|percent| format!("{percent:.2}").replace('.', ""));
    let hundredths = shown.and_then(|shown| shown.parse().ok());
    hundredths.map_or(Value::Absent, Value::Percent)
}

impl Column {
    pub(super) fn title(&self) -> String {
        self.name.to_uppercase()
    }
}

/// Returns the columns of these names.
pub(super) fn named(names: &[&str]) -> Vec<&'static Column> {
    names.iter().filter_map(|name| column(name).ok()).collect()
}

/// Parses the name of a column.
///
/// # Errors
/// The text says which there are.
pub(super) fn column(name: &str) -> Result<&'static Column, String> {
    let found = COLUMNS.iter().find(|column| column.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
        format!("columns are {}", names.join(", "))
    })
}

/// Column by which the rows are sorted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    column: &'static Column,
    is_reverse: bool,
}

impl Order {
    /// Compares two rows by the column.
    pub(super) fn compare(self, one: &Row<'_>, other: &Row<'_>) -> Ordering {
        let value = self.column.value;
        let order = value(one).cmp(&value(other));
        if self.is_reverse { order.reverse() } else { order }
    }
}

/// Parses a column by which to sort, with `-` before it for the reverse order.
///
/// # Errors
/// The text says which columns there are.
pub(super) fn order(text: &str) -> Result<Order, String> {
    let (name, is_reverse) = match text.strip_prefix('-') {
        Some(name) => (name, true),
        None => (text, false),
    };
    Ok(Order {
        column: column(name)?,
        is_reverse,
    })
}

/// Returns the description of the columns.
pub(super) fn help() -> String {
    let lines = COLUMNS
        .iter()
        .map(|column| format!("  {:<13} {}", column.name, column.help));
    let lines: Vec<String> = lines.collect();
    format!("Columns:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_columns_exist() {
        assert_eq!(named(TABLE).len(), TABLE.len());
        assert_eq!(named(TREE).len(), TREE.len());
        assert!(column("nothing").is_err());
    }

    #[test]
    fn percent_has_two_digits() {
        assert_eq!(percent(Some(12.5)).to_string(), "12.50");
        assert_eq!(percent(Some(0.07)).to_string(), "0.07");
        assert_eq!(percent(None).to_string(), "-");
        assert!(percent(Some(9.0)) < percent(Some(10.0)));
    }
}
