//! `gcgroupfs report`: what the processes that have ended have used.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::SystemTime;

use anyhow::Context;
use clap::{Args, ValueEnum};
use gcgroup_client::Client;
use gcgroupfs_model::text::word;
use gcgroupfs_model::tree::Exited;
use serde::Serialize;

use super::format::size;

#[derive(Debug, Args)]
#[command(after_help = "\
The daemon records each program that used CUDA when it ends, also if it ends while no daemon runs. The record is \
bounded: the oldest programs of a user are added up when there are too many. Command lines and groups of other \
users are shown to root only.

GPU time is the sum of usage_usec of compute.stat, and byte-seconds are those of the file exited. Energy is \
estimated: GPU time times the power of the whole GPU, sampled each second; - (null, or nothing in CSV) where the power \
is not known. The record is kept over a restart of the \
machine if the daemon's --state-dir is on a disk.")]
pub(super) struct Arguments {
    /// Only programs that ended within this time, as 90, 15m, 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = age)]
    since: Option<u64>,
    /// Subject of each row
    #[arg(long, value_name = "WHAT", default_value = "user")]
    by: By,
    /// Print JSON: exact numbers, and the total
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values: exact numbers
    #[arg(long)]
    csv: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    User,
    Group,
    Program,
    /// Nothing: one line for each process, with its command line
    Process,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Program => "program",
            Self::Process => "process",
        }
    }

    /// Returns how a row is named in a table.
    fn label(self, key: &str, row: &Exited) -> String {
        let identity = &row.identity;
        match self {
            Self::Process if row.others != 0 => format!("{} older ones of {}", row.others + 1, identity.uid),
            Self::Process if identity.args.is_empty() => format!("{} {}", identity.pid, identity.comm),
            Self::Process => format!("{} {}", identity.pid, identity.args),
            _ => key.to_owned(),
        }
    }

    /// Returns what the record with this number is added to.
    fn key(self, number: usize, of: &Exited) -> String {
        let identity = &of.identity;
        match self {
            Self::User => identity.uid.to_string(),
            Self::Group => format!("/{}", word(&of.group)),
            Self::Program => identity.comm.to_string(),
            // Each by itself, in the order of their ends.
            Self::Process => format!("{number:020}"),
        }
    }
}

/// Parses a time with an optional unit, as seconds.
pub(super) fn age(text: &str) -> Result<u64, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("w", 7 * 86_400)];
    let with_unit = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let (number, unit) = with_unit.unwrap_or((text, 1));
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<u64>().ok().filter(|_| is_number);
    let seconds = number.and_then(|number| number.checked_mul(unit));
    seconds.ok_or_else(|| "a number with s, m, h, d or w is expected".to_owned())
}

/// Returns the programs that have ended, the oldest first, all or those of the process with this pid.
///
/// # Errors
/// The daemon does not answer.
pub(super) fn ended(client: &mut Client, pid: Option<u32>) -> anyhow::Result<Vec<Exited>> {
    let text = client.ended(pid)??;
    let lines = text.lines().filter(|line| !line.is_empty());
    let records = lines.map(serde_json::from_str).collect::<Result<_, _>>();
    let mut records: Vec<Exited> = records.context("the daemon's answer is invalid")?;
    records.retain(|record| pid.is_none_or(|pid| record.identity.pid == pid));
    Ok(records)
}

/// Figure of a row: its name, that of its column in the table and its format there; and its value.
struct Figure {
    name: &'static str,
    title: &'static str,
    show: fn(u128) -> String,
    /// `None`: it is not known.
    value: fn(&Exited) -> Option<u128>,
}

