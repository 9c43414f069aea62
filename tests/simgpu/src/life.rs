//! Accounting of process lifetimes on a device, including processes that have ended, while enabled.

use std::sync::atomic::Ordering::Relaxed;

use crate::clock;
use crate::device::Device;

/// Maximum number of lifetimes that a device keeps.
pub const MAX_LIVES: usize = crate::layout::MAX_PROCESSES;

/// Lifetime of a process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The process's pid in the caller's pid namespace; for a dead process, in its own.
    pub pid: u32,
    /// Whether the process is alive.
    pub is_running: bool,
    /// Time of the first use of the device, in microseconds since 1970.
    pub began_usec: u64,
    /// Duration in microseconds; for a dead process, until its last use of the device.
    pub lasted_usec: u64,
    /// Nanoseconds of device time used.
    pub busy_ns: u64,
    /// Peak device memory in bytes.
    pub peak: u64,
}

impl Device<'_> {
    /// Returns whether accounting is enabled.
    pub fn remembers(&self) -> bool {
        self.shared().kept_since_usec.load(Relaxed) != 0
    }

    /// Enables accounting from now on, for running processes too, or disables it.
    pub fn remember(&self, wanted: bool) {
        if wanted != self.remembers() {
            let since = if wanted { clock::since_1970_usec() } else { 0 };
            self.shared().kept_since_usec.store(since, Relaxed);
        }
    }

    /// Clears the lifetimes that have ended.
    pub fn forget(&self) {
        // Any ended lifetime was last seen before now.
        self.shared()
            .forgotten_usec
            .store(clock::since_1970_usec(), Relaxed);
    }

    /// Returns the lifetimes in no particular order. That of a dead process is lost when its slot is reused.
    pub fn lives(&self) -> Vec<Life> {
        let since = self.shared().kept_since_usec.load(Relaxed);
        let forgotten = self.shared().forgotten_usec.load(Relaxed);
        let now = clock::since_1970_usec();
        let mut lives = Vec::new();
        for (index, slot) in self.slots() {
            let here = &slot.device[self.index()];
            let (began, seen) = (here.began_usec.load(Relaxed), here.seen_usec.load(Relaxed));
            if since == 0 || began == 0 {
                continue;
            }
            let owner = self.owner(index);
            let is_running = owner.is_some();
            if !is_running && (seen < since || seen <= forgotten) {
                continue;
            }
            let until = if is_running { now } else { seen };
            lives.push(Life {
                pid: owner
                    .filter(|pid| *pid != 0)
                    .unwrap_or_else(|| slot.pid.load(Relaxed)),
                is_running,
                began_usec: began,
                lasted_usec: until.saturating_sub(began),
                busy_ns: here.busy_ns.load(Relaxed),
                peak: here.peak.load(Relaxed),
            });
        }
        lives
    }
}
