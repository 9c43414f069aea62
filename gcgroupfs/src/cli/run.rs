//! `gcgroupfs run`: executes a program with the library preloaded and settings in its environment.

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
use gcgroup_abi::environment::{GCGROUP_GROUP, GCGROUP_REQUIRED, GCGROUP_SOCKET};
use gcgroup_abi::message::GroupName;

use super::client::Client;
use super::paths::Named;
use super::run_options::RunOptions;

/// The preload library, relative to the directory of this program.
const PRELOAD: &str = "../lib/libgcgroup.so";

/// The library that the preload library loads, beside it.
pub(super) const HOOK: &str = "libgcgroup_hook.so";

/// Longest wait for a daemon that is being restarted.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two attempts to reach the daemon.
const RETRY: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(after_help = "\
If a group, a limit or another setting is given, the program runs with it or not at all. If no daemon answers within \
5 seconds, or the group is refused, the program is not started. If that happens later, its first CUDA call (cuInit) fails \
with CUDA_ERROR_SYSTEM_NOT_READY. With --best-effort the program runs anyway.

Exit status: the program's; 127 if it is not found, 126 if it cannot be run, 125 if a library, the daemon or the group is \
missing or refused.")]
pub(super) struct Arguments {
    #[command(flatten)]
    options: RunOptions,
    /// Start in this group, as team/batch; it is made if it does not exist and you may make it
    #[arg(long, value_name = "NAME", value_parser = group)]
    group: Option<String>,
    /// Run the program even if no daemon governs it, or not in the group: then only --memory-limit and --swap
    /// hold
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

fn group(text: &str) -> Result<String, String> {
    let Named { path: text, .. } = Named::new(text);
    match GroupName::new(&text) {
        Some(name) if name.as_str().is_some() => Ok(text),
        Some(_) => Err("a name is expected".to_owned()),
        None => Err(format!("longer than {} bytes", GroupName::LONGEST)),
    }
}

/// Executes the program in place of this process. Returns only on failure: 127 if there is no such program,
/// 126 if it cannot be run (as in env(1)), 125 if the failure is ours.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> ExitCode {
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
            eprintln!(
                "gcgroupfs: {error:#}; the program is not started (use --best-effort to start it anyway)"
            );
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
                eprintln!("gcgroupfs: warning: {refusal}; the program starts without --group");
            }
            Err(error) => {
                eprintln!(
                    "gcgroupfs: warning: {error:#}; until a daemon answers, only --memory-limit and --swap hold"
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
    /// Returns whether the program may use a GPU only under a daemon that applies these settings.
    fn is_required(&self) -> bool {
        let is_any_given = !self.options.is_empty() || self.group.is_some();
        is_any_given && !self.best_effort
    }

    /// Returns `GCGROUP_REQUIRED` for the program; `None` leaves the variable unchanged.
    fn requirement(&self) -> Option<String> {
        let word = if self.best_effort { "0" } else { "1" };
        (self.best_effort || self.is_required()).then(|| word.to_owned())
    }
}

/// Waits until the daemon allows our program to begin in the group, for [`PATIENCE`], since the daemon may be
/// restarting. Whether the program then does begin there is checked by its hook.
///
/// # Errors
/// The daemon does not answer, or refuses.
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

/// Returns whether our program may begin in the group, or the reason for the refusal.
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
    Ok(answer.map_err(|refusal| format!("group {group}: {refusal}")))
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
    command.env(GCGROUP_SOCKET.name, std::path::absolute(socket)?);
    // A setting that is not given here may be inherited from an outer `gcgroupfs run`.
    command.envs(arguments.options.variables());
    let others = [
        (GCGROUP_GROUP.name, arguments.group.clone()),
        (GCGROUP_REQUIRED.name, arguments.requirement()),
    ];
    command.envs(
        others
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    Ok(command)
}

/// Returns the path of the preload library.
///
/// # Errors
/// It or the hook beside it is missing.
pub(super) fn library() -> anyhow::Result<PathBuf> {
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

/// Returns the value of `LD_PRELOAD` with our library appended.
///
/// # Errors
/// The path of our library contains a blank or colon.
fn preload(existing: Option<&OsStr>, library: &Path) -> anyhow::Result<OsString> {
    let ours = library.as_os_str();
    // ld.so splits at both and has no quoting.
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
    fn preload_appends_once() {
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
    fn preload_refuses_path_with_blank() {
        assert!(preload(None, Path::new("/my programs/libgcgroup.so")).is_err());
    }
}
