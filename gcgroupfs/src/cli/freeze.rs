//! `gcgroupfs freeze` and `gcgroupfs thaw`: several processes at once, as the ranks of one job need it. All are told
//! before any is waited for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::client::Client;
use super::expression::Expression;
use super::wait::{GONE, USAGE, seconds, until};

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
    /// Processes, as their directories are named
    #[arg(required = true, value_name = "PID")]
    pids: Vec<u32>,
}

#[derive(Debug, Args)]
pub struct Thaw {
    /// Processes, as their directories are named
    #[arg(required = true, value_name = "PID")]
    pids: Vec<u32>,
}

/// Freezes. What went wrong is said on standard error.
pub fn freeze(socket: &Path, arguments: &Freeze) -> ExitCode {
    let deadline = arguments.timeout.map(|timeout| Instant::now() + timeout);
    let mut done = tell(socket, &arguments.pids, "1");
    if arguments.wait {
        for pid in &arguments.pids {
            done &= stands_still(socket, *pid, deadline);
        }
    }
    status(done)
}

/// Thaws. What went wrong is said on standard error.
pub fn thaw(socket: &Path, arguments: &Thaw) -> ExitCode {
    status(tell(socket, &arguments.pids, "0"))
}

fn status(done: bool) -> ExitCode {
    if done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Writes `compute.freeze` of each; whether all have taken it.
fn tell(socket: &Path, pids: &[u32], value: &str) -> bool {
    let mut client = match Client::connect(socket) {
        Ok(client) => client,
        Err(error) => {
            eprintln!("gcgroupfs: {error:#}");
            return false;
        }
    };
    let mut done = true;
    for pid in pids {
        if let Err(error) = client.set(&format!("{pid}/compute.freeze"), value) {
            eprintln!("gcgroupfs: {error:#}");
            done = false;
        }
    }
    done
}

/// Waits for one. A process that has ended does nothing any more either.
fn stands_still(socket: &Path, pid: u32, deadline: Option<Instant>) -> bool {
    let path = PathBuf::from(format!("{pid}/gcgroup.events"));
    let frozen = "frozen=1"
        .parse::<Expression>()
        .map_err(|words| (USAGE, Some(words)));
    match frozen.and_then(|frozen| until(socket, &path, &[frozen], deadline)) {
        Ok(()) | Err((GONE, _)) => true,
        Err((_, words)) => {
            let words = words.unwrap_or_else(|| "still busy".to_owned());
            eprintln!("gcgroupfs: {pid}: {words}");
            false
        }
    }
}
