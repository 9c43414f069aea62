//! Recent utilization of the devices. NVML reports shares of a period that has just passed; here the period
//! starts at the newest sample of the counters that is more than one second old, or else at the oldest
//! sample.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use simgpu::{Device, Machine};

/// Age limit of samples; of the older ones only the newest is kept.
const PERIOD: Duration = Duration::from_secs(1);
/// Minimum time between two samples.
const APART: Duration = Duration::from_millis(100);

/// Sample of one device's counters.
struct Look {
    at: Instant,
    /// `at` by the realtime clock, in microseconds since 1970.
    at_usec: u64,
    /// Nanoseconds of work done by all processes.
    busy_ns: u64,
    /// Nanoseconds of work of each living process.
    by_pid: HashMap<u32, u64>,
}

/// Shares of the period in percent, 0 to 100.
pub(crate) struct Busy {
    pub(crate) all: u32,
    /// Pid and share of each living process that has worked in the period.
    pub(crate) by_pid: Vec<(u32, u32)>,
}

/// The samples of each device, oldest first.
static LOOKS: Mutex<Vec<Vec<Look>>> = Mutex::new(Vec::new());

impl Look {
    fn at(device: Device<'_>) -> Self {
        let by_pid = device
            .processes()
            .iter()
            .map(|process| (process.pid, process.busy_ns))
            .collect();
        Self {
            at: Instant::now(),
            at_usec: now_usec(),
            busy_ns: device.busy_ns(),
            by_pid,
        }
    }

    fn since(&self, before: &Look) -> Busy {
        let passed = self.at.duration_since(before.at).as_nanos().max(1);
        let share = |now: u64, then: u64| {
            let worked = u128::from(now.saturating_sub(then));
            // Rounded up: any work shows as at least one percent.
            let percent = (worked * 100).div_ceil(passed).min(100);
            u32::try_from(percent).unwrap_or(100)
        };
        let mut by_pid: Vec<(u32, u32)> = self
            .by_pid
            .iter()
            .map(|(pid, now)| (*pid, share(*now, before.by_pid.get(pid).copied().unwrap_or(0))))
            .filter(|(_, share)| *share != 0)
            .collect();
        by_pid.sort_unstable();
        Busy {
            all: share(self.busy_ns, before.busy_ns),
            by_pid,
        }
    }
}

/// Takes the first sample of every device, so that the first query has a period.
pub(crate) fn begin(machine: &Machine) {
    *LOOKS.lock() = machine.devices().map(|device| vec![Look::at(device)]).collect();
}

/// Returns the time in microseconds since 1970.
pub(crate) fn now_usec() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the utilization between successive samples, up to now: the end of each period, in microseconds
/// since 1970, and the share in percent. Only periods that ended after `after_usec`.
pub(crate) fn history(device: Device<'_>, after_usec: u64) -> Vec<(u64, u32)> {
    // Drops old samples and takes a new one unless the last is recent.
    busy(device);
    let looks = LOOKS.lock();
    let looks = looks.get(device.index()).map_or(&[][..], Vec::as_slice);
    let periods = looks
        .windows(2)
        .map(|pair| (pair[1].at_usec, pair[1].since(&pair[0]).all));
    periods.filter(|(ended, _)| *ended > after_usec).collect()
}

/// Returns the utilization in the period that ends now.
pub(crate) fn busy(device: Device<'_>) -> Busy {
    let now = Look::at(device);
    let mut looks = LOOKS.lock();
    let Some(looks) = looks.get_mut(device.index()) else {
        return Busy {
            all: 0,
            by_pid: Vec::new(),
        };
    };
    let old = looks
        .iter()
        .take_while(|look| now.at.duration_since(look.at) > PERIOD)
        .count();
    looks.drain(..old.saturating_sub(1));
    let busy = looks.first().map(|before| now.since(before));
    if looks
        .last()
        .is_none_or(|last| now.at.duration_since(last.at) >= APART)
    {
        looks.push(now);
    }
    busy.unwrap_or(Busy {
        all: 0,
        by_pid: Vec::new(),
    })
}
