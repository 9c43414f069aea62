//! `gcgroupfs record`: keeps what GPUs and processes used in the last days, in a file of constant size.

mod entry;
mod ring;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use clap::Args;
use gcgroupfs_model::text::parse_bytes;
use serde::Deserialize;

use self::entry::{Entry, Gpu, Process};
use self::ring::Ring;
use super::client::Client;

/// Pause between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// Seconds after which a process that has not changed is recorded again.
const REPEAT: u64 = 60;

/// Maximum number of processes that are recorded in one sample.
const MAX_PROCESSES: usize = 4096;

/// Control files of processes that are recorded.
const FILES: [&str; 4] = [
    "memory.current",
    "memory.stat",
    "compute.priority",
    "gcgroup.events",
];

#[derive(Debug, Args)]
#[command(after_help = "\
Each second the GPUs are recorded, and the processes that have changed; the others once a minute. When the file is full, \
the oldest records are overwritten: 256 MiB hold three days of 8 GPUs and a process on each. The file survives kill -9 \
of the recorder and is continued by the next one. Lines of --show begin with the time, in seconds since 1970.")]
pub(super) struct Arguments {
    /// File with the records
    file: PathBuf,
    /// Size of a new file, as 256M
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Print the records instead, the oldest first
    #[arg(long)]
    show: bool,
    /// Print only records of the last SECONDS
    #[arg(long, value_name = "SECONDS", requires = "show")]
    last: Option<u64>,
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    let fits = (ring::SMALLEST..=ring::LARGEST).contains(&bytes);
    fits.then_some(bytes).ok_or_else(|| "4K to 64G".to_owned())
}

/// Records until the process is ended, or prints the records.
///
/// # Errors
/// The file cannot be used.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.show {
        let since = arguments.last.map_or(0, |last| now().saturating_sub(last));
        return show(&arguments.file, since);
    }
    let mut ring = Ring::open(&arguments.file, arguments.size)?;
    eprintln!("gcgroupfs: recording in {}", arguments.file.display());
    let mut recorder = Recorder::default();
    loop {
        // Without a daemon there is nothing to record; it may come back.
        match recorder.sample(socket) {
            Ok(entries) => entries.iter().try_for_each(|entry| ring.append(entry))?,
            Err(error) => recorder.complain(&error),
        }
        thread::sleep(PERIOD);
    }
}

fn show(file: &Path, since: u64) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut print = || {
        for entry in ring::entries(file)?.iter().filter(|entry| entry.time() >= since) {
            writeln!(out, "{entry}")?;
        }
        out.flush()
    };
    match print() {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| anyhow::anyhow!("{}: {error}", file.display())),
    }
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

/// Line of the daemon's list.
#[derive(Debug, Deserialize)]
struct Line {
    pid: String,
    device: Option<String>,
    uid: u32,
    comm: String,
    files: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Recorder {
    client: Option<Client>,
    /// Last record of each process, by pid.
    last: BTreeMap<u32, Process>,
    has_complained: bool,
}

impl Recorder {
    /// Reads the daemon's state and returns what is to be recorded.
    fn sample(&mut self, socket: &Path) -> anyhow::Result<Vec<Entry>> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(socket)?,
        };
        let time = now();
        let stats = client.get("devices.stat")?;
        let mut entries: Vec<Entry> = String::from_utf8_lossy(&stats)
            .lines()
            .filter_map(|line| Gpu::parse(time, line).map(Entry::Gpu))
            .collect();
        let text = client.list(&FILES)?;
        let lines = text.split(|byte| *byte == b'\n');
        let lines = lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok());
        let whole = lines.filter(|line| line.device.is_none()).take(MAX_PROCESSES);
        let processes: Vec<Process> = whole.filter_map(|line| process(time, &line)).collect();
        entries.extend(self.changed(time, processes).into_iter().map(Entry::Process));
        self.client = Some(client);
        self.has_complained = false;
        Ok(entries)
    }

    /// Returns those that have changed, are due, or have left since the last call.
    fn changed(&mut self, time: u64, processes: Vec<Process>) -> Vec<Process> {
        let mut before = std::mem::take(&mut self.last);
        let mut changed = Vec::new();
        for process in processes {
            let last = before.remove(&process.pid);
            let is_old = |last: &Process| last.same(&process) && time.abs_diff(last.time) < REPEAT;
            let kept = match last.filter(is_old) {
                Some(last) => last,
                None => {
                    changed.push(process.clone());
                    process
                }
            };
            self.last.insert(kept.pid, kept);
        }
        changed.extend(before.into_values().map(|left| left.left(time)));
        changed
    }

    /// Prints the first of several errors in a row.
    fn complain(&mut self, error: &anyhow::Error) {
        if !std::mem::replace(&mut self.has_complained, true) {
            eprintln!("gcgroupfs: {error:#}; waiting");
        }
    }
}

fn process(time: u64, line: &Line) -> Option<Process> {
    let number = |name: &str| line.files.get(name)?.trim_end().parse().ok();
    let key = |file: &str, key: &str| {
        let text = line.files.get(file)?;
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
    };
    Some(Process {
        time,
        pid: line.pid.parse().ok()?,
        uid: line.uid,
        comm: line.comm.clone(),
        memory: number("memory.current")?,
        swapped: key("memory.stat", "swapped").unwrap_or(0),
        priority: number("compute.priority").and_then(|priority| u8::try_from(priority).ok()),
        is_frozen: key("gcgroup.events", "frozen") == Some(1),
        has_left: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, time: u64, memory: u64) -> Process {
        Process {
            time,
            pid,
            uid: 0,
            comm: "a".to_owned(),
            memory,
            swapped: 0,
            priority: Some(8),
            is_frozen: false,
            has_left: false,
        }
    }

    #[test]
    fn unchanged_processes_are_recorded_once_a_minute() {
        let mut recorder = Recorder::default();
        let mut nr = |time, memory| recorder.changed(time, vec![process(1, time, memory)]).len();
        assert_eq!(
            [nr(0, 5), nr(1, 5), nr(2, 6), nr(3, 6), nr(61, 6), nr(62, 6)],
            [1, 0, 1, 0, 0, 1]
        );
    }

    #[test]
    fn end_of_a_process_is_recorded() {
        let mut recorder = Recorder::default();
        recorder.changed(0, vec![process(1, 0, 5), process(2, 0, 7)]);
        let changed = recorder.changed(1, vec![process(2, 1, 7)]);
        assert_eq!(changed, [process(1, 1, 5).left(1)]);
        assert_eq!(recorder.changed(2, vec![process(2, 2, 7)]), []);
    }
}
