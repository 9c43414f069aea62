//! `gcgroupfs run`: executes a program with the library preloaded and settings in its environment.

mod job;
mod lease;
mod program;
mod visible;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use gcgroup_abi::environment::{
    GCGROUP_GROUP, GCGROUP_JOB, GCGROUP_JOB_LIMITS, GCGROUP_MEMORY_LIMIT, GCGROUP_REQUIRED, GCGROUP_SOCKET,
    GCGROUP_SWAP,
};
use gcgroup_abi::message::GroupName;
use gcgroup_abi::preload_order;

use self::job::Job;
use self::lease::LeaseOptions;
use super::paths::Named;
use super::retry::{PATIENCE, ask_until_answered};
use super::run_options::{RunOptions, Write};
use crate::message::complain;
use gcgroup_client::Client;
use gcgroupfs_model::file::check_group_path;

/// The preload library, relative to the directory of this program.
const PRELOAD: &str = "../lib/libgcgroup.so";

/// The library that the preload library loads, beside it.
pub(super) const HOOK: &str = "libgcgroup_hook.so";

/// Variable of NCCL. Unless it is 0, NCCL registers the buffers of captured operations with other devices and
/// processes if they are mapped memory, as memory that can move is; then it could not move any more.
const NCCL_GRAPH_REGISTER: &str = "NCCL_GRAPH_REGISTER";

/// Variable of AddressSanitizer, and its option that makes a program end at start if another library comes
/// before the sanitizer's.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
const LINK_ORDER: &str = "verify_asan_link_order";

const NOT_STARTED: &str = "the program is not started (use --best-effort to start it anyway)";

/// Longest wait for a daemon without which the program starts too; its first CUDA call waits again.
const BEST_EFFORT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "\
The program and its children are a job, with a group of their own: job-PID, or --name. Root's is made at the top, that of \
other users in users/NAME; in the group of the process that runs this command, if that is governed; or in the group that a \
rule names. It is removed when the program has ended and the last process that uses CUDA has left. Children that stay \
behind, as daemons do, find it by GCGROUP_GROUP in their environment: within a day of the removal it is made again with its \
settings. --memory-limit, --swap and \
--compute-max bound all processes of the job together. GCGROUP_GROUP in the program's environment is the group's path. \
--swap sets NCCL_GRAPH_REGISTER=0 unless it is set.

If a group, a limit or another setting is given, the program runs with it or not at all. If no daemon answers within \
5 seconds (a minute while it has too much to do), the group is refused, or the program (or its interpreter, or what env, nice or timeout start) cannot load the \
library, as set-user-ID and static programs, the program is not started. If that happens later, its first CUDA call (cuInit) fails \
with CUDA_ERROR_SYSTEM_NOT_READY. With --best-effort the program runs anyway.

