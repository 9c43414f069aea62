//! View of one device for a limited process: its limit as the device's memory, and only itself.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::{NO_LIMIT, OTHER_DEVICE, VISIBLE_LIMIT};

use super::unregistered;
use crate::calls::visible::Visible;
use crate::driver;
use crate::driver::cuda::{CUerror, CUuuid};
use crate::driver::nvml::nvmlDevice_t;
use crate::hook::{self, Hook};
use crate::memory::room::Room;
use crate::shared::device;

/// Bytes of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) visible: Visible,
    /// `memory.current`.
    pub(crate) current: u64,
    pub(crate) own: Own,
}

/// The pids under which NVML may know the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Own {
    /// The pid in the process's own pid namespace.
    pub(crate) pid: u32,
    /// The pid as the daemon sees it; zero without a daemon.
    pub(crate) outside: u32,
}

impl Seen {
    /// Returns what the process sees; `None` if NVML's answer is passed on: it has no limit on the device and
    /// no `memory.visible`, or the device is unknown.
    ///
    /// # Errors
    /// NVML's, if it does not tell which device this is.
    pub(crate) fn on(of: nvmlDevice_t) -> Result<Option<Self>, CUerror> {
        match hook::get() {
            Some(hook) if is_limited(hook) => Self::by(hook, of),
            Some(_) => Ok(None),
            None => Ok(Self::before_cuda(unregistered::room(uuid_of(of)?))),
        }
    }

    fn by(hook: &Hook, of: nvmlDevice_t) -> Result<Option<Self>, CUerror> {
        let Some(index) = slot(hook, of)? else {
            return Ok(None);
        };
        let instance = (index == OTHER_DEVICE).then(|| used_instance(hook, of));
        Ok(Self::at(hook, instance.flatten().unwrap_or(index)))
    }

    fn at(hook: &Hook, index: usize) -> Option<Self> {
        let visible = Visible::on(hook, index);
        let control = hook.session.control().devices.get(index)?;
        let overhead = control.memory_overhead.load(Relaxed);
        let current = hook
            .session
            .usage()
            .memory_current(index)
            .saturating_add(overhead);
        (!visible.is_drivers()).then_some(Self {
            visible,
            current,
            own: Own {
                pid: std::process::id(),
                outside: hook.session.control().pid.load(Relaxed),
            },
        })
    }

    /// Returns what a process sees that has not used CUDA.
    fn before_cuda(room: Room) -> Option<Self> {
        (room.total != NO_LIMIT).then(|| Self {
            visible: Visible {
                room,
                ..Visible::limit(room.total)
            },
            current: 0,
            own: Own {
                pid: std::process::id(),
                outside: 0,
            },
        })
    }
}

/// Returns the device's slot in the shared blocks.
fn slot(hook: &Hook, of: nvmlDevice_t) -> Result<Option<usize>, CUerror> {
    Ok(uuid_of(of)?.map(|uuid| device::index_of(hook.session.control(), uuid)))
}

/// Returns the device's UUID, as in the shared blocks.
fn uuid_of(of: nvmlDevice_t) -> Result<Option<[u64; 2]>, CUerror> {
    let mut text = [0; 96];
    driver::nvmlDeviceGetUUID(of, &mut text, 96)?;
    Ok(uuid(&text).map(device::uuid_words))
}

/// Returns the slot of the MIG instance that the process uses; it can use one at most. A GPU in MIG mode has
/// no slot itself.
fn used_instance(hook: &Hook, gpu: nvmlDevice_t) -> Option<usize> {
    let mut count = 0;
    driver::nvmlDeviceGetMaxMigDeviceCount(gpu, &mut count).ok()?;
    (0..count).find_map(|number| {
        let mut instance = nvmlDevice_t(ptr::null_mut());
        driver::nvmlDeviceGetMigDeviceHandleByIndex(gpu, number, &mut instance).ok()?;
        let index = slot(hook, instance)
            .ok()?
            .filter(|index| *index != OTHER_DEVICE)?;
        let charged = hook.session.usage().memory_current(index);
        let beyond = hook
            .session
            .control()
            .devices
            .get(index)?
            .memory_overhead
            .load(Relaxed);
        (charged != 0 || beyond != 0).then_some(index)
    })
}

