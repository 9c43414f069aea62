//! `gcgroupfs cdi`: prints what a container needs to be governed, in the format of container tools:
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.
//!
//! Only mounts are used where that is possible: an environment variable does not reach every program that is
//! started in a running container.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::message::complain;
use anyhow::{Context, bail};
use clap::Args;
use gcgroup_abi::environment::GCGROUP_SOCKET;
use serde_json::{Value, json};

/// The oldest version of the format that has all keys used here.
const VERSION: &str = "0.3.0";

/// Vendor and class: a device is named gcgroupfs/hook=all.
const KIND: &str = "gcgroupfs/hook";

/// Paths relative to the directory of this program, and in the container. The list makes the loader load the
/// library. Its copy beside the library is there for its name: programs of a container start only under a
/// daemon.
const MOUNTS: [(&str, &str); 4] = [
    ("../lib/libgcgroup.so", "/usr/lib/gcgroupfs/libgcgroup.so"),
    (
        "../lib/libgcgroup_hook.so",
        "/usr/lib/gcgroupfs/libgcgroup_hook.so",
    ),
    ("../share/gcgroupfs/ld.so.preload", "/etc/ld.so.preload"),
    ("../share/gcgroupfs/ld.so.preload", "/usr/lib/gcgroupfs/required"),
];

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Write the specification to this file, in place of standard output; its directory is made if missing
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Prints or writes the specification.
///
/// # Errors
/// As [`specification`]; the file cannot be written.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let text = specification(socket)?;
    let Some(file) = &arguments.output else {
        return super::print(text.as_bytes());
    };
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Returns the specification as JSON. A socket with another file name than the one that a process in a
/// container looks for is named in the environment.
///
/// # Errors
/// A file to be mounted does not exist.
pub(super) fn specification(socket: &Path) -> anyhow::Result<String> {
    let program = env::current_exe().context("cannot tell where this program is")?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    let mut mounts = Vec::new();
    for (here, there) in MOUNTS {
        let file = directory.join(here);
        let file = file
            .canonicalize()
            .with_context(|| format!("no {}: is gcgroupfs installed?", file.display()))?;
        mounts.push(mount(&file, Path::new(there))?);
    }
    let socket = std::path::absolute(socket)?;
    let (Some(here), Some(name)) = (socket.parent(), socket.file_name()) else {
        bail!("{}: not the path of a socket", socket.display());
    };
    let default = Path::new(gcgroup_abi::DEFAULT_SOCKET);
    let there = default.with_file_name(name);
    if is_own(here, name) {
        // The directory, since a restarted daemon makes a new socket.
        mounts.push(mount(here, default.parent().unwrap_or(default))?);
    } else {
        complain!(
            "gcgroupfs: warning: {} has other files too, so only the socket is mounted, and containers lose it when it \
             is made again: give the daemon a directory of its own",
            here.display()
        );
        mounts.push(mount(&socket, &there)?);
    }
    let mut edits = json!({ "mounts": mounts });
    if there != default {
        let path = there
            .to_str()
            .with_context(|| format!("{}: not text", socket.display()))?;
        edits["env"] = json!([format!("{}={path}", GCGROUP_SOCKET.name)]);
    }
    let specification = json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{ "name": "all", "containerEdits": edits }],
    });
    Ok(format!("{specification:#}\n"))
}

/// Returns whether a directory has only files of the daemon, and only its owner can make others. The daemon
/// makes a missing one.
fn is_own(directory: &Path, socket: &OsStr) -> bool {
    let Ok(entries) = fs::read_dir(directory) else {
        return !directory.exists();
    };
    let is_ours = |name: &OsStr| {
        let ours = ["gcgroup", "settings", "required"]
            .iter()
            .map(OsStr::new)
            .chain([socket]);
        ours.into_iter()
            .any(|ours| name.as_bytes().starts_with(ours.as_bytes()))
    };
    let mut names = entries.map_while(Result::ok).map(|entry| entry.file_name());
    let is_closed = fs::metadata(directory).is_ok_and(|directory| directory.mode() & 0o022 == 0);
    is_closed && names.all(|name| is_ours(&name))
}

fn mount(here: &Path, there: &Path) -> anyhow::Result<Value> {
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.with_context(|| format!("{}: not text", path.display()))
    };
    Ok(json!({
        "hostPath": text(here)?,
        "containerPath": text(there)?,
        "options": ["bind", "ro", "nosuid", "nodev"],
    }))
}
