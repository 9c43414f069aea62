//! Columns of `gcgroupfs ls` and `top`; a new column is a row here.

use std::fmt::{self, Display};
use std::time::Duration;

use gcgroup_client::node::{FILES, Lease, State, Wait};
use gcgroupfs_model::text::word;

use super::bars::sparkline;
use super::format::{size, time_left};
use super::row::{Row, What};

/// Row of the table of columns.
#[derive(Debug)]
pub(super) struct Column {
    /// Name on the command line; in capitals, the title in `ls`.
    pub(super) name: &'static str,
    pub(super) is_number: bool,
    pub(super) value: fn(&Row) -> Value,
    /// Help of `ls`; empty: it is not there.
    help: &'static str,
    /// `None`: it is not in `top`.
    pub(super) top: Option<Top>,
}

/// A column in `top`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Top {
    pub(super) title: &'static str,
    /// Width of the cells; 0: the rest of the line.
    pub(super) width: usize,
    /// Narrowest screen on which it is shown.
    least_screen: usize,
    order: TopOrder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopOrder {
    Ascending,
    Descending,
    Unsorted,
}

use self::TopOrder::{Ascending, Descending, Unsorted};

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
    /// Tenths of a percent.
    Tenths(u64),
    /// Percentages, the latest last.
    History(Vec<u64>),
    State(State),
    /// A text, and what it is sorted by.
    Named(String, String),
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

    fn text(name: &str) -> Self {
        Self::Text(word(name).to_string())
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("-"),
            Self::Text(text) | Self::Named(_, text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Bytes(bytes) => f.write_str(&size(*bytes)),
            Self::Seconds(seconds) => f.write_str(&time_left(*seconds)),
            Self::Percent(hundredths) => write!(f, "{}.{:02}", hundredths / 100, hundredths % 100),
            Self::Tenths(tenths) => write!(f, "{}.{}", tenths / 10, tenths % 10),
            Self::History(points) => f.write_str(&sparkline(points, HISTORY, true)),
            Self::State(state) => f.write_str(state.name()),
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

/// Files that only these columns are computed from; all other files are read in any case.
const OF_COLUMNS: &[(&str, &[&str])] = &[
    ("memory.peak", &["peak"]),
    ("memory.high", &["high"]),
    ("memory.swap.max", &[]),
    ("memory.events", &["refused", "state"]),
    ("memory.pressure", &["memory_waits"]),
    ("compute.max", &["quota"]),
    ("compute.pressure", &["waits", "state"]),
    ("gcgroup.waits", &["waits_for"]),
    ("gcgroup.lease", &["lease"]),
    ("gcgroup.lease.action", &[]),
];

/// Returns the files that columns of `ls` are computed from.
pub(super) fn files(columns: &[&Column]) -> Vec<&'static str> {
    let is_needed = |file: &&&str| {
        let row = OF_COLUMNS.iter().find(|(name, _)| name == *file);
        row.is_none_or(|(_, of)| columns.iter().any(|column| of.contains(&column.name)))
    };
    FILES.iter().filter(is_needed).copied().collect()
}

/// Columns of what the kernel tells of a process.
const OF_HOST: &[&str] = &["command", "age", "cpu", "host_memory"];

/// Columns that need two snapshots.
const RATES: &[&str] = &["state", "usage", "held"];

/// Narrowest screen with all columns.
const WIDE: usize = 100;

/// Width of the history.
const HISTORY: usize = 12;

/// Returns a column of `ls` whose cells are right-justified.
const fn number(name: &'static str, help: &'static str, value: fn(&Row) -> Value) -> Column {
    Column {
        name,
        is_number: true,
        value,
        help,
        top: None,
    }
}

/// Returns a column of `ls` whose cells are left-justified.
const fn text(name: &'static str, help: &'static str, value: fn(&Row) -> Value) -> Column {
    Column {
        is_number: false,
        ..number(name, help, value)
    }
}

impl Column {
    /// Shows the column in `top` too: title, width, and order.
    const fn top(self, title: &'static str, width: usize, order: TopOrder) -> Self {
        let least_screen = 0;
        let top = Top {
            title,
            width,
            least_screen,
            order,
        };
        Self {
            top: Some(top),
            ..self
        }
    }

    /// Hides the column of `top` on narrow screens.
    const fn wide(mut self) -> Self {
        if let Some(top) = &mut self.top {
            top.least_screen = WIDE;
        }
        self
    }
}

const COLUMNS: &[Column] = &[
    number("pid", "process id; - for a group", |row| match row.what() {
        What::Process(process) => Value::number(process.pid),
        What::Group(_) => Value::Absent,
    })
    .top("PID", 7, Ascending),
    text("user", "the process's user, or the group's owner", |row| {
        Value::text(row.user())
    })
    .top("USER", 8, Ascending)
    .wide(),
    text("comm", "short name of the program", |row| match row.what() {
        What::Process(process) => Value::text(&process.comm),
        What::Group(_) => Value::Absent,
    }),
    text(
        "command",
        "command line, shown to the process's user and root",
        |row| {
            let command = row.host().and_then(|host| host.command.as_ref());
            command.map_or(Value::Absent, |command| Value::Text(words(command)))
        },
    ),
    number("age", "time since the process started", |row| {
        let age = row
            .host()
            .map(|host| Duration::try_from_secs_f64(row.snapshot.time - host.start));
        age.map_or(Value::Absent, |age| {
            Value::Seconds(age.unwrap_or_default().as_secs())
        })
    }),
    number("cpu", "CPU time so far", |row| {
        let cpu = row.host().map(|host| host.cpu_usec / 1_000_000);
        cpu.map_or(Value::Absent, Value::Seconds)
    }),
    number("host_memory", "host memory of the process (RSS)", |row| {
        let memory = row.host().map(|host| host.memory);
        memory.map_or(Value::Absent, Value::Bytes)
    })
    .top("HOST", 6, Descending)
    .wide(),
    text("group", "path of the group; - if it is hidden", |row| {
        let path = row.group();
        path.map_or(Value::Absent, |path| Value::Text(format!("/{}", word(path))))
    }),
    text(
        "name",
        "pid and program, or the group's name, indented in a tree",
        |row| {
            let (indent, name) = ("  ".repeat(row.depth), row.name());
            Value::Text(match row.what() {
                What::Process(process) => format!("{indent}{} {name}", process.pid),
                What::Group(_) => format!("{indent}{name}/"),
            })
        },
    ),
    number("gpu", "index of the GPU; - if none is used", |row| {
        let indices: Vec<String> = match row.on() {
            Some(on) => return Value::number(on.index),
            None => row.devices().iter().map(|on| on.index.to_string()).collect(),
        };
        match indices.as_slice() {
            [] => Value::Absent,
            indices => Value::Text(indices.join(",")),
        }
    })
    .top("GPU", 4, Unsorted),
    number("memory", "device memory charged now", |row| {
        Value::Bytes(row.usage().memory.current)
    })
    .top("MEM", 6, Descending),
    number("peak", "most device memory so far", |row| {
        Value::Bytes(row.usage().memory.peak)
    }),
    number("swap", "memory that was moved to the host", |row| {
        Value::Bytes(row.usage().memory.swap.current)
    })
    .top("SWAP", 6, Descending),
    number(
        "limit",
        "smallest memory limit that applies, of all groups above too",
        |row| Value::limit(row.usage().memory.effective_limit),
    )
    .top("LIMIT", 6, Ascending),
    number("own_limit", "memory limit set here", |row| {
        Value::limit(row.usage().memory.limit)
    }),
    number(
        "high",
        "memory.high set here: memory beyond it is reclaimed",
        |row| {
            let set = [row.whole().memory.high, row.usage().memory.high];
            Value::limit(set.into_iter().flatten().min())
        },
    ),
    number("refused", "allocations that a limit refused", |row| {
        Value::Number(row.usage().refusals())
    }),
    number("usage", "GPU time in the last 0.2 s or --watch, percent", |row| {
        row.activity.gpu.map_or(Value::Text("-".to_owned()), tenths)
    })
    .top("GPU%", 5, Descending),
    number(
        "held",
        "time for which a GPU was kept free for it while others waited, percent",
        |row| {
            row.activity
                .gpu
                .map_or(Value::Text("-".to_owned()), |_| tenths(row.activity.held))
        },
    ),
    number("priority", "priority in force, 0 is highest", |row| {
        Value::Number(row.usage().compute.priority)
    })
    .top("PRI", 3, Ascending),
    number(
        "share",
        "part of the GPU while all that have lately had work want it, percent",
        |row| match row.what() {
            What::Process(_) => Value::Number(row.usage().stat("share_percent")),
            What::Group(_) => Value::Absent,
        },
    )
    .top("SHARE", 5, Descending)
    .wide(),
    number("quota", "GPU time per period, microseconds", |row| {
        let quota = row.usage().compute.max.quota_usec;
        quota.map_or(Value::Max, Value::Number)
    }),
    text("state", "what it does, as in gcgroupfs top", |row| {
        Value::State(row.activity.state)
    })
    .top("STATE", 10, Descending),
    text(
        "frozen",
        "yes, soon (until submitted work has completed) or no",
        |row| Value::Text(row.frozen().to_owned()),
    ),
    text(
        "suspended",
        "yes, soon (until its memory is on the host), failed or no",
        |row| Value::Text(row.suspended().to_owned()),
    ),
    number(
        "lease",
        "time until the group's lease expires, or expired",
        |row| match row.what() {
            What::Group(group) => match &group.lease {
                Some(lease) if lease.expired => Value::Text("expired".to_owned()),
                Some(lease) => Value::Seconds(lease.seconds),
                None => Value::Max,
            },
            What::Process(_) => Value::Absent,
        },
    ),
    number("kernels", "kernels launched so far", |row| {
        Value::Number(row.usage().stat("nr_launches"))
    }),
    number("gpu_usec", "GPU time measured so far, microseconds", |row| {
        Value::Number(row.usage().stat("usage_usec"))
    }),
    number(
        "waits",
        "percent of the last 10 s in which a thread waited to submit",
        |row| {
            let pressure = row.whole().compute.pressure.as_ref();
            percent(pressure.map(|stall| stall.some.avg10))
        },
    ),
    number(
        "memory_waits",
        "percent of the last 10 s in which a thread waited for memory",
        |row| percent(row.whole().memory.pressure.as_ref().map(|stall| stall.some.avg10)),
    ),
    text(
        "waits_for",
        "process that has the turn or the memory, and the time waited for it",
        |row| {
            let wait = match row.what() {
                What::Process(process) => process.waits_for(row.on().map(|on| on.index)),
                What::Group(_) => None,
            };
            wait.map_or(Value::Absent, |wait| Value::Text(awaited(wait)))
        },
    ),
    // The higher one of both.
    number("pressure", "", |row| {
        let stalls = [&row.whole().compute.pressure, &row.whole().memory.pressure];
        let some = stalls.into_iter().flatten().map(|pressure| pressure.some.avg10);
        tenths(some.fold(0.0, f64::max))
    })
    .top("PRES%", 5, Descending),
    number("history", "", |row| {
        Value::History(row.activity.history.iter().copied().collect())
    })
    .top("GPU% HISTORY", HISTORY, Unsorted)
    .wide(),
    text("name", "", |row| {
        let (indent, name) = ("  ".repeat(row.depth), row.name());
        let shown = match row.what() {
            What::Process(_) => {
                let command = row.host().and_then(|host| host.command.as_ref());
                // Without the directory of the program.
                let short = command.map(|command| {
                    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
                    let program = program.rsplit('/').next().unwrap_or(program);
                    words(format!("{program} {rest}").trim_end())
                });
                format!("{indent}{}", short.unwrap_or_else(|| name.clone()))
            }
            What::Group(group) => {
                let fold = if row.is_folded { '+' } else { '-' };
                let lease = group.lease.as_ref().map_or_else(String::new, lease);
                format!("{indent}{fold} {name}/{lease}")
            }
        };
        Value::Named(name, shown)
    })
    .top("NAME", 0, Ascending),
];

/// Describes a process that is waited for.
pub(super) fn awaited(wait: &Wait) -> String {
    let (pid, comm, what) = (wait.pid, word(&wait.comm), word(&wait.r#for));
    format!("{pid}/{comm}/{what}/{}", time_left(wait.usec / 1_000_000))
}

/// Returns a command line in printable characters.
fn words(command: &str) -> String {
    let words: Vec<String> = command.split(' ').map(|part| word(part).to_string()).collect();
    words.join(" ")
}

/// Describes the rest of a lease.
fn lease(lease: &Lease) -> String {
    let action = &lease.action;
    match lease.expired {
        true => format!("  lease expired ({action})"),
        false => format!("  lease {} ({action})", time_left(lease.seconds)),
    }
}

/// Formats a limit; `None` is max.
pub(super) fn limit(bytes: Option<u64>) -> String {
    Value::limit(bytes).to_string()
}

fn tenths(percent: f64) -> Value {
    let shown = format!("{percent:.1}").replace('.', "");
    shown.parse().map_or(Value::Absent, Value::Tenths)
}

fn percent(percent: Option<f64>) -> Value {
    let shown = percent.map(|percent| format!("{percent:.2}").replace('.', ""));
    let hundredths = shown.and_then(|shown| shown.parse().ok());
    hundredths.map_or(Value::Absent, Value::Percent)
}

impl Column {
    /// Returns the title in `ls`.
    pub(super) fn title(&self) -> String {
        self.name.to_uppercase()
    }

    /// Returns whether the column shows what the kernel tells of a process.
    pub(super) fn is_of_host(&self) -> bool {
        OF_HOST.contains(&self.name)
    }

    /// Returns whether the column needs two snapshots.
    pub(super) fn needs_rates(&self) -> bool {
        RATES.contains(&self.name)
    }
}

impl Top {
    /// Returns the cell of a row, as wide as the column.
    pub(super) fn cell(self, column: &Column, row: &Row, is_ascii: bool) -> String {
        let text = match (column.value)(row) {
            Value::Absent => String::new(),
            Value::History(points) => sparkline(&points, HISTORY, is_ascii),
            value => value.to_string(),
        };
        self.fit(&text, column.is_number)
    }

    /// Returns a text as wide as the column; a longer one is cut.
    pub(super) fn fit(self, text: &str, is_number: bool) -> String {
        let width = self.width;
        match (width, is_number) {
            (0, _) => text.to_owned(),
            (_, true) => format!("{:>width$}", text.chars().take(width).collect::<String>()),
            (_, false) => format!("{:<width$}", text.chars().take(width).collect::<String>()),
        }
    }
}

/// Returns the columns of `top` that a screen of this width has room for.
pub(super) fn on_screen(width: usize) -> impl Iterator<Item = (&'static Column, Top)> {
    let top = COLUMNS.iter().filter_map(|column| Some((column, column.top?)));
    top.filter(move |(_, top)| top.least_screen <= width)
}

/// Returns the columns of `ls` of these names.
pub(super) fn named(names: &[&str]) -> Vec<&'static Column> {
    names.iter().filter_map(|name| column(name).ok()).collect()
}

/// Parses the name of a column of `ls`.
///
/// # Errors
/// The text says which there are.
pub(super) fn column(name: &str) -> Result<&'static Column, String> {
    find(COLUMNS.iter().filter(|column| !column.help.is_empty()), name)
}

/// Returns the names of the columns of `ls`.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let columns = COLUMNS.iter().filter(|column| !column.help.is_empty());
    columns.map(|column| column.name)
}