const FIGURES: &[Figure] = &[
    Figure {
        name: "processes",
        title: "PROCESSES",
        show: |number| number.to_string(),
        value: |of| Some(u128::from(of.others) + 1),
    },
    Figure {
        name: "usage_nsec",
        title: "GPU-SECONDS",
        show: |nsec| format!("{}.{:03}", nsec / 1_000_000_000, nsec / 1_000_000 % 1000),
        value: |of| Some(of.sums.usage_nsec.into()),
    },
    Figure {
        name: "byte_seconds",
        title: "GIB-HOURS",
        show: |bytes| hundredths(bytes, 3600 << 30),
        value: |of| Some(of.byte_seconds),
    },
    Figure {
        name: "peak",
        title: "PEAK",
        show: |bytes| size(u64::try_from(bytes).unwrap_or(u64::MAX)),
        value: |of| Some(of.peak.into()),
    },
    Figure {
        name: "energy_nanojoules_estimated",
        title: "WH(EST.)",
        show: |nanojoules| hundredths(nanojoules, 3600 * 1_000_000_000),
        // GPU time takes energy, unless NVML does not tell the GPU's power.
        value: |of| match (of.energy_nanojoules, of.sums.usage_nsec) {
            (0, 1..) => None,
            (nanojoules, _) => Some(nanojoules.into()),
        },
    },
    Figure {
        name: "waited_usec",
        title: "WAITED",
        show: |usec| format!("{}.{:03}", usec / 1_000_000, usec / 1000 % 1000),
        value: |of| {
            let waits = [of.sums.throttled_usec, of.sums.frozen_usec, of.memory_wait_usec];
            Some(waits.map(u128::from).iter().sum())
        },
    },
    Figure {
        name: "refused",
        title: "REFUSED",
        show: |number| number.to_string(),
        value: |of| Some(of.sums.nr_alloc_fail.into()),
    },
];

fn hundredths(value: u128, unit: u128) -> String {
    let value = value.saturating_mul(100) / unit;
    format!("{}.{:02}", value / 100, value % 100)
}

/// The report as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    by: &'static str,
    rows: Vec<Row<'a>>,
    total: Row<'a>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    name: String,
    #[serde(flatten)]
    figures: BTreeMap<&'static str, Option<u128>>,
    /// GPU time by UUID of the GPU.
    gpu_nsec: BTreeMap<String, u64>,
    /// Record of a single process.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<&'a Exited>,
}

impl Row<'_> {
    /// Returns the row of what is added up; all 0 if that is nothing.
    fn of(sum: Option<&Exited>) -> Self {
        let value = |figure: &Figure| sum.map_or(Some(0), figure.value);
        Self {
            name: "total".to_owned(),
            figures: FIGURES
                .iter()
                .map(|figure| (figure.name, value(figure)))
                .collect(),
            gpu_nsec: sum.map_or_else(BTreeMap::new, |sum| sum.gpus.clone()),
            record: None,
        }
    }
}

/// Returns the report.
///
/// # Errors
/// The daemon does not answer.
pub(super) fn report(client: &mut Client, arguments: &Arguments) -> anyhow::Result<String> {
    let since = arguments.since.map_or(0, |age| now().saturating_sub(age));
    text(&ended(client, None)?, since, arguments)
}

