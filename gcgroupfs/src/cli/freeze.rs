//! `gcgroupfs freeze` and `gcgroupfs thaw`: several processes or groups at once, as the ranks of one job need it. All are
//! told before any is waited for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::client::Client;
use super::expression::Expression;
use super::wait::{Failure, deadline, seconds, until};

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 done, and with --wait all of them stand still or have ended; 1 the time is over, or one of them could \
not be told: the others have been.")]
pub struct Freeze {
    /// Return when what was submitted has ended
    #[arg(long)]
    wait: bool,
    /// Give up waiting after so long, as 0.5; they stay frozen
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Processes and groups, as their directories are named: 4242, team/a
    #[arg(required = true, value_name = "PID|GROUP", value_parser = path)]
    paths: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Thaw {
    /// Processes and groups, as their directories are named: 4242, team/a
    #[arg(required = true, value_name = "PID|GROUP", value_parser = path)]
    paths: Vec<String>,
}

/// A path without the slashes around it. The root cannot be frozen.
fn path(text: &str) -> Result<String, String> {
    match text.trim_matches('/') {
        "" => Err("a process or a group is expected".to_owned()),
        path => Ok(path.to_owned()),
    }
}

/// Freezes. What went wrong is said on standard error.
pub fn freeze(socket: &Path, arguments: &Freeze) -> ExitCode {
    let deadline = arguments.timeout.and_then(deadline);
    let mut done = tell(socket, &arguments.paths, "1");
    if arguments.wait {
        for path in &arguments.paths {
            done &= stands_still(socket, path, deadline);
        }
    }
    status(done)
}

/// Thaws. What went wrong is said on standard error.
pub fn thaw(socket: &Path, arguments: &Thaw) -> ExitCode {
    status(tell(socket, &arguments.paths, "0"))
}

fn status(done: bool) -> ExitCode {
    if done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Writes `compute.freeze` of each; whether all have taken it.
fn tell(socket: &Path, paths: &[String], value: &str) -> bool {
    let mut client = match Client::connect(socket) {
        Ok(client) => client,
        Err(error) => {
            eprintln!("gcgroupfs: {error:#}");
            return false;
        }
    };
    let mut done = true;
    for path in paths {
        if let Err(error) = client.set(&format!("{path}/compute.freeze"), value) {
            eprintln!("gcgroupfs: {error:#}");
            done = false;
        }
    }
    done
}

/// What keeps a process or a group from standing still, by its events file.
fn obstacle(socket: &Path, events: &Path) -> Option<String> {
    let text = Client::connect(socket)
        .ok()?
        .try_get(events.to_str()?)
        .ok()?
        .ok()?;
    let text = String::from_utf8(text).ok()?;
    let number = |key: &str| -> Option<u32> {
        let number = text.lines().find_map(|line| line.strip_prefix(key))?;
        number.parse().ok()
    };
    let error = number("drain_error ")
        .map(|error| format!("the driver answers with error {error} when it is asked what has ended"));
    error.or_else(|| {
        Some(format!(
            "process {} has not acknowledged it",
            number("draining ")?
        ))
    })
}

/// Waits for one. A process that has ended does nothing any more either; of one whose daemon has gone nobody knows.
fn stands_still(socket: &Path, place: &str, deadline: Option<Instant>) -> bool {
    let path = PathBuf::from(format!("{place}/gcgroup.events"));
    let frozen = "frozen=1".parse::<Expression>().map_err(Failure::Senseless);
    let words = match frozen.and_then(|frozen| until(socket, &path, &[frozen], deadline)) {
        Ok(()) | Err(Failure::Gone(_)) => return true,
        Err(Failure::TimedOut) => match obstacle(socket, &path) {
            Some(obstacle) => format!("still busy: {obstacle}"),
            None => "still busy".to_owned(),
        },
        Err(Failure::Senseless(words) | Failure::NoDaemon(words)) => words,
    };
    eprintln!("gcgroupfs: {place}: {words}");
    false
}
