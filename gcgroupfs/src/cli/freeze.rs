//! `gcgroupfs freeze`, `thaw`, `suspend` and `resume`, for several processes or groups at once, such as the
//! ranks of a job. All are written before the first wait.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use gcgroup_client::Client;
use gcgroup_client::node::value;

use super::Socket;
use super::expression::Verdict;
use super::paths::Named;
use super::progress::Progress;
use super::wait::{Failure, deadline, seconds, until};
use crate::message::complain;
use gcgroupfs_model::tree::SUSPEND;

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
    #[command(flatten)]
    of: Paths,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 done, and with --wait all of them are suspended, resumed or have ended; 1 timeout, a step failed, \
or a write failed; the others were written.")]
pub(super) struct Suspend {
    /// Return when the memory has moved
    #[arg(long)]
    wait: bool,
    /// Stop waiting after this time, as 0.5; the move goes on
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = seconds)]
    timeout: Option<Duration>,
    #[command(flatten)]
    of: Paths,
}

#[derive(Debug, Args)]
pub(super) struct Resume {
    #[command(flatten)]
    arguments: Suspend,
    /// Resume on this GPU, by its index in the file devices; it must be of the same model
    #[arg(long, value_name = "INDEX")]
    gpu: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct Paths {
    /// Processes and groups by the names of their directories: 4242, team/a, /gcgroup/team/a
    #[arg(required = true, value_name = "PID|GROUP", value_parser = path)]
    pub(super) paths: Vec<String>,
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

/// Says of a path and its events file whether the write has taken effect.
type Judge = fn(&str, &str) -> Verdict;

/// Freezes. Errors are printed on standard error.
pub(super) fn freeze(socket: &Socket, arguments: &Freeze) -> ExitCode {
    let wait = arguments.wait.then_some((is_drained as Judge, arguments.timeout));
    run(socket, &arguments.of, ("compute.freeze", "1"), wait)
}

/// Thaws. Errors are printed on standard error.
pub(super) fn thaw(socket: &Socket, of: &Paths) -> ExitCode {
    run(socket, of, ("compute.freeze", "0"), None)
}

/// Suspends. Errors are printed on standard error.
pub(super) fn suspend(socket: &Socket, arguments: &Suspend) -> ExitCode {
    let wait = arguments
        .wait
        .then_some((is_suspended as Judge, arguments.timeout));
    run(socket, &arguments.of, ("gcgroup.suspend", "1"), wait)
}

/// Resumes. Errors are printed on standard error.
pub(super) fn resume(socket: &Socket, Resume { arguments, gpu }: &Resume) -> ExitCode {
    let wanted = gpu.map_or("0".to_owned(), |gpu| format!("0 gpu={gpu}"));
    let wait = arguments.wait.then_some((is_resumed as Judge, arguments.timeout));
    run(socket, &arguments.of, ("gcgroup.suspend", &wanted), wait)
}

/// Writes a value to a file of each process and group, and then waits for those that were written. One that
/// has ended counts as done.
fn run(
    socket: &Socket,
    of: &Paths,
    (file, value): (&str, &str),
    wait: Option<(Judge, Option<Duration>)>,
) -> ExitCode {
    let deadline = wait.and_then(|(_, timeout)| timeout).and_then(deadline);
    let (socket, mut paths) = resolve(socket, &of.paths);
    let mut done = true;
    let mut complain = |path: &str, words: &str| {
        complain!("gcgroupfs: {path}{words}");
        done = false;
    };
    match Client::connect(&socket) {
        Err(error) => complain("", &format!("{error:#}")),
        Ok(mut client) => {
            let moves = wait.is_some() && file == SUSPEND.name;
            let _progress = moves.then(|| Progress::of(&socket, &paths));
            paths.retain(|path| {
                let set = client.set(&format!("{path}/{file}"), value);
                let set = set.and_then(|set| Ok(set?));
                set.map_err(|error| complain("", &format!("{error:#}"))).is_ok()
            });
            for path in &paths {
                let Some((judge, _)) = wait else { break };
                let events = Path::new(path).join("gcgroup.events");
                match until(&socket, &events, |text| judge(path, text), deadline) {
                    Ok(()) | Err(Failure::Gone(_)) => {}
                    Err(Failure::TimedOut(words) | Failure::Senseless(words) | Failure::NoDaemon(words)) => {
                        complain(path, &format!(": {words}"))
                    }
                }
            }
        }
    }
    if done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn is_drained(_: &str, events: &str) -> Verdict {
    if value(events, "frozen") == Some("1") {
        return Verdict::Holds;
    }
    let obstacle = match (value(events, "drain_error"), value(events, "draining")) {
        (Some(error), _) => {
            format!(": the driver answers with error {error} when it is asked what has ended")
        }
        (None, Some(pid)) => format!(": process {pid} has not acknowledged it"),
        (None, None) => String::new(),
    };
    Verdict::Not(format!("still busy{obstacle}"))
}

fn is_suspended(path: &str, events: &str) -> Verdict {
    moved(path, events, value(events, "suspended") == Some("1"))
}

fn is_resumed(path: &str, events: &str) -> Verdict {
    let is_moving = ["nr_suspended", "suspend_step"].map(|key| value(events, key).is_some());
    let is_resumed = value(events, "suspended") == Some("0") && is_moving == [false; 2];
    moved(path, events, is_resumed)
}

fn moved(path: &str, events: &str, is_done: bool) -> Verdict {
    match (value(events, "suspend_error"), value(events, "suspend_step")) {
        (Some(step), _) => Verdict::Senseless(format!(
            "step {step} has failed; gcgroupfs explain {path} tells why"
        )),
        (None, _) if is_done => Verdict::Holds,
        (None, Some(step)) => Verdict::Not(format!("not complete: step {step}")),
        (None, None) => Verdict::Not("not complete".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resumption_is_complete_once_no_process_is_suspended() {
        assert_eq!(is_resumed("7", "suspended 0\n"), Verdict::Holds);
        for events in ["suspended 0\nnr_suspended 2\n", "suspended 1\n"] {
            assert_eq!(is_resumed("7", events), Verdict::Not("not complete".to_owned()));
        }
        let failed = is_suspended("7", "suspended 0\nsuspend_error lock\n");
        assert!(matches!(failed, Verdict::Senseless(_)));
    }
}
