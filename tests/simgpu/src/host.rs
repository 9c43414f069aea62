//! Available host memory of the machine, published in its directory as `meminfo` in the format of
//! proc_meminfo(5). Updated after an allocation, before the call returns, and after a release. Memory of a
//! killed process is returned with the next update.

use std::env;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::layout::Slot;
use crate::lock::{Exclusive, open_shared};
use crate::size::parse_bytes;

#[derive(Debug)]
pub(crate) struct Host {
    total: u64,
    file: File,
    /// Held while writing. A separate file, because readers may lock `meminfo` for their own purposes.
    lock: Mutex<File>,
}

impl Host {
    /// Opens the file. `None` unless `SIMGPU_HOST_MEMORY` is set.
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

    /// Writes what the processes in the given slots leave of the total.
    pub(crate) fn tell<'a>(&self, taken: impl Iterator<Item = &'a Slot>) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(_exclusive) = Exclusive::hold(&lock) else {
            return;
        };
        let held = taken.flat_map(|slot| &slot.host).map(|kind| kind.load(Relaxed));
        let left = self.total.saturating_sub(held.sum());
        // The length is constant, so that readers never see a partial update.
        let text = format!(
            "MemTotal:     {:12} kB\nMemAvailable: {:12} kB\n",
            self.total >> 10,
            left >> 10
        );
        // On failure readers see the previous content.
        let _ = self.file.write_all_at(text.as_bytes(), 0);
    }
}
