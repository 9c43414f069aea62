//! How much of the host's memory may be taken: never so much that the host has to kill somebody for it.

use std::path::PathBuf;

/// What is always left, bytes.
const RESERVE: u64 = 512 << 20;

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
        available(&text).map_or(u64::MAX, |available| available.saturating_sub(RESERVE))
    }
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_read() {
        let text = "MemTotal:       24625132 kB\nMemFree: 1 kB\nMemAvailable:   23992196 kB\n";
        assert_eq!(available(text), Some(23_992_196 << 10));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        let room = Host::new().room();
        assert!(room < u64::MAX / 2, "{room}");
    }

    #[test]
    fn what_must_be_left_cannot_be_had_and_what_nobody_tells_is_no_bound() {
        let directory = std::env::temp_dir().join(format!("gcgroup-meminfo-{}", std::process::id()));
        let host = Host {
            meminfo: directory.clone(),
        };
        assert_eq!(host.room(), u64::MAX);
        for (kilobytes, room) in [(0, 0), (RESERVE >> 10, 0), ((RESERVE >> 10) + 4, 4096)] {
            std::fs::write(&directory, format!("MemAvailable: {kilobytes} kB\n")).unwrap();
            assert_eq!(host.room(), room);
        }
        std::fs::remove_file(&directory).unwrap();
    }
}
