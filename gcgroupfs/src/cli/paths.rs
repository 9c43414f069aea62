//! Default paths: those of the machine's daemon, or of a daemon that a user runs for the user's own
//! processes.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::geteuid;

use super::client::Client;
use crate::config;

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
