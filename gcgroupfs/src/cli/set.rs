//! `gcgroupfs set`: writes a control file, and waits, if that is wanted, until what was asked for has come about.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::client::Client;
use super::wait::{deadline, seconds};
use crate::text::{parse_bytes, parse_flag};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 written, and with --wait in effect; 1 refused, or not in effect in time; 2 the command line makes no sense.")]
pub struct Set {
    /// Return when it has come into effect: of memory.limit, memory.reclaim and compute.freeze
    #[arg(long)]
    wait: bool,
    /// Give up waiting after so long, as 0.5; what was written holds all the same
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = seconds, default_value = "10")]
    timeout: Duration,
    /// Below the mount point, as 1234/memory.limit
    path: String,
    /// As one would echo it
    #[arg(allow_hyphen_values = true)]
    value: String,
}

/// A file whose writes take time.
struct Slow {
    name: &'static str,
    /// Before the write: what to look for after it.
    goal: fn(&mut Directory<'_>, &str) -> Result<Goal>,
}

/// What has to be so, and how to say that it is not.
enum Goal {
    /// A file with a single number shows at most so much.
    AtMost(&'static str, u64),
    /// Bytes that have been moved to the host so far.
    Out(u64),
    /// The device, or all of them, is drained, or is not.
    Frozen(u64),
}

const SLOW: &[Slow] = &[
    Slow {
        name: "memory.limit",
        goal: |_, value| Ok(Goal::AtMost("memory.current", parse_bytes(value)?)),
    },
    Slow {
        name: "memory.reclaim",
        goal: |directory, value| {
            let current = directory.number("memory.current", "")?;
            let stays = ["pinned_unswappable", "context"].map(|key| directory.number("memory.stat", key));
            let movable = stays.into_iter().try_fold(current, |left, stays| {
                Ok::<_, anyhow::Error>(left.saturating_sub(stays?))
            })?;
            let gone = directory.number("memory.stat", "swap_out_bytes")?;
            Ok(Goal::Out(gone + movable.min(parse_bytes(value)?)))
        },
    },
    Slow {
        name: "compute.freeze",
        goal: |_, value| Ok(Goal::Frozen(parse_flag(value)?.into())),
    },
];

/// Writes. What went wrong is said on standard error.
pub fn run(socket: &Path, arguments: &Set) -> ExitCode {
    match set(socket, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gcgroupfs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn set(socket: &Path, arguments: &Set) -> Result<()> {
    let mut client = Client::connect(socket)?;
    if !arguments.wait {
        return client.set(&arguments.path, &arguments.value);
    }
    let (path, name) = arguments.path.rsplit_once('/').unwrap_or(("", &arguments.path));
    let Some(slow) = SLOW.iter().find(|slow| slow.name == name) else {
        bail!(
            "{name}: in effect when it is written; --wait is for memory.limit, memory.reclaim and compute.freeze"
        );
    };
    let mut directory = Directory {
        client: &mut client,
        path,
    };
    let goal = (slow.goal)(&mut directory, arguments.value.trim())?;
    let fails = directory.fails();
    directory.client.set(&arguments.path, &arguments.value)?;
    let deadline = deadline(arguments.timeout);
    loop {
        let Some(not) = goal.missed(&mut directory)? else {
            return Ok(());
        };
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let why = match directory.fails().saturating_sub(fails) {
                0 => "",
                _ => ", and moves have failed",
            };
            bail!("{}: {not}{why}", arguments.path);
        }
        std::thread::sleep(PAUSE);
    }
}

impl Goal {
    /// What is not as it should be; nothing if all is.
    fn missed(&self, directory: &mut Directory<'_>) -> Result<Option<String>> {
        Ok(match *self {
            Self::AtMost(file, most) => {
                let found = directory.number(file, "")?;
                (found > most).then(|| format!("{file} is {found}, over {most}"))
            }
            Self::Out(bytes) => {
                let missing = bytes.saturating_sub(directory.number("memory.stat", "swap_out_bytes")?);
                (missing != 0).then(|| format!("{missing} bytes are still there"))
            }
            Self::Frozen(wanted) => {
                let found = directory.number("gcgroup.events", "frozen")?;
                (found != wanted).then(|| format!("frozen is {found}"))
            }
        })
    }
}

/// A process's directory, or its directory for a device.
struct Directory<'a> {
    client: &'a mut Client,
    path: &'a str,
}

impl Directory<'_> {
    /// The number of a key, or that is all of the file.
    fn number(&mut self, file: &str, key: &str) -> Result<u64> {
        let path = format!("{}/{file}", self.path);
        let text = String::from_utf8_lossy(&self.client.get(&path)?).into_owned();
        let number = text.lines().find_map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or(("", line));
            (name == key).then(|| value.parse().ok())?
        });
        number.with_context(|| format!("{path}: no number {key}"))
    }

    /// Moves that have failed so far.
    fn fails(&mut self) -> u64 {
        self.number("memory.events", "swap_fail").unwrap_or_default()
    }
}