Exit status: the program's; 127 if it is not found, 126 if it cannot be run, 125 if a library, the daemon or the group is \
missing or refused.")]
pub(super) struct Arguments {
    #[command(flatten)]
    options: RunOptions,
    #[command(flatten)]
    lease: LeaseOptions,
    /// Start in this group, as team/batch; it is made if it does not exist and you may make it. With --name
    /// or a limit, the job's group is made in it
    #[arg(long, value_name = "GROUP", value_parser = group)]
    group: Option<String>,
    /// Name of the job's group, in place of job-PID
    #[arg(long, value_name = "NAME", value_parser = job_name)]
    name: Option<String>,
    /// Do not let the program use a GPU unless a daemon governs it in its group; implied by --group, --name
    /// and every setting
    #[arg(long, conflicts_with = "best_effort")]
    required: bool,
    /// Run the program even if no daemon governs it, or not in the group: then settings hold for each
    /// process, and without a daemon only --memory-limit and --swap
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

/// Checks the name of a job.
fn job_name(text: &str) -> Result<String, String> {
    if text.contains('/') {
        return Err("a name without a slash is expected; --group says where".to_owned());
    }
    check_group_path(text).map_err(|error| error.to_string())?;
    group(text)
}

/// Executes the program in place of this process. Returns only on failure: 127 if there is no such program,
/// 126 if it cannot be run (as in env(1)), 125 if the failure is ours, 2 for an unknown option.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> ExitCode {
    if let Some(name) = arguments.command.first()
        && is_option(name, arguments.command.len())
    {
        let name = name.display();
        complain!("gcgroupfs: unknown option {name}; before a program of that name, --");
        return ExitCode::from(2);
    }
    match program::obstacle(&arguments.command) {
        Some(why) if arguments.is_required() => {
            complain!("gcgroupfs: {why}: {NOT_STARTED}");
            return ExitCode::from(125);
        }
        Some(why) => complain!("gcgroupfs: warning: {why}: not governed"),
        None => {}
    }
    match prepare(socket, arguments).and_then(|command| Ok((command, place(socket, arguments)?))) {
        Ok((mut command, job)) => {
            let group = job.as_ref().map(|job| job.path.as_str());
            let group = group.or(arguments.group.as_deref());
            let own_group = env::var(GCGROUP_GROUP.name).ok();
            let visible =
                group.and_then(|group| visible::translated(socket, group, own_group.as_deref(), BEST_EFFORT));
            command.envs(visible.map(|value| (visible::VISIBLE_DEVICES, value)));
            if let Some(job) = job {
                command.env(GCGROUP_GROUP.name, &job.path);
                command.env(GCGROUP_JOB.name, &job.path);
                command.envs(arguments.jobs_limits());
            }
            execute(command)
        }
        Err(error) => {
            complain!("gcgroupfs: {error:#}");
            ExitCode::from(125)
        }
    }
}

/// Returns whether the first of the last `nr_words` words of the command line is an option that clap takes
/// for a program: no `--` precedes it.
fn is_option(name: &OsStr, nr_words: usize) -> bool {
    let words: Vec<OsString> = env::args_os().collect();
    let before = words.len().checked_sub(nr_words + 1).and_then(|at| words.get(at));
    name.as_encoded_bytes().starts_with(b"-") && before.is_none_or(|before| before != "--")
}

pub(super) fn execute(mut command: Command) -> ExitCode {
    let error = command.exec();
    complain!("gcgroupfs: {}: {error}", command.get_program().to_string_lossy());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}

/// Makes the group in which the program begins, with its settings; or only checks that the program may begin
/// in an existing one. Returns `None` if the program has no group of its own; that is reported, unless it is
/// as requested.
///
/// # Errors
/// There is no such group, and the program may not start without.
fn place(socket: &Path, arguments: &Arguments) -> anyhow::Result<Option<Job>> {
    let placed = find_place(socket, arguments);
    if arguments.is_required() {
        return placed
            .and_then(|placed| placed.map_err(|refusal| anyhow!(refusal)))
            .context(NOT_STARTED);
    }
    Ok(match placed {
        Ok(Ok(job)) => job,
        Ok(Err(refusal)) if arguments.group.is_some() => {
            complain!("gcgroupfs: warning: {refusal}; the program starts without --group");
            None
        }
        Ok(Err(refusal)) => {
            complain!(
                "gcgroupfs: warning: {refusal}; settings hold for each process, and only those that it can ask for"
            );
            None
        }
        Err(error) => {
            complain!(
                "gcgroupfs: warning: {error:#}; until a daemon answers, only --memory-limit and --swap hold"
            );
            None
        }
    })
}

