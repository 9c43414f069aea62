//! Reading the configuration again at SIGHUP.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use parking_lot::Mutex;
use tracing::{info, warn};

use super::{promise, service};
use crate::config::{Config, Source};
use gcgroupfs_fuse::supervisor_state::Note;
use gcgroupfs_model::arbiter::{Policy, Settings};
use gcgroupfs_model::tree::Tree;
use gcgroupfs_server::socket::CurrentRules;
use gcgroupfs_server::ticks;

/// Parts of the daemon that a configuration applies to.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) source: Source,
    /// Where the next daemon finds the configuration in force.
    pub(super) note: Option<Arc<Note>>,
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
    }

    fn read(&self) {
        self.tree.ask_devices();
        match self.source.read() {
            Ok((config, text)) => {
                self.note.iter().for_each(|note| note.put(&text));
                self.set(config);
                info!("configuration read again");
            }
            Err(error) => warn!("the configuration stays as it was: {error:#}"),
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
        service::reloading();
        let parts = self.parts.clone();
        let started = thread::Builder::new()
            .name("configuration".to_owned())
            .spawn(move || {
                parts.lock().read();
                service::ready();
            });
        if let Err(error) = started {
            service::ready();
            warn!("the configuration stays as it was: {error}");
        }
    }
}
