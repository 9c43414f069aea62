//! `gcgroupfs cdi`: prints what a container needs to be governed, in the format of container tools:
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.
//!
//! Only mounts are used: an environment variable would not reach a program that is started in a running
//! container.

use std::env;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

/// The oldest version of the format that has all keys used here.
const VERSION: &str = "0.3.0";

/// Vendor and class: a device is named gcgroupfs/hook=all.
const KIND: &str = "gcgroupfs/hook";

/// Paths relative to the directory of this program, and in the container. The list makes the loader load the
/// library.
const MOUNTS: [(&str, &str); 3] = [
    ("../lib/libgcgroup.so", "/usr/lib/gcgroupfs/libgcgroup.so"),
    (
        "../lib/libgcgroup_hook.so",
        "/usr/lib/gcgroupfs/libgcgroup_hook.so",
    ),
    ("../share/gcgroupfs/ld.so.preload", "/etc/ld.so.preload"),
];

/// Returns the specification as JSON.
///
/// # Errors
/// A file to be mounted does not exist, or the socket's file name differs from the one that a process in a
/// container looks for.
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
    let default = Path::new(gcgroup_abi::DEFAULT_SOCKET);
    ensure!(
        socket.file_name() == default.file_name(),
        "{}: a container expects the socket as {}, so it must have that file name",
        socket.display(),
        default.display()
    );
    // The directory, since a restarted daemon makes a new socket.
    if let (Some(here), Some(there)) = (socket.parent(), default.parent()) {
        mounts.push(mount(here, there)?);
    }
    let specification = json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{ "name": "all", "containerEdits": { "mounts": mounts } }],
    });
    Ok(format!("{specification:#}\n"))
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
