//! `gcgroupfs run`: a program, preloaded, with wishes in its environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use gcgroup_abi::message::GroupName;

use super::client::{Client, strerror};
use crate::error::Error;
use crate::text::{parse_bytes, parse_priority};

/// The preload library, from the directory of this program.
const PRELOAD: &str = "../lib/libgcgroup.so";

/// The library that the preload library loads, beside it.
const HOOK: &str = "libgcgroup_hook.so";

/// How long a daemon that is being started again is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pause between two attempts to reach the daemon.
const RETRY: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(after_help = "\
A program that is given a group, a limit or another setting here runs with it or not at all. Where no daemon answers within \
5 seconds, or the group is refused, the program is not started. Where that happens later, its first CUDA call (cuInit) fails \
with CUDA_ERROR_SYSTEM_NOT_READY. With --best-effort the program runs all the same.

Exit status: the program's; 127 if there is none of that name, 126 if it cannot be run, 125 if what it is to be run with is \
missing or refused.")]
pub struct Arguments {
    /// Most bytes of device memory, as 8G, or max
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| parse(parse_bytes, text))]
    memory_limit: Option<u64>,
    /// 0 to 15, lower is more important
    #[arg(long, value_name = "N", value_parser = |text: &str| parse(parse_priority, text))]
    priority: Option<u32>,
    /// Hold back all GPU work from the start
    #[arg(long)]
    freeze: bool,
    /// Make large allocations such that they can be moved to host memory, at most as much as given, as 8G, or max
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "max",
          value_parser = |text: &str| parse(parse_bytes, text))]
    swap: Option<u64>,
    /// Begin in this group, as team/batch: made if it is not there, if you may
    #[arg(long, value_name = "NAME", value_parser = group)]
    group: Option<String>,
    /// Run the program also where no daemon governs it, or not in the group: then only --memory-limit and --swap hold
    #[arg(long)]
    best_effort: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

fn parse<T>(parse: fn(&str) -> Result<T, Error>, text: &str) -> Result<T, String> {
    parse(text).map_err(|error| error.to_string())
}

fn group(text: &str) -> Result<String, String> {
    let text = text.trim_matches('/');
    match GroupName::new(text) {
        Some(name) if name.as_str().is_some() => Ok(text.to_owned()),
        Some(_) => Err("a name is expected".to_owned()),
        None => Err(format!("longer than {} bytes", GroupName::LONGEST)),
    }
}

/// Becomes the program, so its exit status is the program's. If that fails: 127 if there is no such program, 126 if
/// it cannot be run (as env(1) has it), 125 if the failure is ours.
pub fn run(socket: &Path, arguments: &Arguments) -> ExitCode {
    let mut command = match prepare(socket, arguments) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("gcgroupfs: {error:#}");
            return ExitCode::from(125);
        }
    };
    let group = arguments.group.as_deref();
    if arguments.is_required() {
        if let Err(error) = wait_for_daemon(socket, group) {
            eprintln!("gcgroupfs: {error:#}; the program is not started (it would be with --best-effort)");
            return ExitCode::from(125);
        }
    } else {
        let asked = match group {
            Some(_) => ask(socket, group, PATIENCE),
            None => Client::connect(socket).map(|_| Ok(())),
        };
        match asked {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => {
                eprintln!("gcgroupfs: warning: {refusal}; the program begins where it would without");
            }
            Err(error) => {
                eprintln!(
                    "gcgroupfs: warning: {error:#}; until there is one, only the limit given here holds"
                );
            }
        }
    }
    let error = command.exec();
    eprintln!("gcgroupfs: {}: {error}", command.get_program().to_string_lossy());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}

impl Arguments {
    /// Whether the program must not use a GPU without a daemon that governs it as is said here.
    fn is_required(&self) -> bool {
        let is_any_given = self.memory_limit.is_some()
            || self.priority.is_some()
            || self.freeze
            || self.swap.is_some()
            || self.group.is_some();
        is_any_given && !self.best_effort
    }

    /// `GCGROUP_REQUIRED` for the program; none leaves it as it is.
    fn requirement(&self) -> Option<String> {
        let word = if self.best_effort { "0" } else { "1" };
        (self.best_effort || self.is_required()).then(|| word.to_owned())
    }
}

