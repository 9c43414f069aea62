//! Unmanaged processes: users of the devices without a hook, and processes with false claims. Filled by the
//! overhead scan.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

    pub(super) fn answer(&mut self, found: Vec<Unmanaged>, asked: u64) {
        self.found = found;
        self.answered = asked;
    }
}
