//! `gcgroupfs ls`: a table of governed processes, made from control files.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::Args;
use gcgroup_abi::NO_LIMIT;
use serde::{Deserialize, Serialize};

use super::client::Client;
use gcgroupfs_model::text::word;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Print everything, as JSON
    #[arg(long)]
    json: bool,
}

/// Line of the daemon's answer: a process, or a process on one device.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Line {
    pid: String,
    device: Option<String>,
    uid: u32,
    comm: String,
    /// `None` if the client may not see it.
    #[serde(default)]
    group: Option<String>,
    files: BTreeMap<String, String>,
}

/// Row of the table: a process on a device, with the process as a whole.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    process: &'a Line,
    /// `None` for a process that has used no device.
    device: Option<&'a Line>,
}

struct Column {
    title: &'static str,
    is_number: bool,
    cell: fn(&Row<'_>) -> String,
}

/// Columns of the table; a new column is a row here.
const COLUMNS: &[Column] = &[
    Column {
        title: "PID",
        is_number: true,
        cell: |row| row.process.pid.clone(),
    },
    Column {
        title: "USER",
        is_number: false,
        cell: |row| user(row.process.uid),
    },
    Column {
        title: "COMM",
        is_number: false,
        cell: |row| word(&row.process.comm).to_string(),
    },
    Column {
        title: "GROUP",
        is_number: false,
        cell: |row| {
            let group = row.process.group.as_ref();
            group.map_or_else(|| "-".to_owned(), |group| format!("/{}", word(group)))
        },
    },
    Column {
        title: "GPU",
        is_number: true,
        cell: |row| row.gpu(),
    },
    Column {
        title: "MEMORY",
        is_number: true,
        cell: |row| size(row.place().number("memory.current")),
    },
    Column {
        title: "LIMIT",
        is_number: true,
        cell: |row| row.limit(),
    },
    Column {
        title: "PRIORITY",
        is_number: true,
        cell: |row| row.place().text("compute.priority"),
    },
    Column {
        title: "FROZEN",
        is_number: false,
        cell: |row| row.frozen().to_owned(),
    },
    Column {
        title: "KERNELS",
        is_number: true,
        cell: |row| row.place().key("compute.stat", "nr_launches"),
    },
];

/// Control files that the columns need.
const FILES: &[&str] = &[
    "memory.current",
    "memory.limit",
    "compute.priority",
    "compute.freeze",
    "compute.stat",
    "gcgroup.events",
];

/// Returns the governed processes, as a table or as JSON.
///
/// # Errors
/// The daemon does not answer.
pub(super) fn list(client: &mut Client, &Arguments { json }: &Arguments) -> anyhow::Result<Vec<u8>> {
    let text = client.list(FILES)?;
    let lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(serde_json::from_slice)
        .collect::<Result<Vec<Line>, _>>()?;
    if json {
        return Ok(ascii(&(serde_json::to_string_pretty(&lines)? + "\n")).into_bytes());
    }
    Ok(table(&rows(&lines)).into_bytes())
}

/// Returns JSON with all other than printable ASCII characters escaped. Such characters occur only in
/// strings; they are names that others chose, and must not control a terminal.
fn ascii(json: &str) -> String {
    json.chars()
        .fold(String::with_capacity(json.len()), |mut out, c| {
            if c.is_ascii() && c != '\u{7f}' {
                out.push(c);
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            out
        })
}

/// Returns a row for each device that a process has used, or one row if it has used none.
fn rows(lines: &[Line]) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for process in lines.iter().filter(|line| line.device.is_none()) {
        let before = rows.len();
        let devices = lines
            .iter()
            .filter(|line| line.pid == process.pid && line.device.is_some());
        rows.extend(devices.filter(|d| d.is_used()).map(|device| Row {
            process,
            device: Some(device),
        }));
        if rows.len() == before {
            rows.push(Row {
                process,
                device: None,
            });
        }
    }
    rows
}

fn table(rows: &[Row<'_>]) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| COLUMNS.iter().map(|column| (column.cell)(row)).collect())
        .collect();
    let titles = COLUMNS.iter().map(|column| column.title.to_owned()).collect();
    let lines: Vec<Vec<String>> = [titles].into_iter().chain(cells).collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for (at, (cell, column)) in line.iter().zip(COLUMNS).enumerate() {
            let width = lines
                .iter()
                .filter_map(|line| line.get(at))
                .map(|c| c.chars().count())
                .max()
                .unwrap_or(0);
            // Writing to a String cannot fail.
            let _ = match column.is_number {
                true => write!(text, "{cell:>width$}  "),
                false => write!(text, "{cell:<width$}  "),
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

impl Line {
    fn text(&self, file: &str) -> String {
        self.files
            .get(file)
            .map_or_else(|| "-".to_owned(), |text| text.trim().to_owned())
    }

    fn number(&self, file: &str) -> u64 {
        self.text(file).parse().unwrap_or(NO_LIMIT)
    }

    /// Returns the value of a key in a flat keyed file; "-" without it.
    fn key(&self, file: &str, key: &str) -> String {
        let text = self.files.get(file).map_or("", String::as_str);
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        found.unwrap_or("-").to_owned()
    }

    fn is_used(&self) -> bool {
        self.number("memory.current") > 0 || self.key("compute.stat", "nr_launches") != "0"
    }
}

impl Row<'_> {
    fn place(&self) -> &Line {
        self.device.unwrap_or(self.process)
    }

    fn gpu(&self) -> String {
        self.device
            .and_then(|line| line.device.clone())
            .unwrap_or_else(|| "-".to_owned())
    }

    /// Returns the smaller of the process's limit and the device's.
    fn limit(&self) -> String {
        size(
            self.process
                .number("memory.limit")
                .min(self.place().number("memory.limit")),
        )
    }

    fn frozen(&self) -> &'static str {
        let asked = |line: &Line| line.text("compute.freeze") == "1";
        match (
            asked(self.process) || asked(self.place()),
            self.place().key("gcgroup.events", "frozen") == "1",
        ) {
            // Asked for the process itself, or for a group that it is in.
            (_, true) => "yes",
            (true, false) => "soon",
            (false, false) => "no",
        }
    }
}

/// Formats bytes in the largest unit in which the number is at least one.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    if bytes == NO_LIMIT {
        return "max".to_owned();
    }
    let unit = (bytes.max(1).ilog2() / 10).min(5) as usize;
    let shift = 10 * unit;
    match (unit, bytes & ((1_u64 << shift) - 1)) {
        (_, 0) => format!("{}{}", bytes >> shift, UNITS[unit]),
        // Tenths, truncated: never more than there is.
        (_, rest) => format!(
            "{}.{}{}",
            bytes >> shift,
            ((rest >> (shift - 10)) * 10) >> 10,
            UNITS[unit]
        ),
    }
}

fn user(uid: u32) -> String {
    match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(device: Option<&str>, files: &[(&str, &str)]) -> Line {
        Line {
            pid: "100".into(),
            device: device.map(str::to_owned),
            uid: 4_000_000,
            comm: "train".into(),
            group: Some("team/a".into()),
            files: files
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect(),
        }
    }

    #[test]
    fn size_is_short_and_truncated() {
        for (bytes, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1536, "1.5K"),
            (2047, "1.9K"),
            ((8 << 30) - 1, "7.9G"),
            (8 << 30, "8G"),
            (NO_LIMIT - 1, "16383.9P"),
            (NO_LIMIT, "max"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn rows_has_one_per_used_device_or_one_per_process() {
        let idle = [("memory.current", "0\n"), ("compute.stat", "nr_launches 0\n")];
        let busy = [
            ("memory.current", "1024\n"),
            ("compute.stat", "nr_launches 7\n"),
            ("memory.limit", "max\n"),
        ];
        let whole = [
            ("memory.limit", "2048\n"),
            ("compute.freeze", "1\n"),
            ("compute.priority", "8\n"),
        ];
        let lines = [line(None, &whole), line(Some("0"), &idle), line(Some("1"), &busy)];
        assert_eq!(
            table(&rows(&lines)),
            "PID  USER     COMM   GROUP    GPU  MEMORY  LIMIT  PRIORITY  FROZEN  KERNELS\n\
             100  4000000  train  /team/a    1      1K     2K         -  soon          7\n"
        );
        let rows = rows(&lines[..2]);
        assert_eq!(rows.len(), 1);
        assert!(rows[0].device.is_none());
    }

    #[test]
    fn foreign_names_are_escaped_in_table_and_json() {
        let lines = [Line {
            comm: "\u{202e}0=1 \u{2028}\u{5d0}".into(),
            group: Some("a\u{1b}[2J\u{9b}1m\tb".into()),
            ..line(None, &[])
        }];
        let shown = table(&rows(&lines));
        assert!(
            shown.contains("  \\342\\200\\2560\\0751\\040\\342\\200\\250\\327\\220  "),
            "{shown}"
        );
        assert!(shown.contains("  /a\\033[2J\\302\\2331m\\011b  "), "{shown}");
        let json = ascii(&serde_json::to_string(&lines).unwrap());
        assert!(json.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{json}");
        let read: Vec<Line> = serde_json::from_str(&json).unwrap();
        assert_eq!(read[0].comm, lines[0].comm);
        assert_eq!(ascii("\u{1f600}"), "\\ud83d\\ude00");
    }

    #[test]
    fn files_of_columns_exist() {
        for file in FILES {
            assert!(
                gcgroupfs_model::files::all().any(|row| row.name == *file),
                "{file}"
            );
        }
    }
}
