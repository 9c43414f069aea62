//! `gcgroupfs ls`: a table of groups and governed processes, or all that is known of them as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::iter::repeat_n;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::bail;
use clap::Args;

use super::columns::{self, Column, Order, TABLE, TREE};
use super::row::Row;
use super::rows::{Selection, Shape};
use crate::cli::format::{duration, is_dumb};
use gcgroup_client::node::{Activities, Reader, Snapshot, ancestors};

#[derive(Debug, Args)]
#[command(after_help = columns::help())]
pub(super) struct Arguments {
    /// Print everything, as JSON (gcgroupfs/doc/ls.schema.json)
    #[arg(long, conflicts_with_all = ["tree", "sort", "format"])]
    json: bool,
    /// Show each group with its processes and groups below it
    #[arg(long)]
    tree: bool,
    /// Sort by a column; -COLUMN: highest first
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true, value_parser = Order::parse)]
    sort: Option<Order>,
    /// Show this user's processes and groups only, by name or number
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Show this GPU only, by index or UUID
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Show these columns, as pid,memory,limit
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', value_parser = columns::column)]
    format: Option<Vec<&'static Column>>,
    /// Repeat every so many seconds, 2 by default
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = duration)]
    watch: Option<Duration>,
}

/// Time between the two snapshots that rates need.
const RATES: Duration = Duration::from_millis(200);

/// Moves the cursor of a terminal to the first cell and erases the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints the groups and processes, once or until the output is closed.
///
/// # Errors
/// The daemon does not answer, there is no such GPU, or the output cannot be written.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let mut reader = Reader::new(socket);
    let mut out = io::stdout().lock();
    let is_terminal = out.is_terminal() && !is_dumb();
    let mut activities = Activities::default();
    if !arguments.json {
        reader.only(columns::files(&arguments.columns()));
    }
    if arguments.json || arguments.columns().iter().any(|column| column.is_of_host()) {
        reader.with_host();
    }
    let needs_rates = arguments.json || arguments.columns().iter().any(|column| column.needs_rates());
    if needs_rates {
        activities.update(&reader.read()?);
        std::thread::sleep(RATES);
    }
    loop {
        let mut snapshot = reader.read()?;
        if needs_rates {
            activities.update(&snapshot);
        }
        if arguments.json {
            activities.rate(&mut snapshot);
        }
        arguments.filter(&mut snapshot)?;
        let mut text = arguments.show(snapshot, &activities)?;
        if arguments.watch.is_some() && !arguments.json {
            text = if is_terminal {
                CLEAR.to_owned() + &text
            } else {
                text + "\n"
            };
        }
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        let Some(pause) = arguments.watch else {
            return Ok(());
        };
        std::thread::sleep(pause);
    }
}

impl Arguments {
    /// Leaves out what is not asked for. Groups stay in which a process stays.
    fn filter(&self, snapshot: &mut Snapshot) -> anyhow::Result<()> {
        if let Some(gpu) = &self.gpu {
            let mut devices = snapshot.devices.iter();
            let found = devices.find(|device| device.index.to_string() == *gpu || device.uuid == *gpu);
            let Some(index) = found.map(|device| device.index) else {
                bail!("there is no GPU {gpu:?}");
            };
            snapshot.devices.retain(|device| device.index == index);
            for group in &mut snapshot.groups {
                group.devices.retain(|on| on.index == index);
            }
            for process in &mut snapshot.processes {
                process.devices.retain(|on| on.index == index);
            }
            snapshot.groups.retain(|group| !group.devices.is_empty());
            snapshot.processes.retain(|process| !process.devices.is_empty());
        }
        if let Some(wanted) = &self.user {
            let is = |uid: u32, user: &str| user == wanted || uid.to_string() == *wanted;
            snapshot
                .processes
                .retain(|process| is(process.uid, &process.user));
            let groups = snapshot
                .processes
                .iter()
                .filter_map(|process| process.group.as_deref());
            let inhabited: BTreeSet<&str> = groups.flat_map(ancestors).collect();
            snapshot
                .groups
                .retain(|group| is(group.uid, &group.user) || inhabited.contains(group.path.as_str()));
        }
        Ok(())
    }

    /// Returns the columns of the table, and those that it is sorted by.
    fn columns(&self) -> Vec<&'static Column> {
        let sorted = self.sort.map(|order| order.column);
        self.shown().into_iter().chain(sorted).collect()
    }

    fn shown(&self) -> Vec<&'static Column> {
        match &self.format {
            Some(columns) => columns.clone(),
            None => columns::named(if self.tree { TREE } else { TABLE }),
        }
    }

    fn show(&self, snapshot: Snapshot, activities: &Activities) -> anyhow::Result<String> {
        if self.json {
            let json = match self.watch {
                None => serde_json::to_string_pretty(&snapshot)?,
                Some(_) => serde_json::to_string(&snapshot)?,
            };
            return Ok(ascii(&json) + "\n");
        }
        let selection = Selection {
            order: self.sort,
            shape: if self.tree { Shape::Tree } else { Shape::Table },
            is_per_device: true,
            filter: String::new(),
            folded: BTreeSet::new(),
        };
        let rows = selection.rows(&Rc::new(snapshot), activities);
        Ok(table(&rows, &self.shown()))
    }
}

