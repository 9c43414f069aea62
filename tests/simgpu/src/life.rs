//! What a device remembers of the processes that use it and have used it, while it is told to.

use std::sync::atomic::Ordering::Relaxed;

use crate::clock;
use crate::device::Device;

/// Most lives that a device remembers.
pub const MAX_LIVES: usize = crate::layout::MAX_PROCESSES;

/// A process's life on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its pid, as the asking process's pid namespace knows it; of one that has died, as its own did.
    pub pid: u32,
    /// Whether it lives.
    pub is_running: bool,
    /// When it first had anything on the device, in microseconds since 1970.
    pub began_usec: u64,
    /// For how long it has been there, in microseconds. Of one that has died: until it last did anything
    /// there.
    pub lasted_usec: u64,
    /// Nanoseconds of work it has had done.
    pub busy_ns: u64,
    /// The most bytes of device memory it has held.
    pub peak: u64,
}

impl Device<'_> {
    /// Whether it remembers lives.
    pub fn remembers(&self) -> bool {
        self.shared().kept_since_usec.load(Relaxed) != 0
    }

    /// Has it remember those that go on from now, or none.
    pub fn remember(&self, wanted: bool) {
        if wanted != self.remembers() {
            let since = if wanted { clock::since_1970_usec() } else { 0 };
            self.shared().kept_since_usec.store(since, Relaxed);
        }
    }

    /// Has it forget the lives that have ended.
    pub fn forget(&self) {
        // What has ended was last seen before now.
        self.shared()
            .forgotten_usec
            .store(clock::since_1970_usec(), Relaxed);
    }

    /// The lives it remembers, in no order. A dead process's is forgotten when another one takes its place.
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
