//! What the host of the machine has left, told as Linux does: in a file of proc_meminfo(5)'s form in the
//! machine's directory, `meminfo`. It is told when memory has been made, before the call returns, and when it
//! has been let go. What a process had that was killed comes back with the next change.

use std::env;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::config::parse_bytes;
use crate::layout::Slot;
use crate::lock::open_shared;
use crate::state::Exclusive;

#[derive(Debug)]
pub(crate) struct Host {
    total: u64,
    file: File,
    /// Held by who writes; of another file, since readers may lock that one for purposes of their own.
    lock: Mutex<File>,
}

impl Host {
    /// None unless it is asked for (`SIMGPU_HOST_MEMORY`).
    pub(crate) fn open(dir: &Path) -> io::Result<Option<Host>> {
        let total = env::var("SIMGPU_HOST_MEMORY").ok();
        let Some(total) = total.as_deref().and_then(parse_bytes) else {
            return Ok(None);
        };
        Ok(Some(Host {
            total,
            file: open_shared(&dir.join("meminfo"))?,
            lock: Mutex::new(open_shared(&dir.join("meminfo.lock"))?),
        }))
    }

    /// Tells what is left by those of the places that are taken.
    pub(crate) fn tell<'a>(&self, taken: impl Iterator<Item = &'a Slot>) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(_exclusive) = Exclusive::hold(&lock) else {
            return;
        };
        let held = taken.flat_map(|slot| &slot.host).map(|kind| kind.load(Relaxed));
        let left = self.total.saturating_sub(held.sum());
        // Always as long, so that nobody sees a part of it.
        let text = format!(
            "MemTotal:     {:12} kB\nMemAvailable: {:12} kB\n",
            self.total >> 10,
            left >> 10
        );
        // Readers find what was there before.
        let _ = self.file.write_all_at(text.as_bytes(), 0);
    }
}
