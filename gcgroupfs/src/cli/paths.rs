//! Default paths: those of the machine's daemon, or of a daemon that a user runs for the user's own
//! processes; and paths of control files, which may be given with the mount point or without.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::geteuid;

use crate::config;
use gcgroup_client::Client;
use gcgroupfs_fuse::mount;

/// Mount point of root's daemon.
const POINT: &str = "/gcgroup";

/// Returns the socket of the daemon that is to be started.
///
/// # Errors
/// No path for a user's own daemon: `XDG_RUNTIME_DIR` is not set.
pub(super) fn new_socket() -> Result<PathBuf> {
    if geteuid().is_root() {
        return Ok(gcgroup_abi::DEFAULT_SOCKET.into());
    }
    own_socket().context("XDG_RUNTIME_DIR is not set: --socket must say where")
}

/// Returns the socket of the daemon to connect to: the user's own if it answers, otherwise the machine's.
pub(super) fn socket() -> PathBuf {
    let own = (!geteuid().is_root()).then(own_socket).flatten();
    own.filter(|socket| Client::connect(socket).is_ok())
        .unwrap_or_else(|| gcgroup_abi::DEFAULT_SOCKET.into())
}

/// Returns what has failed, and what can be done where there is no FUSE.
pub(super) fn cannot_mount(point: &Path) -> String {
    let advice = match File::open(mount::DEVICE) {
        Ok(_) => "",
        Err(_) => {
            " (load the kernel's module fuse, or give the container /dev/fuse; --no-fuse serves only the socket)"
        }
    };
    format!("cannot mount at {}{advice}", point.display())
}

/// Returns whether every program loads the library, by the list of ld.so(8).
pub(super) fn is_preloaded_everywhere() -> bool {
    fs::read_to_string("/etc/ld.so.preload").is_ok_and(|list| list.contains("libgcgroup.so"))
}

/// A control file, a process or a group, as the user named it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// Path below the mount point, without slashes at its ends.
    pub(super) path: String,
    /// Socket of the daemon whose mount the path was given in.
    pub(super) socket: Option<PathBuf>,
}

impl Named {
    /// Resolves a path that may begin with a mount point, or with `/gcgroup` where nothing is mounted.
    pub(super) fn new(text: &str) -> Self {
        let (path, socket) = match on_mount(Path::new(text)) {
            Some((socket, rest)) => (rest.to_string_lossy().into_owned(), Some(socket)),
            None => {
                let below = Path::new(text).strip_prefix(POINT);
                let below = below.ok().and_then(Path::to_str).unwrap_or(text);
                (below.to_owned(), None)
            }
        };
        Self {
            path: path.trim_matches('/').to_owned(),
            socket,
        }
    }
}

/// Returns the socket and the path below the mount point of a path on a mount, also through links. The last
/// name of the path need not exist.
fn on_mount(path: &Path) -> Option<(PathBuf, PathBuf)> {
    if !path.is_absolute() {
        return None;
    }
    let through_links = || {
        let real = path.canonicalize().ok();
        let real = real.or_else(|| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?)))?;
        mount::socket_and_rest(&real)
    };
    mount::socket_and_rest(path).or_else(through_links)
}

/// Returns the mount point of the daemon that is to be started.
///
/// # Errors
/// No path for a user's own daemon: `XDG_RUNTIME_DIR` is not set.
pub(super) fn mount_point() -> Result<PathBuf> {
    if geteuid().is_root() {
        return Ok(POINT.into());
    }
    let directory = runtime_directory().context("XDG_RUNTIME_DIR is not set: say where to mount")?;
    Ok(directory.join("gcgroup"))
}

/// Returns the path of the configuration of the daemon that is to be started.
pub(super) fn configuration() -> PathBuf {
    let own = || {
        let directory = env::var_os("XDG_CONFIG_HOME").filter(|path| Path::new(path).is_absolute());
        let directory = directory.map(PathBuf::from);
        Some(
            directory
                .or_else(|| Some(env::home_dir()?.join(".config")))?
                .join("gcgroupfs.toml"),
        )
    };
    let own = (!geteuid().is_root()).then(own).flatten();
    own.unwrap_or_else(|| config::DEFAULT_PATH.into())
}

fn own_socket() -> Option<PathBuf> {
    Some(runtime_directory()?.join("gcgroupfs/gcgroup.sock"))
}

/// Returns `XDG_RUNTIME_DIR`; a relative path counts as unset, by the XDG base directory specification.
fn runtime_directory() -> Option<PathBuf> {
    let directory = PathBuf::from(env::var_os("XDG_RUNTIME_DIR")?);
    directory.is_absolute().then_some(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_the_same_with_and_without_the_default_mount_point() {
        for text in [
            "4711/memory.limit",
            "/4711/memory.limit",
            "/gcgroup/4711/memory.limit",
            "/gcgroup//4711/memory.limit/",
        ] {
            assert_eq!(Named::new(text).path, "4711/memory.limit", "{text}");
        }
        for text in ["", "/", "/gcgroup", "/gcgroup/"] {
            assert_eq!(Named::new(text).path, "", "{text}");
        }
        assert_eq!(Named::new("gcgroup/a").path, "gcgroup/a", "a group of that name");
        assert_eq!(Named::new("/gcgroups/a").path, "gcgroups/a");
    }
}
