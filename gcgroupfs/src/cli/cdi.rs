//! `gcgroupfs cdi`: what a container must be given to be governed, as the tools that run containers want to be told:
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.
//!
//! Mounts alone. A variable in the environment would not reach a program that is started in a running container.

use std::env;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

/// The oldest version that has all that is said here, for tools as old.
const VERSION: &str = "0.3.0";

/// Vendor and class: a device is named gcgroupfs/hook=all.
const KIND: &str = "gcgroupfs/hook";

/// From the directory of this program, and where a container has it. The list is what makes the loader load the library.
const MOUNTS: [(&str, &str); 3] = [
    ("../lib/libgcgroup.so", "/usr/lib/gcgroupfs/libgcgroup.so"),
    (
        "../lib/libgcgroup_hook.so",
        "/usr/lib/gcgroupfs/libgcgroup_hook.so",
    ),
    ("../share/gcgroupfs/ld.so.preload", "/etc/ld.so.preload"),
];

/// # Errors
/// A file to be mounted is not there; the socket has another name than a process in a container looks for.
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
        "{}: in a container the socket is looked for as {}, so it must have that name",
        socket.display(),
        default.display()
    );
    // The directory, since a daemon that is started again makes the socket anew.
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