fn find(
    columns: impl Iterator<Item = &'static Column> + Clone,
    name: &str,
) -> Result<&'static Column, String> {
    columns.clone().find(|column| column.name == name).ok_or_else(|| {
        let names: Vec<&str> = columns.map(|column| column.name).collect();
        format!("columns are {}", names.join(", "))
    })
}

/// Column by which the rows are sorted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    pub(super) column: &'static Column,
    pub(super) is_descending: bool,
    /// Whether the sorted rows are in reverse, those that are equal too.
    pub(super) is_flipped: bool,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            column: &COLUMNS[0],
            is_descending: false,
            is_flipped: false,
        }
    }
}

impl Order {
    /// Parses a column of `ls` by which to sort, with `-` before it for the reverse order.
    ///
    /// # Errors
    /// The text says which columns there are.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix('-');
        Ok(Self {
            column: column(name.unwrap_or(text))?,
            is_descending: name.is_some(),
            is_flipped: false,
        })
    }

    /// Returns the order of `top` by the column of this name.
    ///
    /// # Errors
    /// The text says which there are.
    pub(super) fn of_top(name: &str) -> Result<Self, String> {
        find(sortable(), name).map(Self::of)
    }

    fn of(column: &'static Column) -> Self {
        Self {
            column,
            is_descending: column.top.is_some_and(|top| top.order == Descending),
            is_flipped: false,
        }
    }

    /// Returns the order of `top` by the next column.
    pub(super) fn next(self) -> Self {
        let at = sortable().position(|column| column.name == self.column.name);
        let next = sortable().cycle().nth(at.unwrap_or(0) + 1);
        Self {
            is_flipped: self.is_flipped,
            ..next.map_or(self, Self::of)
        }
    }

    pub(super) fn sort(self, rows: &mut [Row]) {
        let value = self.column.value;
        rows.sort_by(|one, other| match self.is_descending {
            true => value(other).cmp(&value(one)),
            false => value(one).cmp(&value(other)),
        });
        if self.is_flipped {
            rows.reverse();
        }
    }
}

fn sortable() -> impl Iterator<Item = &'static Column> + Clone {
    let is_sortable = |column: &&Column| column.top.is_some_and(|top| top.order != Unsorted);
    COLUMNS.iter().filter(is_sortable)
}

/// Returns the description of the columns of `ls`.
pub(super) fn help() -> String {
    let shown = COLUMNS.iter().filter(|column| !column.help.is_empty());
    let lines = shown.map(|column| format!("  {:<13} {}", column.name, column.help));
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

    #[test]
    fn columns_leave_room_for_names_at_80_columns() {
        let fixed: usize = on_screen(80).map(|(_, top)| top.width + 1).sum();
        assert!(fixed <= 64, "{fixed}");
    }

    #[test]
    fn order_goes_round_all_columns() {
        let start = Order::default();
        let mut order = start.next();
        let mut nr_columns = 1;
        while order.column.name != start.column.name {
            order = order.next();
            nr_columns += 1;
        }
        assert_eq!(nr_columns, sortable().count());
        assert!(Order::of_top("gpu").is_err());
    }
}
