//! `gcgroupfs set`: writes a control file and, with `--wait`, waits until the write has taken effect.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::expression::Verdict;
use super::progress::Progress;
use super::wait::{Failure, deadline, seconds, until};
use super::{IntoExitCode as _, Socket};
use crate::message::complain;
use gcgroup_client::Client;
use gcgroupfs_model::text::{parse_bytes, parse_flag};

/// Exit status if no daemon answers.
const NO_DAEMON: u8 = 3;

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
    #[arg(value_name = "CONTROL-FILE")]
    path: String,
    /// Value as written with echo
    #[arg(allow_hyphen_values = true)]
    value: String,
}

/// A file whose writes take time to take effect.
struct Slow {
    name: &'static str,
    /// Returns, before the write of a value, what the goal needs.
    before: fn(&mut Directory<'_>, &str) -> Result<u64>,
    /// Returns the goal after the write.
    goal: fn(&mut Directory<'_>, u64) -> Result<Goal>,
}

/// Condition to wait for after a write.
struct Goal {
    file: &'static str,
    /// Key of a number in the file; empty: the number is the whole file.
    key: &'static str,
    /// Returns what is missing at this number; `None`: nothing.
    missing: Box<dyn Fn(u64) -> Option<String>>,
}

const SLOW: &[Slow] = &[
    Slow {
        name: "memory.limit",
        before: |_, _| Ok(0),
        goal: |directory, _| {
            let file = "memory.current";
            let limit = directory
                .client
                .get(&format!("{}/memory.limit", directory.path))??;
            let most = parse_bytes(limit.trim_end())?;
            Ok(Goal {
                file,
                key: "",
                missing: Box::new(move |is| (is > most).then(|| format!("{file} is {is}, over {most}"))),
            })
        },
    },
    Slow {
        name: "memory.reclaim",
        before: |directory, value| {
            let current = directory.number("memory.current", "")?;
            let stays = ["pinned_unswappable", "context"].map(|key| directory.number("memory.stat", key));
            let movable = stays.into_iter().try_fold(current, |left, stays| {
                Ok::<_, anyhow::Error>(left.saturating_sub(stays?))
            })?;
            let out = directory.number("memory.stat", "swap_out_bytes")?;
            Ok(out + movable.min(parse_bytes(value)?))
        },
        goal: |_, out| {
            let missing = move |is| (is < out).then(|| format!("{} bytes have not been moved", out - is));
            Ok(Goal {
                file: "memory.stat",
                key: "swap_out_bytes",
                missing: Box::new(missing),
            })
        },
    },
    Slow {
        name: "compute.freeze",
        before: |_, value| Ok(parse_flag(value)?.into()),
        goal: |_, wanted| {
            Ok(Goal {
                file: "gcgroup.events",
                key: "frozen",
                missing: Box::new(move |is| (is != wanted).then(|| format!("frozen is {is}"))),
            })
        },
    },
];

/// Writes the file. Errors are printed on standard error.
pub(super) fn run(socket: Socket, arguments: &Set) -> ExitCode {
    let (socket, path) = socket.of_path(&arguments.path);
    let client = match Client::connect(&socket) {
        Ok(client) => client,
        Err(error) => {
            complain!("gcgroupfs: {error:#}");
            return ExitCode::from(NO_DAEMON);
        }
    };
    set(client, &socket, &path, arguments).exit_code()
}

fn set(mut client: Client, socket: &Path, file: &str, arguments: &Set) -> Result<()> {
    if !arguments.wait {
        return Ok(client.set(file, &arguments.value)??);
    }
    let (path, name) = file.rsplit_once('/').unwrap_or(("", file));
    let Some(slow) = SLOW.iter().find(|slow| slow.name == name) else {
        let names: Vec<&str> = SLOW.iter().map(|slow| slow.name).collect();
        bail!("{name} takes effect at once; --wait is for {}", names.join(", "));
    };
    let mut directory = Directory {
        client: &mut client,
        path,
    };
    let before = (slow.before)(&mut directory, arguments.value.trim())?;
    let fails = directory.fails();
    let _progress = name
        .starts_with("memory.")
        .then(|| Progress::of(socket, &[whole(path)]));
    directory.client.set(file, &arguments.value)??;
    let goal = (slow.goal)(&mut directory, before)?;
    let judge = |text: &str| match number(text, goal.key) {
        None => Verdict::Senseless(format!("no number {}", goal.key)),
        Some(number) => (goal.missing)(number).map_or(Verdict::Holds, Verdict::Not),
    };
    let shown = Path::new(path).join(goal.file);
    match until(socket, &shown, judge, deadline(arguments.timeout)) {
        Ok(()) => Ok(()),
        Err(Failure::TimedOut(missing)) => match directory.fails().saturating_sub(fails) {
            0 => bail!("{file}: {missing}"),
            _ => bail!("{file}: {missing}, and moves to host memory have failed"),
        },
        Err(Failure::Senseless(words) | Failure::Gone(words) | Failure::NoDaemon(words)) => {
            bail!("{}: {words}", shown.display())
        }
    }
}

/// Returns the path of a process or a group without that of a device.
fn whole(path: &str) -> String {
    let (first, _) = path.split_once('/').unwrap_or((path, ""));
    let is_pid = first.parse::<u32>().is_ok();
    if is_pid { first } else { path }.to_owned()
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
        number(&self.client.get(&path)??, key).with_context(|| format!("{path}: no number {key}"))
    }

    /// Returns the number of failed moves so far.
    fn fails(&mut self) -> u64 {
        self.number("memory.events", "swap_fail").unwrap_or_default()
    }
}

/// Returns the number of a key in a flat-keyed text; with an empty key, the number that is the whole text.
fn number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap_or(("", line));
        (name == key).then(|| value.parse().ok())?
    })
}
