//! `gcgroupfs events`: shows what happens to processes and groups.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use gcgroup_client::Client;
use gcgroup_client::node::ancestors;
use gcgroupfs_model::event::Event;
use gcgroupfs_sys::clock::local_time;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::paths::Named;
use crate::message::complain;

/// Pause between two looks, milliseconds.
const PAUSE: u8 = 200;

#[derive(Debug, Args)]
#[command(after_help = "\
One line for each event, with its time: joined, left (with what the process used), refused, frozen, thawed, \
suspended, resumed, away (by gcgroup.idle), returned, swapped (allocations moved), set (a control file, by \
whom), made, removed, access, lease, killed, terminated (for whom), job-ended. The daemon keeps the last 4096 events; a user with many loses the oldest. Groups \
that the reader could not find on the mount, and what is written there, are not shown.

Exit status: 0 printed; 1 no daemon answers, or there is no such process or group, and no event of one; 2 usage error.")]
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
    /// Returns the path below the mount point; `None`: everything.
    fn path(&self) -> Option<String> {
        let path = self.name.as_ref().map(|name| Named::new(name).path)?;
        Some(path.trim_matches('/').to_owned()).filter(|path| !path.is_empty())
    }

    fn shows(&self, event: &Event) -> bool {
        let Some(name) = self.path() else { return true };
        let group = event.group.as_deref().unwrap_or_default();
        event.pid.is_some_and(|pid| pid.to_string() == name) || ancestors(group).any(|group| group == name)
    }
}

/// Prints the events.
///
/// # Errors
/// No daemon answers; nothing has the name that is asked for; standard output cannot be written.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let mut last = 0;
    let mut is_begun = false;
    let mut is_lost = false;
    loop {
        match read(socket, last) {
            Ok(events) => {
                if !is_begun {
                    check_name(socket, arguments, &events)?;
                }
                (is_begun, is_lost) = (true, false);
                last = events.last().map_or(last, |event| event.number);
                match print(arguments, &events) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                    printed => printed?,
                }
            }
            Err(error) if !arguments.follow || !is_begun => return Err(error),
            Err(error) if !is_lost => {
                complain!("gcgroupfs: {error:#}; waiting");
                is_lost = true;
            }
            Err(_) => {}
        }
        if !arguments.follow || !is_read_after(PAUSE.into()) {
            return Ok(());
        }
    }
}

/// Waits; returns whether standard output still has a reader.
fn is_read_after(pause: PollTimeout) -> bool {
    let stdout = io::stdout();
    let mut watched = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    // Interrupted: the next look comes earlier.
    poll(&mut watched, pause).map_or(true, |nr_ended| nr_ended == 0)
}

/// Checks that a process or group has the name that is asked for, or an event.
fn check_name(socket: &Path, arguments: &Arguments, events: &[Event]) -> anyhow::Result<()> {
    let Some(path) = arguments.path() else {
        return Ok(());
    };
    if events.iter().any(|event| arguments.shows(event)) {
        return Ok(());
    }
    match Client::connect(socket)?.get(&format!("{path}/memory.current"))? {
        Err(refusal) if refusal.errno == Errno::ENOENT => {
            bail!("{path}: no such process or group, and no event of one")
        }
        _ => Ok(()),
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