fn text(records: &[Exited], since: u64, arguments: &Arguments) -> anyhow::Result<String> {
    let (mut total, mut rows) = (None, BTreeMap::new());
    let records = records.iter().filter(|record| record.end >= since);
    for (number, record) in records.enumerate() {
        add(&mut total, record);
        add(rows.entry(arguments.by.key(number, record)).or_default(), record);
    }
    let mut rows: Vec<(String, Exited)> = rows
        .into_iter()
        .filter_map(|(key, row)| Some((key, row?)))
        .collect();
    if arguments.by != By::Process {
        rows.sort_by_key(|(_, row)| Reverse(row.sums.usage_nsec));
    }
    if arguments.json {
        let report = Report {
            by: arguments.by.name(),
            rows: rows
                .iter()
                .map(|(key, row)| {
                    let record = Some(row).filter(|_| arguments.by == By::Process);
                    Row {
                        name: arguments.by.label(key, row),
                        record,
                        ..Row::of(Some(row))
                    }
                })
                .collect(),
            total: Row::of(total.as_ref()),
        };
        return Ok(serde_json::to_string_pretty(&report)? + "\n");
    }
    let titles = FIGURES.iter().map(|figure| match arguments.csv {
        true => figure.name.to_owned(),
        false => figure.title.to_owned(),
    });
    let name = arguments.by.name();
    let mut lines = vec![(
        titles.collect(),
        if arguments.csv {
            name.to_owned()
        } else {
            name.to_uppercase()
        },
    )];
    lines.extend(rows.iter().map(|(key, row)| {
        let cells = FIGURES
            .iter()
            .map(|figure| match ((figure.value)(row), arguments.csv) {
                (Some(number), true) => number.to_string(),
                (Some(number), false) => (figure.show)(number),
                (None, true) => String::new(),
                (None, false) => "-".to_owned(),
            });
        (cells.collect(), arguments.by.label(key, row))
    }));
    Ok(if arguments.csv { csv(&lines) } else { table(&lines) })
}

/// Cells of a line, and its label.
type Cells = (Vec<String>, String);

fn csv(lines: &[Cells]) -> String {
    let line = |(cells, label): &Cells| format!("{},\"{}\"\n", cells.join(","), label.replace('"', "\"\""));
    lines.iter().map(line).collect()
}

fn table(lines: &[Cells]) -> String {
    let width = |at: usize| lines.iter().map(|(cells, _)| cells[at].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..FIGURES.len()).map(width).collect();
    let line = |(cells, label): &Cells| {
        let cells = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:>width$}  "));
        format!("{}{label}\n", cells.collect::<String>())
    };
    lines.iter().map(line).collect()
}

fn add(sum: &mut Option<Exited>, record: &Exited) {
    match sum {
        Some(sum) => sum.add(record),
        None => *sum = Some(record.clone()),
    }
}

/// Returns the seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, seconds) in [
            ("90", Some(90)),
            ("15m", Some(900)),
            ("12h", Some(43_200)),
            ("7d", Some(604_800)),
        ] {
            assert_eq!(age(text).ok(), seconds, "{text}");
        }
        for text in ["", "d", "-1d", "1y", "1.5h", "18446744073709551615w"] {
            assert!(age(text).is_err(), "{text}");
        }
    }

    #[test]
    fn energy_without_known_power_is_unknown() {
        let show = |energy_nanojoules: u64, usage_nsec: u64| {
            let mut of = Exited {
                energy_nanojoules,
                ..Exited::default()
            };
            of.sums.usage_nsec = usage_nsec;
            [(false, false), (true, false), (false, true)].map(|(json, csv)| {
                let arguments = Arguments {
                    since: None,
                    by: By::User,
                    json,
                    csv,
                };
                text(&[of.clone()], 0, &arguments).unwrap()
            })
        };
        let [table, json, csv] = show(0, 5_000_000_000);
        let row = table.lines().nth(1).unwrap().split_whitespace().nth(4);
        assert_eq!(row, Some("-"), "{table}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(json["total"]["energy_nanojoules_estimated"].is_null(), "{json}");
        assert!(
            csv.lines().nth(1).unwrap().starts_with("1,5000000000,0,0,,0,0,"),
            "{csv}"
        );
        for (energy, usage) in [(0, 0), (7, 5)] {
            let [table, json, _] = show(energy, usage);
            let row = table.lines().nth(1).unwrap().split_whitespace().nth(4);
            assert_eq!(row, Some("0.00"), "{table}");
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json["total"]["energy_nanojoules_estimated"], energy);
        }
    }

    #[test]
    fn label_of_another_program_does_not_end_a_field_or_line() {
        let lines = [(vec!["1".to_owned()], "a\",b".to_owned())];
        assert_eq!(csv(&lines), "1,\"a\"\",b\"\n");
    }
}
