//! How much of the host's memory may be taken: never so much that the host has to kill somebody for it.

/// What is always left, bytes.
const RESERVE: u64 = 512 << 20;

/// Whether that many bytes can be had. By `MemAvailable`, see proc_meminfo(5); where that cannot be read, the driver is
/// asked.
pub(super) fn has_room(bytes: u64) -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else {
        return true;
    };
    available(&text).is_none_or(|available| available >= bytes.saturating_add(RESERVE))
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
        assert!(has_room(1));
        assert!(!has_room(u64::MAX / 2));
    }
}
