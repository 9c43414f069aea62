//! Bounds on what a process claims in its usage block. A process can write anything there; it must not cost
//! others more than what it could have had honestly.
//!
//! * Bytes on a device: up to the device's size, or what NVML shows the process to hold.
//! * Bytes of host memory: up to the host's memory.
//! * Counts and times: up to what calls can have produced since the process was started.
//!
//! The charge that a group passes on to the groups above is bounded again: see [`Charge`](super::grants).

use std::time::Duration;

use gcgroup_abi::OTHER_DEVICE;

use super::device::{Device, Host};

/// Bytes assumed for a device that does not report its size; more than any GPU has.
const UNKNOWN_TOTAL: u64 = 4 << 40;

/// Upper bound of the driver calls per second on one CPU: the shortest takes more than 100 ns.
const CALLS_PER_SECOND: u64 = 10_000_000;

/// Allowance for the resolution of start times: clock ticks are 10 ms, and a process may be two older than
/// they say.
const TICKS: Duration = Duration::from_millis(20);

/// Kernels per graph launch, on average over all of a process's calls.
const KERNELS_PER_CALL: u64 = 64;

/// Upper bound of the threads that wait at once.
const MAX_WAITING: u64 = 4096;

/// Upper bound of the bytes moved between devices and the host per second.
const MOVED_PER_SECOND: u64 = 1 << 40;

/// Returns the most bytes that can be on the device of a slot. [`OTHER_DEVICE`] stands for any device, known
/// or not: until a daemon numbers its devices, a process charges there what it has on all of them.
pub(super) fn device_total(slot: usize, devices: &[Device]) -> u64 {
    let total = |device: &Device| match device.total {
        0 => UNKNOWN_TOTAL,
        total => total,
    };
    match devices.get(slot) {
        Some(device) => total(device),
        None if slot == OTHER_DEVICE && !devices.is_empty() => {
            devices.iter().map(total).fold(0, u64::saturating_add)
        }
        None => UNKNOWN_TOTAL,
    }
}

/// Upper bounds of what a process can have counted since it was started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    /// Calls of any kind.
    pub(super) calls: u64,
    /// Kernels in launched graphs.
    pub(super) kernels: u64,
    /// Microseconds that its threads have waited, summed up.
    pub(super) waited_usec: u64,
    /// Bytes that swapping has moved in one direction.
    pub(super) moved: u64,
}

impl Counts {
    /// Returns the bounds for a process started at `start_time` (clock ticks since boot).
    pub(super) fn since(start_time: u64, host: &Host) -> Self {
        Self::within(host.age(start_time), host.nr_cpus)
    }

    fn within(age: Duration, nr_cpus: u64) -> Self {
        let msec = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let calls = (CALLS_PER_SECOND / 1000)
            .saturating_mul(nr_cpus)
            .saturating_mul(msec);
        Self {
            calls,
            kernels: calls.saturating_mul(KERNELS_PER_CALL),
            waited_usec: msec.saturating_mul(1000).saturating_mul(MAX_WAITING),
            moved: (MOVED_PER_SECOND / 1000).saturating_mul(msec),
        }
    }
}

impl Host {
    /// Returns an upper bound of the age of a process started at `start_time` (clock ticks since boot),
    /// microseconds.
    pub(super) fn age_usec(&self, start_time: u64) -> u64 {
        u64::try_from(self.age(start_time).as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns an upper bound of the age of a process started at `start_time` (clock ticks since boot).
    fn age(&self, start_time: u64) -> Duration {
        let start = Duration::from_millis(start_time.saturating_mul(1000) / self.ticks_per_second.max(1));
        (self.uptime)().saturating_sub(start).saturating_add(TICKS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{HOST, TOTAL, device};
    use super::*;

    #[test]
    fn device_total_other_slot_is_sum_of_all() {
        let devices = [
            device(0),
            Device {
                total: 0,
                ..device(1)
            },
        ];
        assert_eq!(device_total(0, &devices), TOTAL);
        assert_eq!(device_total(1, &devices), UNKNOWN_TOTAL);
        assert_eq!(device_total(OTHER_DEVICE, &devices), TOTAL + UNKNOWN_TOTAL);
        assert_eq!(device_total(OTHER_DEVICE, &[]), UNKNOWN_TOTAL);
    }

    #[test]
    fn counts_grow_with_process_age() {
        let [short, long] = [1, 1000].map(|msec| Counts::within(Duration::from_millis(msec), 4));
        assert_eq!(short.calls, 10_000 * 4);
        assert_eq!(long.calls, 1000 * short.calls);
        assert_eq!(long.kernels, 64 * long.calls);
        assert_eq!(Counts::within(Duration::MAX, 4).kernels, u64::MAX);
        assert_eq!(HOST.age(u64::MAX), TICKS, "starts in the future");
        assert_eq!(HOST.age(0), (HOST.uptime)() + TICKS);
        assert_eq!(HOST.age(100), HOST.age(0) - Duration::from_secs(1));
    }
}