/// Asks the daemon for the group: patiently if it is required, else once, for [`BEST_EFFORT`]. Returns the
/// reason if it refuses. Whether the program then does begin there is checked by its hook.
///
/// # Errors
/// The daemon does not answer.
fn find_place(socket: &Path, arguments: &Arguments) -> anyhow::Result<Result<Option<Job>, String>> {
    let writes = arguments.writes();
    let request = job::Request {
        group: arguments.group.as_deref(),
        name: arguments.name.as_deref(),
        program: arguments
            .command
            .first()
            .map_or(OsStr::new(""), OsString::as_os_str),
    };
    let is_own = request.group.is_none() || request.name.is_some() || !writes.is_empty();
    let ask = |patience| match (is_own, request.group) {
        (false, Some(group)) => Ok(connect(socket, patience)?.may_begin(group)?.map(|()| None)),
        _ => Ok(Job::begin(socket, &request, patience)?.map(Some)),
    };
    let (patience, answer) = match arguments.is_required() {
        true => (PATIENCE, ask_until_answered(ask)?),
        false => (BEST_EFFORT, ask(BEST_EFFORT)?),
    };
    let job = match answer {
        Ok(job) => job,
        Err(refusal) => return Ok(Err(request.describe(&refusal))),
    };
    let written = job
        .as_ref()
        .map_or(Ok(()), |job| job.write(socket, &writes, patience));
    Ok(match written {
        Ok(()) => Ok(job),
        Err(error) if arguments.best_effort => {
            complain!("gcgroupfs: warning: {error:#}");
            Ok(job)
        }
        Err(error) => Err(format!("{error:#}")),
    })
}

/// Connects to the daemon; unless the program starts without one soon, waits longer for one that is busy.
fn connect(socket: &Path, patience: Duration) -> anyhow::Result<Client> {
    let client = Client::connect_with(socket, patience)?;
    Ok(match patience > BEST_EFFORT {
        true => client.patiently(),
        false => client,
    })
}

impl Arguments {
    /// Returns the values for the control files of the job's group.
    fn writes(&self) -> Vec<Write> {
        let writes = self.options.writes().iter().cloned();
        writes.chain(self.lease.writes()).collect()
    }

    /// Returns whether the program may use a GPU only under a daemon that applies these settings.
    fn is_required(&self) -> bool {
        let is_set = !self.options.is_empty() || !self.lease.is_empty();
        let is_any_given = is_set || self.group.is_some() || self.name.is_some();
        self.required || is_any_given && !self.best_effort
    }

    /// Returns `GCGROUP_JOB_LIMITS` for the program; `None` leaves the variable unchanged.
    fn jobs_limits(&self) -> Option<(&'static str, OsString)> {
        let variables = [GCGROUP_MEMORY_LIMIT.name, GCGROUP_SWAP.name];
        let given = |name| {
            let mut given = self.options.variables();
            given.find_map(|(of, value)| (of == name).then(|| value.into()))
        };
        let is_any_given = variables.into_iter().any(|name| given(name).is_some());
        let values = variables.map(|name| given(name).or_else(|| env::var_os(name)).unwrap_or_default());
        is_any_given.then(|| (GCGROUP_JOB_LIMITS.name, values.join(OsStr::new("/"))))
    }

    /// Returns `GCGROUP_REQUIRED` for the program; `None` leaves the variable unchanged.
    fn requirement(&self) -> Option<String> {
        let word = if self.best_effort { "0" } else { "1" };
        (self.best_effort || self.is_required()).then(|| word.to_owned())
    }
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
    // For a program with default options of its own, which replace those of the preload library.
    let mut options = env::var_os(ASAN_OPTIONS).unwrap_or_default();
    if !options
        .as_bytes()
        .windows(LINK_ORDER.len())
        .any(|part| part == LINK_ORDER.as_bytes())
    {
        options.push(format!(":{LINK_ORDER}=0"));
        command.env(ASAN_OPTIONS, options);
    }
    command.env(GCGROUP_SOCKET.name, std::path::absolute(socket)?);
    // A setting that is not given here may be inherited from an outer `gcgroupfs run`.
    command.envs(arguments.options.variables());
    if arguments.options.swaps() && env::var_os(NCCL_GRAPH_REGISTER).is_none() {
        command.env(NCCL_GRAPH_REGISTER, "0");
    }
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

/// Returns the value of `LD_PRELOAD` with our library, in the order of [`preload_order`].
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
    let existing = existing.unwrap_or_default().as_bytes();
    let entries: Vec<&[u8]> = preload_order(existing, ours.as_bytes()).collect();
    Ok(OsString::from_vec(entries.join(&b':')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preload_refuses_path_with_blank() {
        assert!(preload(None, Path::new("/my programs/libgcgroup.so")).is_err());
    }
}
