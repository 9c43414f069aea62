//! Reading the configuration again at SIGHUP.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{getegid, geteuid};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::promise;
use crate::config::{Config, Source};
use gcgroupfs_model::arbiter::{Policy, Settings};
use gcgroupfs_model::configured;
use gcgroupfs_model::rules::ConfiguredGroups;
use gcgroupfs_model::tree::{Caller, Tree};
use gcgroupfs_server::socket::CurrentRules;
use gcgroupfs_server::ticks;
use gcgroupfs_sys::manager::{self, Stored};

/// Parts of the daemon that a configuration applies to.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) source: Source,
    pub(super) in_force: InForce,
    /// Policy of the command line, which overrides the file's.
    pub(super) policy: Option<&'static Policy>,
    pub(super) tree: Arc<Tree>,
    pub(super) arbiter: Arc<ticks::Bell>,
    pub(super) rules: CurrentRules,
    pub(super) socket: PathBuf,
}

#[derive(Debug)]
pub(super) struct Reload {
    asked: Arc<AtomicBool>,
    parts: Arc<Mutex<Parts>>,
}

impl Parts {
    fn set(&self, config: Config) {
        self.tree
            .set_default_policy(self.policy.unwrap_or(config.compute.policy));
        self.arbiter.set(Settings::new(&config.compute));
        self.tree.set_on_unmanaged(config.on_unmanaged);
        promise::keep(&self.socket, &config.rules);
        self.rules.set(config.rules);
        apply_groups(&self.tree, &config.groups);
    }

    fn read(&self) {
        self.tree.ask_devices();
        match self.source.read() {
            Ok((config, text)) => {
                self.in_force.put(&text);
                self.set(config);
                info!("configuration read again");
            }
            Err(error) => warn!("the configuration stays as it was: {error:#}"),
        }
    }
}

/// Makes and sets the groups of the configuration.
pub(super) fn apply_groups(tree: &Tree, groups: &ConfiguredGroups) {
    let root = Caller {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        pid: std::process::id(),
    };
    for group in groups.iter() {
        for fault in configured::apply(tree, group, root) {
            warn!("group {:?} of the configuration: {fault}", group.path());
        }
    }
}

impl Reload {
    /// Creates the reader; `asked` is set by the signal handler.
    pub(super) fn new(asked: Arc<AtomicBool>, parts: Parts) -> Self {
        Self {
            asked,
            parts: Arc::new(Mutex::new(parts)),
        }
    }

    /// Reads the configuration on its own thread if SIGHUP asked for it, since names in it may be looked up
    /// over a network. Reads are serialised, so the last one begins after the last request.
    pub(super) fn if_asked(&self) {
        if !self.asked.swap(false, Relaxed) {
            return;
        }
        manager::reloading();
        let parts = self.parts.clone();
        let started = thread::Builder::new()
            .name("configuration".to_owned())
            .spawn(move || {
                parts.lock().read();
                manager::ready();
            });
        if let Err(error) = started {
            manager::ready();
            warn!("the configuration stays as it was: {error}");
        }
    }
}

/// Text of the configuration in force, in memory that the service manager stores for the next daemon.
#[derive(Debug)]
pub(super) struct InForce(File);

impl InForce {
    /// # Errors
    /// Out of memory or descriptors.
    pub(super) fn open(stored: &mut Stored) -> io::Result<Self> {
        const NAME: &str = "configuration";
        if let Some(file) = stored.take(NAME) {
            return Ok(Self(file.into()));
        }
        let file = memfd_create(NAME, MFdFlags::MFD_CLOEXEC)?;
        manager::store(NAME, &file);
        Ok(Self(file.into()))
    }

    /// Replaces the text. A writer that is killed meanwhile leaves no text.
    pub(super) fn put(&self, text: &str) {
        let result =
            (self.0.set_len(0)).and_then(|()| self.0.write_all_at(format!("{text}\n").as_bytes(), 0));
        if let Err(error) = result {
            tracing::debug!(%error, "cannot store the configuration for the next daemon");
        }
    }

    /// Returns the text written last, if any.
    pub(super) fn get(&self) -> Option<String> {
        let mut text = String::new();
        let mut file = &self.0;
        file.rewind().ok()?;
        file.read_to_string(&mut text).ok()?;
        Some(text).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_in_force_is_what_was_written_last() {
        let file = tempfile::tempfile().unwrap();
        let first = InForce(file.try_clone().unwrap());
        assert_eq!(first.get(), None);
        for text in ["long text", "short", ""] {
            first.put(text);
            assert_eq!(
                InForce(file.try_clone().unwrap()).get(),
                Some(format!("{text}\n"))
            );
        }
    }
}