/// Returns JSON with all other than printable ASCII characters escaped. Such characters occur only in
/// strings; they are names that others chose, and must not control a terminal.
fn ascii(json: &str) -> String {
    json.chars()
        .fold(String::with_capacity(json.len()), |mut out, c| {
            if c == '\n' || (c.is_ascii() && !c.is_ascii_control()) {
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

/// Returns the lines of a table. The cells lie in one text, since there are many.
fn table(rows: &[Row], columns: &[&Column]) -> String {
    let mut cells: String = columns.iter().map(|column| column.title()).collect();
    let mut lengths: Vec<usize> = columns.iter().map(|column| column.title().len()).collect();
    for (row, column) in rows
        .iter()
        .flat_map(|row| columns.iter().map(move |column| (row, column)))
    {
        let begin = cells.len();
        // Writing to a String cannot fail.
        let _ = write!(cells, "{}", (column.value)(row));
        lengths.push(cells.len() - begin);
    }
    // The characters are ASCII.
    let width = |at| lengths.iter().skip(at).step_by(columns.len()).max().copied();
    let widths: Vec<usize> = (0..columns.len()).filter_map(width).collect();
    let mut out = String::new();
    let mut rest = cells.as_str();
    for line in lengths.chunks(columns.len().max(1)) {
        let begin = out.len();
        for ((length, width), column) in line.iter().zip(&widths).zip(columns) {
            let (cell, after) = rest.split_at(*length);
            let blanks = width - length;
            let [left, right] = if column.is_number {
                [blanks, 2]
            } else {
                [0, blanks + 2]
            };
            out.extend(repeat_n(' ', left));
            out.push_str(cell);
            out.extend(repeat_n(' ', right));
            rest = after;
        }
        out.truncate(begin + out.get(begin..).unwrap_or_default().trim_end().len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_client::node::fixture::snapshot;
    use gcgroup_client::node::{FILES, Files, Lease, Usage};

    fn arguments(words: &[&str]) -> Arguments {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            arguments: Arguments,
        }
        let words = [&["ls"], words].concat();
        <Line as clap::Parser>::parse_from(words).arguments
    }

    fn shown(words: &[&str]) -> String {
        let (arguments, mut snapshot) = (arguments(words), snapshot());
        arguments.filter(&mut snapshot).unwrap();
        arguments.show(snapshot, &Activities::default()).unwrap()
    }

    #[test]
    fn table_has_row_per_used_device_and_per_group() {
        assert_eq!(
            shown(&[]),
            "PID  USER     COMM   GROUP  GPU  MEMORY  LIMIT  PRIORITY  FROZEN  SUSPENDED  KERNELS\n\
             101  4000001  train  /        -       0    max         8  no      no               7\n  \
               -  1        -      /a       -       0     4K         8  no      no               7\n  \
               -  4000000  -      /a/b     -       0     4K         8  no      no               7\n  \
               7  4000000  train  /a/b     0      1K     2K         8  no      no               7\n  \
               7  4000000  train  /a/b     1      3K     2K         8  no      no               7\n\
             100  4000001  train  /a/b     1      2K     2K         8  no      no               7\n  \
               -  4000000  -      /c       -       0     4K         8  no      no               7\n"
        );
    }

    #[test]
    fn tree_sorts_siblings() {
        assert_eq!(
            shown(&["--tree", "--sort", "-memory", "--format=name,gpu,memory"]),
            "NAME           GPU  MEMORY\n\
             101 train        -       0\n\
             a/               -       0\n  \
               b/             -       0\n    \
                 7 train      1      3K\n    \
                 100 train    1      2K\n    \
                 7 train      0      1K\n\
             c/               -       0\n"
        );
    }

    #[test]
    fn filters_keep_groups_of_what_is_shown() {
        let pids = |words: &[&str]| {
            let text = shown(&[words, &["--format=pid,group,gpu"]].concat());
            let lines = text
                .lines()
                .skip(1)
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            lines.collect::<Vec<_>>()
        };
        assert_eq!(pids(&["--gpu", "0"]), ["7 /a/b 0"]);
        assert_eq!(pids(&["--gpu", "GPU-1"]), ["7 /a/b 1", "100 /a/b 1"]);
        assert_eq!(
            pids(&["--user", "4000001"]),
            ["101 / -", "- /a -", "- /a/b -", "100 /a/b 1"]
        );
        assert_eq!(pids(&["--user", "4000000", "--gpu", "0"]), ["7 /a/b 0"]);
        assert!(arguments(&["--gpu", "2"]).filter(&mut snapshot()).is_err());
    }

    #[test]
    fn sort_compares_numbers_and_puts_max_last() {
        let column = |key: &str, words: &[&str]| {
            let format = format!("--format={key}");
            let text = shown(&[words, &[&format]].concat());
            text.lines()
                .skip(1)
                .map(|line| line.trim().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            column("pid", &["--sort", "pid"]),
            ["-", "-", "-", "7", "7", "100", "101"]
        );
        let limits = column("limit", &["--sort=limit"]);
        assert_eq!((limits[0].as_str(), limits[6].as_str()), ("2K", "max"));
    }

    #[test]
    fn requested_freeze_shows_as_soon_until_complete() {
        let mut snapshot = snapshot();
        let arguments = arguments(&["--format=pid,frozen"]);
        snapshot.groups[0].usage.compute.freeze = true;
        snapshot.processes[1].usage.events.frozen = true;
        snapshot.processes[1].devices[0].usage.events.frozen = true;
        let text = arguments.show(snapshot, &Activities::default()).unwrap();
        assert!(
            text.contains("  7  soon\n") && text.contains("100  yes\n"),
            "{text}"
        );
        assert!(text.contains("101  no\n"), "{text}");
    }

    #[test]
    fn suspension_of_a_group_shows_for_its_processes() {
        let mut snapshot = snapshot();
        let arguments = arguments(&["--format=pid,suspended,high"]);
        snapshot.groups[0].usage.suspend = Some(true);
        snapshot.processes[0].usage.events.suspend_error = Some("check".into());
        snapshot.processes[1].usage.events.suspended = true;
        snapshot.processes[1].devices[0].usage.memory.high = Some(1024);
        let text = arguments.show(snapshot, &Activities::default()).unwrap();
        for line in [
            "  7  failed      max\n",
            "100  yes          1K\n",
            "101  no          max\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(text.matches("  -  soon").count(), 2, "/a and /a/b: {text}");
    }

    /// Tests each column with the files that it is said to need, and with all files.
    #[test]
    fn columns_are_computed_from_their_files() {
        let shown = |column: &str, names: &[&str]| {
            let mut files = Files::default();
            for name in names {
                let text = match *name {
                    "memory.events" => "oom 3\n",
                    "compute.stat" => "nr_launches 4\nusage_usec 5\n",
                    "compute.pressure" | "memory.pressure" => {
                        "some avg10=7.00 total=8\nfull avg10=0.00 total=0\n"
                    }
                    "gcgroup.events" => "frozen 1\nsuspended 1\nlease_expired 0\n",
                    "gcgroup.lease.action" => "freeze\n",
                    "compute.max" => "11 100000\n",
                    "compute.freeze" | "gcgroup.suspend" => "1\n",
                    _ => "9\n",
                };
                files.insert(name, text);
            }
            let mut snapshot = snapshot();
            let group = &mut snapshot.groups[0];
            group.lease = Lease::of(&files);
            group.usage = Usage::of(files);
            let text = arguments(&["--tree", "--format", column]).show(snapshot, &Activities::default());
            text.unwrap()
        };
        let names = columns::column("?").unwrap_err().replace("columns are ", "");
        for name in names.split(", ") {
            let own = columns::files(&[columns::column(name).unwrap()]);
            assert!(own.len() < FILES.len());
            assert_eq!(shown(name, &own), shown(name, FILES), "{name}");
        }
    }

    #[test]
    fn files_of_the_snapshot_exist() {
        for file in FILES {
            let mut rows = gcgroupfs_model::files::all();
            assert!(rows.any(|row| row.name == *file), "{file}");
        }
    }

    #[test]
    fn foreign_names_are_escaped_in_table_and_json() {
        let mut snapshot = snapshot();
        let process = &mut snapshot.processes[0];
        process.comm = "\u{202e}0=1 \u{2028}\u{5d0}".into();
        process.group = Some("a\u{1b}[2J\u{9b}1m\tb".into());
        for words in [&[][..], &["--tree"]] {
            let text = arguments(words)
                .show(snapshot.clone(), &Activities::default())
                .unwrap();
            assert!(
                text.contains("\\342\\200\\2560\\0751\\040\\342\\200\\250\\327\\220  "),
                "{text}"
            );
            assert!(text.is_ascii() && !text.contains('\u{1b}'), "{text}");
        }
        let text = arguments(&[])
            .show(snapshot.clone(), &Activities::default())
            .unwrap();
        assert!(text.contains("  /a\\033[2J\\302\\2331m\\011b  "), "{text}");
        let json = arguments(&["--json"])
            .show(snapshot.clone(), &Activities::default())
            .unwrap();
        assert!(
            json.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')),
            "{json}"
        );
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["processes"][0]["comm"], snapshot.processes[0].comm);
        assert_eq!(ascii("\u{1f600}"), "\\ud83d\\ude00");
    }
}
