//! How busy the devices were of late. NVML's numbers are shares of a period that has just passed; here the
//! period goes back to a look at the devices' counters that is at most a second old, or the last one there
//! was.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use simgpu::{Device, Machine};

/// Looks older than this are forgotten, all but the newest of them.
const PERIOD: Duration = Duration::from_secs(1);
/// Looks are kept at least this far apart.
const APART: Duration = Duration::from_millis(100);

/// The counters of one device at one time.
struct Look {
    at: Instant,
    /// The same by the clock that people set, in microseconds since 1970.
    at_usec: u64,
    /// Nanoseconds of work done by all.
    busy_ns: u64,
    /// The same of each living process.
    by_pid: HashMap<u32, u64>,
}

/// Shares of the period in percent, 0 to 100.
pub(crate) struct Busy {
    pub(crate) all: u32,
    /// Each living process that has worked in the period.
    pub(crate) by_pid: Vec<(u32, u32)>,
}

/// The looks kept for each device, oldest first.
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
            // What has worked at all shows as one percent.
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

/// Takes the first look at every device, so that the first question has a period to look back on.
pub(crate) fn begin(machine: &Machine) {
    *LOOKS.lock() = machine.devices().map(|device| vec![Look::at(device)]).collect();
}

/// Microseconds since 1970.
pub(crate) fn now_usec() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// How busy the device was from each look to the next, up to now: when the period ended, in microseconds
/// since 1970, and the share of it in percent. Only periods that ended after a time.
pub(crate) fn history(device: Device<'_>, after_usec: u64) -> Vec<(u64, u32)> {
    // Forgets what is too old and looks once more, if the last look is not just past.
    busy(device);
    let looks = LOOKS.lock();
    let looks = looks.get(device.index()).map_or(&[][..], Vec::as_slice);
    let periods = looks
        .windows(2)
        .map(|pair| (pair[1].at_usec, pair[1].since(&pair[0]).all));
    periods.filter(|(ended, _)| *ended > after_usec).collect()
}

/// How busy the device was in the period that ends now.
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
