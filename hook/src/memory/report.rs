//! Memory sizes reported to the program: its limit instead of the device's memory. Never more than the device
//! has; adds no errors.

use std::ffi::c_uint;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::NO_LIMIT;

use crate::cuda::{CUdevice, CUresult};
use crate::device::LocalDevice;
use crate::interpose::Next;
use crate::place::rewrite;
use crate::process::{self, Process};

/// Bytes that limits leave of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

impl Room {
    /// Without a limit the driver's answer is passed on.
    const ALL: Self = Self {
        total: NO_LIMIT,
        free: NO_LIMIT,
    };

    /// Returns the smallest limit on the device with that slot, and the smallest remainder of any limit.
    pub(crate) fn on(process: &Process, index: usize) -> Self {
        let (control, usage) = (process.control(), process.usage());
        let Some(set) = control.devices.get(index) else {
            return Self::ALL;
        };
        let device = set.memory_limit.load(Relaxed);
        let whole = control.memory_limit.load(Relaxed);
        let groups = set.group_limit.load(Relaxed);
        if [device, whole, groups] == [NO_LIMIT; 3] {
            return Self::ALL;
        }
        // Contexts and modules count as used.
        let left_of = |limit: u64, usable: u64, current: u64| {
            if limit == NO_LIMIT {
                NO_LIMIT
            } else {
                usable.saturating_sub(current)
            }
        };
        let on_device = left_of(
            device,
            super::levels::device_limit(control, index),
            usage.memory_current(index),
        );
        let on_process = left_of(
            whole,
            super::levels::process_limit(control),
            process.memory.levels.sum(usage),
        );
        Self {
            total: device.min(whole).min(groups),
            free: on_device
                .min(on_process)
                .min(super::levels::group_room(usage, control, index)),
        }
    }
}

/// A number of the width that the caller's function has.
pub(crate) trait Bytes: Copy {
    /// Returns the smaller of the two.
    fn at_most(self, bytes: u64) -> Self;
}

macro_rules! bytes {
    ($($ty:ty),*) => {$(
        impl Bytes for $ty {
            fn at_most(self, bytes: u64) -> Self {
                Self::try_from(bytes).map_or(self, |bytes| self.min(bytes))
            }
        }
    )*};
}

bytes!(c_uint, usize, u64);

/// `cuMemGetInfo`.
pub(crate) fn info<B: Bytes>(free: *mut B, total: *mut B, next: Next<'_>) -> CUresult {
    next()?;
    let Some(process) = process::get() else {
        return Ok(());
    };
    if let Some(bound) = process.program.bind() {
        let room = Room::on(process, bound.index());
        rewrite(free, |bytes| bytes.at_most(room.free));
        rewrite(total, |bytes| bytes.at_most(room.total));
    }
    Ok(())
}

/// `cuDeviceTotalMem`.
pub(crate) fn total<B: Bytes>(total: *mut B, device: CUdevice, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(process), Some(local)) = (process::get(), LocalDevice::of(device)) {
        let index = process.devices.learn(process.control(), local);
        rewrite(total, |bytes| bytes.at_most(Room::on(process, index).total));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block;

    fn governed() -> (&'static Process, &'static gcgroup_abi::Control) {
        let process = Process::of_test(NO_LIMIT);
        let (control, file) = block::of_daemon();
        for device in &control.devices {
            device.memory_limit.store(NO_LIMIT, Relaxed);
        }
        control.memory_limit.store(NO_LIMIT, Relaxed);
        control.nr_devices.store(2, Relaxed);
        control.publish();
        process.adopt(&file);
        (process, control)
    }

    #[test]
    fn drivers_answer_is_passed_on_without_a_limit() {
        let (process, _) = governed();
        assert_eq!(Room::on(process, 0), Room::ALL);
        assert_eq!(7_usize.at_most(Room::ALL.total), 7);
        assert_eq!(
            7_u32.at_most(Room::ALL.free),
            7,
            "values that do not fit change nothing"
        );
    }

    #[test]
    fn group_room_is_unused_grant_plus_what_groups_have_left() {
        let (process, control) = governed();
        control.devices[0].group_limit.store(1000, Relaxed);
        control.devices[0].group_room.store(300, Relaxed);
        process.usage().devices[0].memory_granted.store(200, Relaxed);
        process.usage().devices[0].memory_current.store(150, Relaxed);
        let room = Room {
            total: 1000,
            free: 350,
        };
        assert_eq!(Room::on(process, 0), room);
        assert_eq!(Room::on(process, 1), Room::ALL);
        control.devices[0].memory_limit.store(400, Relaxed);
        assert_eq!(
            Room::on(process, 0),
            Room {
                total: 400,
                free: 250
            }
        );
    }

    #[test]
    fn total_is_the_smallest_limit_and_free_the_least_remainder() {
        let (process, control) = governed();
        control.devices[0].memory_limit.store(1000, Relaxed);
        control.memory_limit.store(1200, Relaxed);
        let levels = &process.memory.levels;
        levels.charge(process.usage(), control, 0, 100);
        levels.charge(process.usage(), control, 1, 600);
        assert_eq!(
            Room::on(process, 0),
            Room {
                total: 1000,
                free: 500
            }
        );
        control.devices[0].memory_overhead.store(60, Relaxed);
        assert_eq!(
            Room::on(process, 0),
            Room {
                total: 1000,
                free: 440
            }
        );
    }

    #[test]
    fn usage_above_the_limit_leaves_zero_free() {
        let (process, control) = governed();
        control.devices[1].memory_limit.store(50, Relaxed);
        process.usage().devices[1].memory_current.store(80, Relaxed);
        assert_eq!(Room::on(process, 1), Room { total: 50, free: 0 });
    }
}
