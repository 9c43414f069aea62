//! How much of the host's memory may be taken: never so much that the host has to kill somebody for it.

use std::fs::File;
use std::path::PathBuf;

use crate::descriptor::Descriptor;
use crate::sys;

/// What is always left, bytes, and as a share of all that the host has: the larger.
const RESERVE: u64 = 512 << 20;
const RESERVE_SHARE: u64 = 16;

/// Where the host says what it has: proc_meminfo(5), or another file of that form that `GCGROUP_MEMINFO` names.
#[derive(Debug)]
pub(crate) struct Host {
    meminfo: PathBuf,
}

impl Host {
    pub(super) fn new() -> Self {
        let named = sys::variable("GCGROUP_MEMINFO").filter(|name| !name.is_empty());
        Self {
            meminfo: named.map_or_else(|| "/proc/meminfo".into(), PathBuf::from),
        }
    }

    /// That many bytes, to be taken before what is returned is dropped. Of several processes one looks and takes at a time, so
    /// that they cannot take the same twice, however large their blocks are: flock(2), on the file itself, which everybody
    /// can read. Who holds that lock for no reason only keeps others waiting; those that are `is_late` look without it.
    pub(super) fn claim(&self, size: u64, is_late: bool) -> Result<Claim, Unclaimed> {
        let file = File::open(&self.meminfo).ok();
        let file = file.and_then(|file| Descriptor::new(file.into()).ok());
        if let Some(fd) = file.as_ref().and_then(Descriptor::get)
            && !sys::try_lock(fd)
            && !is_late
        {
            return Err(Unclaimed::NotYet);
        }
        let claim = Claim(file);
        if self.room() < size {
            return Err(Unclaimed::NoRoom);
        }
        Ok(claim)
    }

    /// The same for what is needed by nobody yet, if as much as is always left is left beside.
    pub(super) fn claim_spare(&self, size: u64) -> Result<Claim, Unclaimed> {
        self.claim(size.saturating_add(self.look().reserve), false)
    }

    /// Bytes that may be taken, by `MemAvailable`. Where that cannot be read, the driver will say when it is asked.
    pub(super) fn room(&self) -> u64 {
        self.look().room
    }

    /// Whether so little may be taken that nothing is kept for later.
    pub(super) fn is_short(&self) -> bool {
        let Looked { room, reserve } = self.look();
        room < reserve
    }

    fn look(&self) -> Looked {
        let text = std::fs::read_to_string(&self.meminfo).unwrap_or_default();
        let total = bytes_of(&text, "MemTotal:").unwrap_or(0);
        let reserve = RESERVE.max(total / RESERVE_SHARE);
        let room =
            bytes_of(&text, "MemAvailable:").map_or(u64::MAX, |available| available.saturating_sub(reserve));
        Looked { room, reserve }
    }
}

/// What the host has, bytes.
struct Looked {
    /// What may be taken.
    room: u64,
    /// What is always left.
    reserve: u64,
}

/// Memory of the host that is being taken.
#[derive(Debug)]
pub(super) struct Claim(Option<Descriptor>);

impl Drop for Claim {
    fn drop(&mut self) {
        // Closing it is not enough if the program has forked meanwhile.
        if let Some(fd) = self.0.as_ref().and_then(Descriptor::get) {
            sys::unlock(fd);
        }
    }
}

/// Why it cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unclaimed {
    /// Another process takes some just now.
    NotYet,
    NoRoom,
}

fn bytes_of(meminfo: &str, key: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    let kilobytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

    use super::*;

    const GIB: u64 = 1 << 30;

    /// A host of that size, with so much available.
    fn tell(host: &Host, total: u64, available: u64) {
        let text = format!(
            "MemTotal: {} kB\nMemAvailable: {} kB\n",
            total >> 10,
            available >> 10
        );
        std::fs::write(&host.meminfo, text).unwrap();
    }

    fn pretended(name: &str) -> Host {
        let file = format!("gcgroup-meminfo-{name}-{}", std::process::id());
        Host {
            meminfo: std::env::temp_dir().join(file),
        }
    }

    #[test]
    fn what_is_available_is_read() {
        let text = "MemTotal:       24625132 kB\nMemFree: 1 kB\nMemAvailable:   23992196 kB\n";
        assert_eq!(bytes_of(text, "MemAvailable:"), Some(23_992_196 << 10));
        assert_eq!(bytes_of(text, "MemTotal:"), Some(24_625_132 << 10));
        assert_eq!(bytes_of("MemTotal: 1 kB\n", "MemAvailable:"), None);
        let room = Host::new().room();
        assert!(room < u64::MAX / 2, "{room}");
    }

    #[test]
    fn what_must_be_left_cannot_be_had_and_what_nobody_tells_is_no_bound() {
        let host = pretended("left");
        assert_eq!(host.room(), u64::MAX);
        for (total, reserve) in [(GIB, RESERVE), (8 * GIB, RESERVE), (256 * GIB, 16 * GIB)] {
            for (available, room) in [(0, 0), (reserve, 0), (reserve + 4096, 4096)] {
                tell(&host, total, available);
                assert_eq!(host.room(), room, "{available} of {total}");
            }
        }
        std::fs::remove_file(&host.meminfo).unwrap();
    }

    #[test]
    fn of_those_who_take_at_once_none_takes_what_another_has_taken() {
        const MOVERS: usize = 4;
        const BLOCKS: usize = 5;
        let total = 64 * GIB;
        let (host, block) = (pretended("at-once"), GIB);
        let available = AtomicU64::new(total / RESERVE_SHARE + BLOCKS as u64 * block);
        tell(&host, total, available.load(Relaxed));
        let taken = AtomicUsize::new(0);
        let mover = || {
            loop {
                match host.claim(block, false) {
                    Ok(_claim) => {
                        // As the host tells once they are taken.
                        let left = available.fetch_sub(block, Relaxed) - block;
                        tell(&host, total, left);
                        taken.fetch_add(1, Relaxed);
                    }
                    Err(Unclaimed::NotYet) => std::thread::yield_now(),
                    Err(Unclaimed::NoRoom) => return,
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..MOVERS {
                scope.spawn(mover);
            }
        });
        assert_eq!(taken.into_inner(), BLOCKS);
        std::fs::remove_file(&host.meminfo).unwrap();
    }

    #[test]
    fn who_has_waited_long_enough_looks_for_himself() {
        let host = pretended("late");
        tell(&host, 64 * GIB, 8 * GIB);
        let first = host.claim(GIB, false).unwrap();
        assert_eq!(host.claim(GIB, false).unwrap_err(), Unclaimed::NotYet);
        drop(host.claim(GIB, true).unwrap());
        assert_eq!(host.claim(64 * GIB, true).unwrap_err(), Unclaimed::NoRoom);
        assert_eq!(
            host.claim(GIB, false).unwrap_err(),
            Unclaimed::NotYet,
            "the first has it still"
        );
        drop(first);
        drop(host.claim(GIB, false).unwrap());
        std::fs::remove_file(&host.meminfo).unwrap();
    }
}
