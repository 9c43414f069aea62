//! The host: its memory, processors and clock, asked of the kernel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gcgroup_abi::environment::GCGROUP_MEMINFO;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

use gcgroupfs_model::tree::{Host, Identity};
use gcgroupfs_sys::process;

/// Bytes of memory assumed if the kernel does not say; more than a host has.
const UNKNOWN_MEMORY: u64 = 4 << 40;

/// Returns this host.
pub fn this() -> Host {
    let of = |name| sysconf(name).ok().flatten();
    let of = |name| of(name).and_then(|number| u64::try_from(number).ok());
    let pages = of(SysconfVar::_PHYS_PAGES).zip(of(SysconfVar::PAGE_SIZE));
    Host {
        memory: pages.map_or(UNKNOWN_MEMORY, |(pages, size)| pages.saturating_mul(size)),
        nr_cpus: std::thread::available_parallelism().map_or(1, |number| number.get() as u64),
        ticks_per_second: ticks_per_second(),
        uptime,
        now,
        user_of,
    }
}

/// Returns the user to whom a process belongs now, unless its real, effective and saved uid differ. A process
/// that cannot be examined has none.
fn user_of(identity: &Identity) -> Option<u32> {
    match process::uids(identity.pid)? {
        [real, effective, saved] if real == effective && real == saved => Some(real),
        _ => None,
    }
}

/// Returns the bytes of memory that the kernel can give to programs without swapping; `None` if it does not
/// say.
pub(crate) fn available_memory() -> Option<u64> {
    let file = std::env::var_os(GCGROUP_MEMINFO.name);
    let file = file.unwrap_or_else(|| "/proc/meminfo".into());
    available(&std::fs::read_to_string(file).ok()?)
}

/// Returns `MemAvailable` of meminfo (proc_meminfo(5)), in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// Returns the unit of the start times in `/proc/PID/stat`: ticks per second.
pub(crate) fn ticks_per_second() -> u64 {
    let number = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    number
        .and_then(|number| u64::try_from(number).ok())
        .unwrap_or(100)
}

/// Returns the time since boot in the unit of the start times in `/proc/PID/stat`.
pub(crate) fn ticks_since_boot() -> u64 {
    let ticks = uptime().as_nanos() * u128::from(ticks_per_second()) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Returns the time since boot, also while suspended (`CLOCK_BOOTTIME`).
fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Duration::from)
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
pub fn now() -> u64 {
    // Cannot fail for this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_memory_and_a_clock() {
        let host = this();
        assert!(host.memory > 0 && host.memory != UNKNOWN_MEMORY);
        let before = (host.uptime)();
        assert!((host.uptime)() >= before && before != Duration::MAX);
    }
}
