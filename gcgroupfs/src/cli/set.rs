//! `gcgroupfs set`: writes a control file and, with `--wait`, waits until the write has taken effect.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::Socket;
use super::wait::{deadline, seconds};
use gcgroup_client::Client;
use gcgroupfs_model::text::{parse_bytes, parse_flag};

/// Exit status if no daemon answers.
const NO_DAEMON: u8 = 3;

/// Pause between two reads.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 written, and with --wait in effect; 1 refused, or not in effect in time; 2 usage error; \
3 no daemon answers.")]
pub(super) struct Set {
    /// Return when the value has taken effect; for files whose writes take time, as memory.limit
    #[arg(long)]
    wait: bool,
    /// Stop waiting after this time, as 0.5; the written value stays
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = seconds, default_value = "10")]
    timeout: Duration,
    /// As 1234/memory.limit or /gcgroup/1234/memory.limit
    path: String,
    /// Value as written with echo
    #[arg(allow_hyphen_values = true)]
    value: String,
}

/// A file whose writes take time to take effect.
struct Slow {
    name: &'static str,
    /// Computes, before the write, the goal to wait for after it.
    goal: fn(&mut Directory<'_>, &str) -> Result<Goal>,
}

/// Condition to wait for.
enum Goal {
    /// A file with a single number shows at most what another shows.
    AtMost(&'static str, &'static str),
    /// `swap_out_bytes` of `memory.stat` is at least this.
    Out(u64),
    /// `frozen` of `gcgroup.events` has this value.
    Frozen(u64),
}

const SLOW: &[Slow] = &[
    Slow {
        name: "memory.limit",
        goal: |_, _| Ok(Goal::AtMost("memory.current", "memory.limit")),
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

/// Writes the file. Errors are printed on standard error.
pub(super) fn run(socket: Socket, arguments: &Set) -> ExitCode {
    let (client, path) = match socket.client_of(&arguments.path) {
        Ok(connected) => connected,
        Err(error) => {
            eprintln!("gcgroupfs: {error:#}");
            return ExitCode::from(NO_DAEMON);
        }
    };
    match set(client, &path, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gcgroupfs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn set(mut client: Client, path: &str, arguments: &Set) -> Result<()> {
    if !arguments.wait {
        return Ok(client.set(path, &arguments.value)??);
    }
    let file = path;
    let (path, name) = file.rsplit_once('/').unwrap_or(("", file));
    let Some(slow) = SLOW.iter().find(|slow| slow.name == name) else {
        let names: Vec<&str> = SLOW.iter().map(|slow| slow.name).collect();
        bail!("{name} takes effect at once; --wait is for {}", names.join(", "));
    };
    let mut directory = Directory {
        client: &mut client,
        path,
    };
    let goal = (slow.goal)(&mut directory, arguments.value.trim())?;
    let fails = directory.fails();
    directory.client.set(file, &arguments.value)??;
    let deadline = deadline(arguments.timeout);
    loop {
        let Some(not) = goal.missed(&mut directory)? else {
            return Ok(());
        };
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let why = match directory.fails().saturating_sub(fails) {
                0 => "",
                _ => ", and moves to host memory have failed",
            };
            bail!("{file}: {not}{why}");
        }
        std::thread::sleep(PAUSE);
    }
}

impl Goal {
    /// Returns why the goal is not reached; `None` if it is.
    fn missed(&self, directory: &mut Directory<'_>) -> Result<Option<String>> {
        Ok(match *self {
            Self::AtMost(file, bound) => {
                let most = directory.bytes(bound)?;
                let found = directory.number(file, "")?;
                (found > most).then(|| format!("{file} is {found}, over {most}"))
            }
            Self::Out(bytes) => {
                let missing = bytes.saturating_sub(directory.number("memory.stat", "swap_out_bytes")?);
                (missing != 0).then(|| format!("{missing} bytes have not been moved"))
            }
            Self::Frozen(wanted) => {
                let found = directory.number("gcgroup.events", "frozen")?;
                (found != wanted).then(|| format!("frozen is {found}"))
            }
        })
    }
}

/// The directory of a process, or of a process on a device.
struct Directory<'a> {
    client: &'a mut Client,
    path: &'a str,
}

impl Directory<'_> {
    /// Returns the number of a key; with an empty key, the number that is the whole file.
    fn number(&mut self, file: &str, key: &str) -> Result<u64> {
        let path = format!("{}/{file}", self.path);
        let text = self.client.get(&path)??;
        let number = text.lines().find_map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or(("", line));
            (name == key).then(|| value.parse().ok())?
        });
        number.with_context(|| format!("{path}: no number {key}"))
    }

    /// Returns the bytes in a file with a single number, or `u64::MAX` for `max`.
    fn bytes(&mut self, file: &str) -> Result<u64> {
        let text = self.client.get(&format!("{}/{file}", self.path))??;
        Ok(parse_bytes(text.trim_end())?)
    }

    /// Returns the number of failed moves so far.
    fn fails(&mut self) -> u64 {
        self.number("memory.events", "swap_fail").unwrap_or_default()
    }
}
