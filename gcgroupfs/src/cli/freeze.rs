//! `gcgroupfs freeze` and `gcgroupfs thaw`, for several processes or groups at once, such as the ranks of a
//! job. All are written before the first wait.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::Socket;
use super::expression::Expression;
use super::paths::Named;
use super::wait::{Failure, deadline, seconds, until};
use gcgroup_client::Client;

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 done, and with --wait all of them are drained or have ended; 1 timeout, or a write \
failed; the others were written.")]
pub(super) struct Freeze {
    /// Return when submitted work has completed
    #[arg(long)]
    wait: bool,
    /// Stop waiting after this time, as 0.5; they stay frozen
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Processes and groups by the names of their directories: 4242, team/a, /gcgroup/team/a
    #[arg(required = true, value_name = "PID|GROUP", value_parser = path)]
    paths: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct Thaw {
    /// Processes and groups by the names of their directories: 4242, team/a, /gcgroup/team/a
    #[arg(required = true, value_name = "PID|GROUP", value_parser = path)]
    paths: Vec<String>,
}

/// Refuses the root, since it cannot be frozen or suspended.
pub(super) fn path(text: &str) -> Result<String, String> {
    if Named::new(text).path.is_empty() {
        return Err("a process or a group is expected".to_owned());
    }
    Ok(text.to_owned())
}

/// Returns the daemon's socket and the paths below its mount point; the first path on a mount decides.
pub(super) fn resolve(socket: &Socket, paths: &[String]) -> (PathBuf, Vec<String>) {
    let first = paths.iter().find(|path| Named::new(path).socket.is_some());
    let (socket, _) = socket.of_path(first.map_or("", String::as_str));
    let below = paths.iter().map(|path| Named::new(path).path);
    (socket, below.collect())
}

/// Freezes. Errors are printed on standard error.
pub(super) fn freeze(socket: Socket, arguments: &Freeze) -> ExitCode {
    let deadline = arguments.timeout.and_then(deadline);
    let (socket, paths) = resolve(&socket, &arguments.paths);
    let mut done = tell(&socket, &paths, "compute.freeze", "1");
    if arguments.wait {
        for path in &paths {
            done &= stands_still(&socket, path, deadline);
        }
    }
    status(done)
}

/// Thaws. Errors are printed on standard error.
pub(super) fn thaw(socket: Socket, arguments: &Thaw) -> ExitCode {
    let (socket, paths) = resolve(&socket, &arguments.paths);
    status(tell(&socket, &paths, "compute.freeze", "0"))
}

pub(super) fn status(done: bool) -> ExitCode {
    if done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Writes a control file of each. Returns whether all writes succeeded.
pub(super) fn tell(socket: &Path, paths: &[String], file: &str, value: &str) -> bool {
    let mut client = match Client::connect(socket) {
        Ok(client) => client,
        Err(error) => {
            eprintln!("gcgroupfs: {error:#}");
            return false;
        }
    };
    let mut done = true;
    for path in paths {
        let set = client.set(&format!("{path}/{file}"), value);
        if let Err(error) = set.and_then(|set| Ok(set?)) {
            eprintln!("gcgroupfs: {error:#}");
            done = false;
        }
    }
    done
}

/// Returns what keeps a process or a group from being drained, from its events file.
fn obstacle(socket: &Path, events: &Path) -> Option<String> {
    let text = Client::connect(socket).ok()?.get(events.to_str()?).ok()?.ok()?;
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

/// Waits until a process or group is drained, and returns whether it is. A process that has ended counts as
/// drained; without a daemon the state is unknown.
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