/// Waits until the daemon says that a program of ours may begin in the group. For [`PATIENCE`]: it may be about to be
/// started again. Whether the program then does begin there is for the library in it to see to.
fn wait_for_daemon(socket: &Path, group: Option<&str>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut left = PATIENCE;
    loop {
        match ask(socket, group, left) {
            Ok(answer) => return answer.map_err(|refusal| anyhow!(refusal)),
            Err(error) => {
                left = deadline.saturating_duration_since(Instant::now());
                if left < RETRY {
                    return Err(error);
                }
                thread::sleep(RETRY);
            }
        }
    }
}

/// Whether a program of ours may begin in the group, or why not.
///
/// # Errors
/// The daemon does not answer.
fn ask(socket: &Path, group: Option<&str>, patience: Duration) -> anyhow::Result<Result<(), String>> {
    let mut client = Client::connect_with(socket, patience)?;
    let Some(group) = group else {
        // Any answer will do.
        return Ok(Ok(client.try_get("devices").map(drop)?));
    };
    let answer = client.may_begin(group)?;
    Ok(answer.map_err(|errno| format!("group {group}: {}", strerror(errno))))
}

fn prepare(socket: &Path, arguments: &Arguments) -> anyhow::Result<Command> {
    let Some((program, rest)) = arguments.command.split_first() else {
        bail!("no program given")
    };
    let mut command = Command::new(program);
    command.args(rest);
    command.env(
        "LD_PRELOAD",
        preload(env::var_os("LD_PRELOAD").as_deref(), &library()?)?,
    );
    command.env("GCGROUP_SOCKET", std::path::absolute(socket)?);
    let wishes = [
        (
            "GCGROUP_MEMORY_LIMIT",
            arguments.memory_limit.map(|bytes| bytes.to_string()),
        ),
        (
            "GCGROUP_PRIORITY",
            arguments.priority.map(|priority| priority.to_string()),
        ),
        ("GCGROUP_GROUP", arguments.group.clone()),
        ("GCGROUP_FREEZE", arguments.freeze.then(|| "1".to_owned())),
        ("GCGROUP_SWAP", arguments.swap.map(|bytes| bytes.to_string())),
        ("GCGROUP_REQUIRED", arguments.requirement()),
    ];
    for (name, value) in wishes {
        // Those not given here may have been given to a program around this one.
        value.map(|value| command.env(name, value));
    }
    Ok(command)
}

fn library() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("cannot find out where this program is")?;
    let library = own.parent().unwrap_or(Path::new("/")).join(PRELOAD);
    let library = library
        .canonicalize()
        .with_context(|| format!("no preload library at {}", library.display()))?;
    if !library.with_file_name(HOOK).exists() {
        bail!("no {HOOK} beside {}", library.display());
    }
    Ok(library)
}

/// What was to be preloaded already, and ours.
fn preload(existing: Option<&OsStr>, library: &Path) -> anyhow::Result<OsString> {
    let ours = library.as_os_str();
    // ld.so splits at both, and knows no quoting.
    if ours.as_bytes().iter().any(|byte| matches!(byte, b':' | b' ')) {
        bail!(
            "{}: a library with a blank or colon in its path cannot be preloaded",
            library.display()
        );
    }
    let mut list = OsString::new();
    if let Some(existing) = existing.filter(|list| !list.is_empty()) {
        let entries: Vec<&[u8]> = existing
            .as_bytes()
            .split(|byte| matches!(byte, b':' | b' '))
            .collect();
        if entries.contains(&ours.as_bytes()) {
            return Ok(existing.to_owned());
        }
        list.push(existing);
        list.push(":");
    }
    list.push(ours);
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_stays_and_nothing_is_preloaded_twice() {
        let ours = Path::new("/opt/lib/libgcgroup.so");
        let list = |existing: Option<&str>| preload(existing.map(OsStr::new), ours).unwrap();
        assert_eq!(list(None), "/opt/lib/libgcgroup.so");
        assert_eq!(list(Some("")), "/opt/lib/libgcgroup.so");
        assert_eq!(
            list(Some("libjemalloc.so.2")),
            "libjemalloc.so.2:/opt/lib/libgcgroup.so"
        );
        assert_eq!(
            list(Some("a.so /opt/lib/libgcgroup.so")),
            "a.so /opt/lib/libgcgroup.so"
        );
    }

    #[test]
    fn a_library_that_ld_so_could_not_name_is_refused() {
        assert!(preload(None, Path::new("/my programs/libgcgroup.so")).is_err());
    }
}
