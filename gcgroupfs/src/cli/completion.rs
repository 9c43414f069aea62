//! Completions: a shell runs this program for each word, and it asks the daemon for processes and groups.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgAction, Args, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _};
use clap_complete::env::{CompleteEnv, Shells};

use gcgroup_abi::environment::GCGROUP_SOCKET;

use super::{columns, paths};
use gcgroup_client::Client;
use gcgroup_client::node::{Reader, Snapshot};
use gcgroupfs_model::files;

/// Variable that names the shell that asks.
const VARIABLE: &str = "GCGROUPFS_COMPLETE";
/// Longest wait for the daemon.
const PATIENCE: Duration = Duration::from_secs(1);

type Completer = fn(&OsStr) -> Vec<CompletionCandidate>;

/// Completers of arguments whose values have these names.
const COMPLETERS: [(&str, Completer); 6] = [
    ("PID|GROUP", |current| nodes(current, true)),
    ("GROUP", |current| nodes(current, false)),
    ("CONTROL-FILE", control_files),
    ("EXPRESSION", control_files),
    ("COLUMN", column_names),
    ("COLUMNS", column_names),
];

#[derive(Debug, Args)]
pub(super) struct Completions {
    #[arg(value_parser = ["bash", "zsh", "fish", "elvish", "powershell"])]
    shell: String,
    /// Program whose words are completed
    #[arg(default_value = "gcgroupfs", value_parser = ["gcgroupfs", "gc-autopreempt", "gc-everywhere", "gc-preempt"])]
    program: String,
}

/// Prints the candidates and ends the process, if a shell asks for them.
pub(super) fn answer(interface: fn() -> Command) {
    let words = || env::args_os().skip_while(|word| word != "--");
    let factory = || {
        let program = words().nth(1).map(PathBuf::from);
        let name = program
            .as_deref()
            .and_then(Path::file_name)
            .and_then(OsStr::to_str);
        completable(match name.unwrap_or_default() {
            "gc-everywhere" => {
                Command::new("gc-everywhere").arg(Arg::new("state").value_parser(["on", "off", "status"]))
            }
            "gc-preempt" => held("gc-preempt")
                .arg(flag("reclaim").long("reclaim"))
                .arg(flag("suspend").long("suspend"))
                .arg(Arg::new("priority").short('p'))
                .arg(Arg::new("command").last(true).num_args(1..)),
            "gc-autopreempt" => held("gc-autopreempt")
                .arg(flag("verbose").short('v'))
                .arg(Arg::new("interval").short('i'))
                .arg(Arg::new("looks").short('l')),
            _ => interface(),
        })
    };
    CompleteEnv::with_factory(factory).var(VARIABLE).complete();
}

/// Returns the script that makes a shell ask for the words of a program.
///
/// # Errors
/// Never: the shells are those of the library.
pub(super) fn script(asked: &Completions) -> anyhow::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let shell = shells.completer(&asked.shell).context("unknown shell")?;
    let mut out = Vec::new();
    shell.write_registration(VARIABLE, &asked.program, &asked.program, "gcgroupfs", &mut out)?;
    Ok(out)
}

/// A script that acts on processes and groups.
fn held(name: &'static str) -> Command {
    Command::new(name).arg(Arg::new("names").value_name("PID|GROUP").num_args(1..))
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).action(ArgAction::SetTrue)
}

fn completable(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let name = arg.get_value_names().and_then(|names| names.first());
        match COMPLETERS
            .iter()
            .find(|(of, _)| name.is_some_and(|name| name == of))
        {
            Some((_, completer)) => arg.add(ArgValueCompleter::new(*completer)),
            None => arg,
        }
    });
    command.mut_subcommands(completable)
}

/// Returns the names that begin like the word.
fn beginning<'a>(
    current: &OsStr,
    names: impl Iterator<Item = (String, Option<&'a str>)>,
) -> Vec<CompletionCandidate> {
    let current = current.to_str().unwrap_or_default();
    let names = names.filter(|(name, _)| name.starts_with(current));
    let candidate = |(name, help): (String, Option<&str>)| {
        CompletionCandidate::new(name).help(help.map(|help| help.to_owned().into()))
    };
    names.map(candidate).collect()
}

fn snapshot() -> Snapshot {
    let socket = env::var_os(GCGROUP_SOCKET.name).map_or_else(paths::socket, PathBuf::from);
    let mut reader = Reader::new(&socket);
    reader.only(Vec::new());
    // A shell shows nothing where there is no daemon.
    match Client::connect_with(&socket, PATIENCE) {
        Ok(client) => reader.connect(client.within(PATIENCE)),
        Err(_) => return Snapshot::empty(),
    }
    reader.read().unwrap_or_else(|_| Snapshot::empty())
}

/// Returns groups and, if they are wanted, processes; of a path on a mount, its files.
fn nodes(current: &OsStr, with_processes: bool) -> Vec<CompletionCandidate> {
    if current.to_str().is_some_and(|path| path.starts_with('/')) {
        return PathCompleter::dir().complete(current);
    }
    let snapshot = snapshot();
    let groups = snapshot.groups.iter().map(|group| (group.path.clone(), None));
    let processes = snapshot.processes.iter().filter(|_| with_processes);
    let processes = processes.map(|process| (process.pid.to_string(), Some(process.comm.as_str())));
    beginning(current, processes.chain(groups))
}

fn control_files(current: &OsStr) -> Vec<CompletionCandidate> {
    let path = current.to_str().unwrap_or_default();
    if path.starts_with('/') {
        return PathCompleter::any().complete(current);
    }
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let is_process = directory.parse::<u32>().is_ok();
    let files = files::all().filter(|file| match directory {
        "" => file.on.root,
        _ if is_process => file.on.process,
        _ => file.on.group,
    });
    let prefix = if directory.is_empty() {
        String::new()
    } else {
        format!("{directory}/")
    };
    let files = files.map(|file| (format!("{prefix}{}", file.name), None));
    let mut candidates = beginning(current, files);
    if !is_process {
        let add = |node: CompletionCandidate| {
            CompletionCandidate::new(format!("{}/", node.get_value().to_string_lossy()))
                .help(node.get_help().cloned())
        };
        candidates.extend(nodes(current, directory.is_empty()).into_iter().map(add));
    }
    candidates
}

fn column_names(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning(current, columns::names().map(|name| (name.to_owned(), None)))
}
