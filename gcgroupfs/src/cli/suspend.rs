//! `gcgroupfs suspend` and `gcgroupfs resume`, for several processes or groups at once. All are written
//! before the first wait.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::Socket;
use super::freeze::{path, resolve, status, tell};
use super::wait::{deadline, seconds};
use gcgroup_client::Client;

/// Time between two looks at a state.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 done, and with --wait all of them are suspended, resumed or have ended; 1 timeout, a step failed, \
or a write failed; the others were written.")]
pub(super) struct Arguments {
    /// Return when the memory has moved
    #[arg(long)]
    wait: bool,
    /// Stop waiting after this time, as 0.5; the move goes on
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Processes and groups by the names of their directories: 4242, team/a, /gcgroup/team/a
    #[arg(required = true, value_name = "PID|GROUP", value_parser = path)]
    paths: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct Resume {
    #[command(flatten)]
    arguments: Arguments,
    /// Resume on this GPU, by its index in the file devices; it must be of the same model
    #[arg(long, value_name = "INDEX")]
    gpu: Option<u32>,
}

/// Suspends. Errors are printed on standard error.
pub(super) fn suspend(socket: Socket, arguments: &Arguments) -> ExitCode {
    run(&socket, arguments, "1", |events| {
        value(events, "suspended") == Some("1")
    })
}

/// Resumes. Errors are printed on standard error.
pub(super) fn resume(socket: Socket, Resume { arguments, gpu }: &Resume) -> ExitCode {
    let wanted = gpu.map_or("0".to_owned(), |gpu| format!("0 gpu={gpu}"));
    run(&socket, arguments, &wanted, |events| {
        let moving = ["nr_suspended", "suspend_step"];
        value(events, "suspended") == Some("0") && moving.iter().all(|key| value(events, key).is_none())
    })
}

fn run(socket: &Socket, arguments: &Arguments, wanted: &str, is_done: impl Fn(&str) -> bool) -> ExitCode {
    let deadline = arguments.timeout.and_then(deadline);
    let (socket, paths) = resolve(socket, &arguments.paths);
    let is_told = |path: &&String| {
        let path = std::slice::from_ref(*path);
        tell(&socket, path, "gcgroup.suspend", wanted)
    };
    let told: Vec<&String> = paths.iter().filter(is_told).collect();
    let mut done = told.len() == paths.len();
    if arguments.wait {
        for path in told {
            if let Err(words) = wait(&socket, path, deadline, &is_done) {
                eprintln!("gcgroupfs: {path}: {words}");
                done = false;
            }
        }
    }
    status(done)
}

/// Waits until a process or group is as wanted. One that has ended is.
fn wait(
    socket: &Path,
    path: &str,
    deadline: Option<Instant>,
    is_done: impl Fn(&str) -> bool,
) -> Result<(), String> {
    loop {
        let events =
            Client::connect(socket).and_then(|mut client| client.get(&format!("{path}/gcgroup.events")));
        let Ok(events) = events.map_err(|error| format!("{error:#}"))? else {
            return Ok(());
        };
        if let Some(step) = value(&events, "suspend_error") {
            return Err(format!(
                "step {step} has failed; gcgroupfs explain {path} tells why"
            ));
        }
        if is_done(&events) {
            return Ok(());
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            let step = value(&events, "suspend_step").map(|step| format!(": step {step}"));
            return Err(format!("not complete{}", step.unwrap_or_default()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the value of a key in a flat-keyed file.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_that_of_the_whole_key() {
        let events = "suspended 0\nnr_suspended 2\n";
        assert_eq!(value(events, "suspended"), Some("0"));
        assert_eq!(value(events, "nr_suspended"), Some("2"));
        assert_eq!(value(events, "suspend"), None);
    }
}