/// Returns whether any limit or `memory.visible` is set. Otherwise NVML need not be asked for the device's
/// identity.
fn is_limited(hook: &Hook) -> bool {
    let control = hook.session.control();
    let devices = &mut control.devices.iter();
    let is_any = |limit: &AtomicU64| limit.load(Relaxed) != NO_LIMIT;
    is_any(&control.memory_limit)
        || devices.any(|device| {
            is_any(&device.memory_limit)
                || is_any(&device.group_limit)
                || device.memory_visible.load(Relaxed) != VISIBLE_LIMIT
        })
}

/// Parses the sixteen bytes of `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` or `MIG-…`.
fn uuid(text: &[u8]) -> Option<CUuuid> {
    let text = text
        .strip_prefix(b"GPU-")
        .or_else(|| text.strip_prefix(b"MIG-"))?;
    let digits = text
        .iter()
        .take_while(|byte| **byte != 0)
        .filter(|byte| **byte != b'-');
    let mut values = digits.map(|byte| char::from(*byte).to_digit(16));
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        let (high, low) = (values.next()??, values.next()??);
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    values.next().is_none().then_some(CUuuid { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::block;

    #[test]
    fn uuid_text_of_nvml_parses_to_the_drivers_bytes() {
        let text = b"GPU-01020304-0506-0708-090a-0b0c0d0e0fff\0\0\0";
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255];
        assert_eq!(uuid(text), Some(CUuuid { bytes }));
        for wrong in [
            &b"GPU-01020304\0"[..],
            b"",
            b"01020304-0506-0708-090a-0b0c0d0e0fff",
            b"GPU-0102030g-0506-0708-090a-0b0c0d0e0fff",
            b"GPU-01020304-0506-0708-090a-0b0c0d0e0fff0",
        ] {
            assert_eq!(uuid(wrong), None);
        }
    }

    #[test]
    fn seen_only_on_devices_with_a_limit() {
        let hook = Hook::of_test(NO_LIMIT);
        let (control, file) = block::unlimited(2);
        hook.adopt(&file);
        assert!(!is_limited(hook) && Seen::at(hook, 0).is_none());
        control.devices[1].memory_limit.store(1000, Relaxed);
        control.devices[1].memory_overhead.store(30, Relaxed);
        control.pid.store(77, Relaxed);
        hook.session.usage().devices[1].memory_current.store(100, Relaxed);
        assert!(is_limited(hook) && Seen::at(hook, 0).is_none());
        let seen = Seen::at(hook, 1).unwrap();
        assert_eq!((seen.visible.room.total, seen.visible.room.free), (1000, 870));
        assert_eq!(seen.current, 130);
        assert_eq!((seen.own.pid, seen.own.outside), (std::process::id(), 77));
        control.devices[1].memory_limit.store(NO_LIMIT, Relaxed);
        assert!(!is_limited(hook));
        control.devices[0].memory_visible.store(500, Relaxed);
        assert!(is_limited(hook) && Seen::at(hook, 1).is_none());
        assert_eq!(Seen::at(hook, 0).unwrap().visible.bytes, Some(500));
    }

    #[test]
    fn start_limit_is_seen_before_cuda_is_used() {
        let room = |total, free| Room {
            total,
            free,
            is_shared: false,
        };
        assert_eq!(Seen::before_cuda(room(NO_LIMIT, NO_LIMIT)), None);
        let seen = Seen::before_cuda(room(4096, 4096)).unwrap();
        assert_eq!((seen.visible, seen.current), (Visible::limit(4096), 0));
        let seen = Seen::before_cuda(room(4096, 96)).unwrap();
        assert_eq!((seen.visible.room, seen.visible.held), (room(4096, 96), 0));
    }
}
