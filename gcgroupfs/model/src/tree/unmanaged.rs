//! Unmanaged processes: users of the devices without a hook, and processes with false claims. Filled by the
//! overhead scan.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Deserialize;

use crate::text::Comm;

/// The reason why a process is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Not registered.
    NoHook,
    /// Holds more than its ledger and contexts explain.
    BeyondLedger,
    /// Nothing supports its claim to use the device.
    ClaimsUse,
    /// Claims to hold more than NVML shows.
    ClaimsMore,
}

/// Reaction of the daemon to a process that uses a device without a hook: `on_unmanaged` in the
/// configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnUnmanaged {
    /// Reports it: in the log, in `unmanaged` and in the root's `gcgroup.events`.
    #[default]
    Log,
    /// Also sends SIGTERM to it once.
    Signal,
}

/// One line of `unmanaged`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmanaged {
    pub pid: u32,
    pub device: usize,
    pub uid: u32,
    pub comm: Comm,
    /// Bytes held there: all, those beyond its ledger, or those claimed beyond what it holds; `None` if
    /// unknown.
    pub bytes: Option<u64>,
    /// Time when it was first found there, seconds since 1970.
    pub since: u64,
    pub reason: Reason,
}

impl Display for Unmanaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        let reason = match self.reason {
            Reason::NoHook => "no_hook",
            Reason::BeyondLedger => "beyond_ledger",
            Reason::ClaimsUse => "claims_use",
            Reason::ClaimsMore => "claims_more",
        };
        write!(f, "{} gpu={} uid={} ", self.pid, self.device, self.uid)?;
        write!(
            f,
            "comm={} bytes={bytes} since={} reason={reason}",
            self.comm, self.since
        )
    }
}

/// Result of the last scan, and requests for scans.
#[derive(Debug, Default)]
pub(super) struct Audit {
    pub(super) found: Vec<Unmanaged>,
    /// Number of requests.
    asked: AtomicU64,
    /// The number of requests when the last completed scan began.
    answered: u64,
    /// Number of changes of [`Audit::nr_no_hook`].
    pub(super) nr_changes: u64,
    pub(super) on_unmanaged: OnUnmanaged,
}

impl Audit {
    pub(super) fn ask(&self) {
        self.asked.fetch_add(1, Relaxed);
    }

    pub(super) fn nr_asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answered >= self.nr_asked()
    }

    /// Stores the result of a scan. Returns whether [`Audit::nr_no_hook`] has changed.
    pub(super) fn answer(&mut self, found: Vec<Unmanaged>, asked: u64) -> bool {
        let before = self.nr_no_hook();
        self.found = found;
        self.answered = asked;
        let has_changed = self.nr_no_hook() != before;
        self.nr_changes += u64::from(has_changed);
        has_changed
    }

    /// Returns the number of processes without a hook.
    pub(super) fn nr_no_hook(&self) -> u64 {
        let found = self.found.iter().filter(|one| one.reason == Reason::NoHook);
        let pids: BTreeSet<u32> = found.map(|one| one.pid).collect();
        pids.len() as u64
    }
}
