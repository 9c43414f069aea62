//! How much of the host's memory may be taken: never so much that the host has to kill somebody for it.

use std::path::PathBuf;

/// What is always left, bytes, and as a share of all that the host has: the larger. Every process looks for itself before
/// each block, so that of several that look at once each may take one block too many, and none a second.
const RESERVE: u64 = 512 << 20;
const RESERVE_SHARE: u64 = 16;

/// Where the host says what it has: proc_meminfo(5), or another file of that form that `GCGROUP_MEMINFO` names.
#[derive(Debug)]
pub(crate) struct Host {
    meminfo: PathBuf,
}

impl Host {
    pub(super) fn new() -> Self {
        let named = std::env::var_os("GCGROUP_MEMINFO").filter(|name| !name.is_empty());
        Self {
            meminfo: named.map_or_else(|| "/proc/meminfo".into(), PathBuf::from),
        }
    }

    /// Bytes that may be taken, by `MemAvailable`. Where that cannot be read, the driver will say when it is asked.
    pub(super) fn room(&self) -> u64 {
        let text = std::fs::read_to_string(&self.meminfo).unwrap_or_default();
        let total = bytes_of(&text, "MemTotal:").unwrap_or(0);
        let reserve = RESERVE.max(total / RESERVE_SHARE);
        bytes_of(&text, "MemAvailable:").map_or(u64::MAX, |available| available.saturating_sub(reserve))
    }
}

fn bytes_of(meminfo: &str, key: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    let kilobytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
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
    fn who_look_at_once_take_one_block_too_many_each_and_no_second() {
        const MOVERS: u64 = 4;
        let (host, total, block) = (pretended("at-once"), 64 * GIB, GIB / 2);
        let mut available = total / RESERVE_SHARE + 5 * block;
        let mut taken = [0; 3];
        for turn in &mut taken {
            tell(&host, total, available);
            // All look before any of them takes.
            let looks = (0..MOVERS).map(|_| host.room() >= block).collect::<Vec<_>>();
            *turn = looks.into_iter().filter(|has_room| *has_room).count() as u64;
            available -= *turn * block;
        }
        assert_eq!(taken, [MOVERS, MOVERS, 0]);
        assert!(available >= total / RESERVE_SHARE - MOVERS * block);
        std::fs::remove_file(&host.meminfo).unwrap();
    }
}
