//! The table of columns; a new column is a row here.

use std::time::Duration;

use super::TopOrder::{self, Ascending, Descending, Unsorted};
use super::value::{HISTORY, Value, awaited, lease, moved, percent, tenths, words};
use super::{Column, Top};
use crate::cli::row::{Row, What};
use gcgroupfs_model::text::word;

/// Files that only these columns are computed from; all other files are read in any case.
pub(super) const OF_COLUMNS: &[(&str, &[&str])] = &[
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

/// Columns of what the kernel tells of a process.
pub(super) const OF_HOST: &[&str] = &["command", "age", "cpu", "host_memory"];

/// Columns that need two snapshots.
pub(super) const RATES: &[&str] = &["state", "usage", "held", "moving"];

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
    /// Shows the column in `top` too: title, width, rank, and order.
    const fn top(self, title: &'static str, width: usize, rank: u8, order: TopOrder) -> Self {
        let top = Some(Top {
            title,
            width,
            rank,
            order,
        });
        Self { top, ..self }
    }
}

pub(super) const COLUMNS: &[Column] = &[
    number("pid", "process id; - for a group", |row| match row.what() {
        What::Process(process) => Value::number(process.pid),
        What::Group(_) => Value::Absent,
    })
    .top("PID", 7, 1, Ascending),
    text("user", "the process's user, or the group's owner", |row| {
        Value::text(row.user())
    })
    .top("USER", 8, 9, Ascending),
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
    .top("HOST", 6, 10, Descending),
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
    .top("GPU", 4, 5, Unsorted),
    number("memory", "device memory charged now", |row| {
        Value::Bytes(row.usage().memory.current)
    })
    .top("MEM", 6, 3, Descending),
    number("peak", "most device memory so far", |row| {
        Value::Bytes(row.usage().memory.peak)
    }),
    number("swap", "memory that was moved to the host", |row| {
        Value::Bytes(row.usage().memory.swap.current)
    })
    .top("SWAP", 6, 7, Descending),
    number(
        "limit",
        "smallest memory limit that applies, of all groups above too",
        |row| Value::limit(row.usage().memory.effective_limit),
    )
    .top("LIMIT", 6, 6, Ascending),
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
    .top("GPU%", 5, 2, Descending),
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
    .top("PRI", 3, 4, Ascending),
    number(
        "share",
        "part of the GPU while all that have lately had work want it, percent",
        |row| match row.what() {
            What::Process(_) => Value::Number(row.usage().stat("share_percent")),
            What::Group(_) => Value::Absent,
        },
    )
    .top("SHARE", 5, 11, Descending),
    number("quota", "GPU time per period, microseconds", |row| {
        let quota = row.usage().compute.max.quota_usec;
        quota.map_or(Value::Max, Value::Number)
    }),
    text("state", "what it does, as in gcgroupfs top", |row| {
        Value::State(row.activity.state)
    })
    .top("STATE", 10, 2, Descending),
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
    text(
        "moving",
        "memory that moves to the host (out) or back (in), and its rate",
        |row| {
            let moving = row.activity.moving;
            moving.map_or(Value::Absent, |moving| Value::Text(moved(&moving)))
        },
    ),
    // The higher one of both.
    number("pressure", "", |row| {
        let stalls = [&row.whole().compute.pressure, &row.whole().memory.pressure];
        let some = stalls.into_iter().flatten().map(|pressure| pressure.some.avg10);
        tenths(some.fold(0.0, f64::max))
    })
    .top("PRES%", 5, 8, Descending),
    number("history", "", |row| {
        Value::History(row.activity.history.iter().copied().collect())
    })
    .top("GPU% HISTORY", HISTORY, 12, Unsorted),
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
    .top("NAME", 0, 0, Ascending),
];
