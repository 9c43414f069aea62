//! `gcgroupfs run`: a program, preloaded, with wishes in its environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;
use gcgroup_abi::message::GroupName;

use super::client::Client;
use crate::error::Error;
use crate::text::{parse_bytes, parse_priority};

/// The preload library, from the directory of this program.
const PRELOAD: &str = "../lib/libgcgroup.so";

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: the program's; 127 if there is none of that name, 126 if it cannot be run, 125 if what it is to be run with is \
missing.")]
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
    match Client::connect(socket) {
        Ok(mut client) => {
            let asked = arguments.group.as_ref().map(|group| client.may_begin(group));
            if let Some(Err(error)) = asked {
                eprintln!("gcgroupfs: warning: {error:#}; the program begins where it would without");
            }
        }
        Err(error) => {
            eprintln!("gcgroupfs: warning: {error:#}; until there is one, only the limit given here holds");
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
    library
        .canonicalize()
        .with_context(|| format!("no preload library at {}", library.display()))
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
