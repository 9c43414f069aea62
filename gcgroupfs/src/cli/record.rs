//! `gcgroupfs record`: keeps what GPUs, groups and processes used in the last days, in a file of constant
//! size.

mod frame;
mod ring;

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;
use gcgroupfs_model::text::{parse_bytes, word};

use self::ring::Ring;
use super::report::now;
use crate::message::complain;
use gcgroup_client::node::{Device, Process, Reader};

pub(super) use self::frame::Frame;
pub(super) use self::ring::Recording;

/// Pause between two samples.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "\
Each second everything that gcgroupfs top shows is recorded; gcgroupfs top --replay FILE shows it. When the file is \
full, the oldest records are overwritten: 256 MiB hold four days of 8 busy GPUs with a process on each. The file \
survives kill -9 of the recorder and is continued by the next one. --show prints the GPUs of each second, and the \
processes that have changed. Its lines begin with the time, in seconds since 1970.")]
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
    fits.then_some(bytes).ok_or_else(|| "64K to 64G".to_owned())
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
    complain!("gcgroupfs: recording in {}", arguments.file.display());
    let mut reader = Reader::new(socket);
    let mut has_complained = false;
    loop {
        match reader.read() {
            Ok(snapshot) => {
                ring.append(Frame::new(&snapshot)?)?;
                has_complained = false;
            }
            // Without a daemon there is nothing to record; it may come back.
            Err(error) if !has_complained => {
                complain!("gcgroupfs: {error:#}; waiting");
                has_complained = true;
            }
            Err(_) => {}
        }
        thread::sleep(PERIOD);
    }
}

fn show(file: &Path, since: u64) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut print = || -> io::Result<()> {
        let recording = Recording::open(file)?;
        let first = recording.block_of(since);
        for block in recording.blocks().filter(|block| Some(*block) >= first) {
            let mut lines = Lines::default();
            let mut written = Ok(());
            recording.for_each(block, |frame| {
                if written.is_ok() {
                    written = lines.print(frame, since, &mut out);
                }
            })?;
            written?;
        }
        out.flush()
    };
    match print() {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| anyhow::anyhow!("{}: {error}", file.display())),
    }
}

/// Printer of the frames of a block.
#[derive(Debug, Default)]
struct Lines(Option<Frame>);

impl Lines {
    /// Prints a frame, unless it is older than `since`.
    fn print(&mut self, frame: Frame, since: u64, out: &mut impl Write) -> io::Result<()> {
        let time = Duration::try_from_secs_f64(frame.time).map_or(0, |time| time.as_secs());
        if time >= since {
            for device in frame.devices() {
                writeln!(out, "{time} {}", gpu(&device))?;
            }
            for process in frame.changed_processes() {
                writeln!(out, "{time} {} ended=0", line(&process))?;
            }
            let ended = frame.ended_processes();
            let ended = ended.filter_map(|pid| self.0.as_ref()?.process(pid));
            for process in ended {
                writeln!(out, "{time} {} ended=1", line(&process))?;
            }
        }
        match &mut self.0 {
            Some(state) => state.apply(frame),
            first => *first = Some(frame),
        }
        Ok(())
    }
}

fn gpu(device: &Device) -> String {
    let known = |value: Option<u64>| value.map_or("unknown".to_owned(), |value| value.to_string());
    format!(
        "gpu={} memory_used={} memory_charged={} utilization={} temperature={} power_mw={}",
        device.index,
        known(device.memory.used),
        known(device.memory.charged),
        known(device.utilization),
        known(device.temperature),
        known(device.power_mw)
    )
}

fn line(process: &Process) -> impl Display {
    let usage = &process.usage;
    format!(
        "pid={} uid={} comm={} group=/{} memory.current={} memory.swap.current={} compute.priority={} frozen={}",
        process.pid,
        process.uid,
        word(&process.comm),
        word(process.group.as_deref().unwrap_or_default()),
        usage.memory.current,
        usage.memory.swap.current,
        usage.compute.priority,
        u8::from(usage.events.frozen)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_client::node::fixture;

    #[test]
    fn lines_tell_changes_and_ends() {
        let key = Frame::new(&fixture::snapshot()).unwrap();
        let mut snapshot = fixture::snapshot();
        snapshot.time = 7.9;
        snapshot.processes.retain(|process| process.pid != 7);
        snapshot.processes[0].usage.events.frozen = true;
        let change = Frame::new(&snapshot).unwrap().since(&key);
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        lines.print(key, 1, &mut out).unwrap();
        assert!(out.is_empty(), "older than the first");
        lines.print(change, 1, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with("7 gpu=1 memory_used=unknown "), "{text}");
        assert!(lines[2].starts_with("7 pid=100 ") && lines[2].ends_with(" frozen=1 ended=0"));
        assert!(lines[3].starts_with("7 pid=7 ") && lines[3].ends_with(" frozen=0 ended=1"));
        assert!(lines[3].contains(" group=/a/b memory.current=4096 "), "{text}");
    }
}
