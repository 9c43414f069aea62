//! `gcgroupfs events`: shows what happens to processes and groups.

use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use gcgroup_client::Client;
use gcgroupfs_model::event::Event;
use gcgroupfs_sys::clock::local_time;

use super::paths::Named;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
#[command(after_help = "\
One line for each event, with its time: joined, left (with what the process used), refused, frozen, thawed, \
suspended, resumed, away (by gcgroup.idle), returned, swapped (allocations moved), set (a control file, by \
whom), made, removed, access, lease, killed (for whom), job-ended. The daemon keeps the last 4096 events; a user with many loses the oldest. Groups \
that the reader could not find on the mount, and what is written there, are not shown.

Exit status: 0 printed; 1 no daemon answers; 2 usage error.")]
pub(super) struct Arguments {
    /// Only events of this process, or of this group and those below
    #[arg(value_name = "PID|GROUP")]
    name: Option<String>,
    /// Go on with what happens from now on, also after a restart of the daemon
    #[arg(short, long)]
    follow: bool,
    /// Print each event as a line of JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn shows(&self, event: &Event) -> bool {
        let Some(name) = &self.name else { return true };
        let name = Named::new(name).path;
        let name = name.trim_matches('/');
        let group = event.group.as_deref().unwrap_or_default();
        let is_within = |rest: &str| rest.is_empty() || rest.starts_with('/');
        event.pid.is_some_and(|pid| pid.to_string() == name)
            || group.strip_prefix(name).is_some_and(is_within)
    }
}

/// Prints the events.
///
/// # Errors
/// No daemon answers; standard output cannot be written.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let mut last = 0;
    let mut is_lost = false;
    loop {
        match read(socket, last) {
            Ok(events) => {
                is_lost = false;
                last = events.last().map_or(last, |event| event.number);
                match print(arguments, &events) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                    printed => printed?,
                }
            }
            Err(error) if !arguments.follow || last == 0 => return Err(error),
            Err(error) if !is_lost => {
                eprintln!("gcgroupfs: {error:#}; waiting");
                is_lost = true;
            }
            Err(_) => {}
        }
        if !arguments.follow {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
}

fn read(socket: &Path, last: u64) -> anyhow::Result<Vec<Event>> {
    let text = Client::connect(socket)?.events(last)??;
    let events = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    events.context("the daemon's answer is invalid")
}

fn print(arguments: &Arguments, events: &[Event]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for event in events.iter().filter(|event| arguments.shows(event)) {
        match arguments.json {
            true => writeln!(out, "{}", serde_json::to_string(event)?)?,
            false => writeln!(out, "{} {}", local_time(event.time, true), event.line)?,
        }
    }
    out.flush()
}
