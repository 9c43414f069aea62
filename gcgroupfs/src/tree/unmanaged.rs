//! Who uses the devices past the hooks, as it was found when somebody looked last. Who looks, and how, it does not know.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::text::Comm;

/// Why a process is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It has not registered.
    NoHook,
    /// It holds more than its ledger and its contexts explain.
    BeyondLedger,
    /// It claims to use the device, and nothing supports that.
    ClaimsUse,
    /// It claims to hold more than NVML shows.
    ClaimsMore,
}

/// One line of `unmanaged`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmanaged {
    pub pid: u32,
    pub device: usize,
    pub uid: u32,
    pub comm: Comm,
    /// What it holds there, all of it or beyond its ledger, or claims beyond what it holds; `None` if nobody can say.
    pub bytes: Option<u64>,
    /// Seconds since 1970: when it was first found there.
    pub since: u64,
    pub reason: Reason,
}

impl Display for Unmanaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pid,
            device,
            uid,
            comm,
            bytes,
            since,
            reason,
        } = self;
        let bytes = bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        let reason = match reason {
            Reason::NoHook => "no_hook",
            Reason::BeyondLedger => "beyond_ledger",
            Reason::ClaimsUse => "claims_use",
            Reason::ClaimsMore => "claims_more",
        };
        write!(
            f,
            "{pid} gpu={device} uid={uid} comm={comm} bytes={bytes} since={since} reason={reason}"
        )
    }
}

/// What was found, and who wants to know.
#[derive(Debug, Default)]
pub(super) struct Audit {
    pub(super) found: Vec<Unmanaged>,
    /// How often somebody has asked, and up to which of them it has been looked.
    asked: AtomicU64,
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
