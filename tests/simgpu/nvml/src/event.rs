//! Events: XID errors, which a test appends to the file `xid` in the machine's directory, one line `INDEX
//! NUMBER` each.

use core::ffi::{c_uint, c_void};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use simgpu::config;

use crate::call::{Error, Handle, Out, Result, nvml};

/// `nvmlEventTypeXidCriticalError`, the only type here.
const XID: u64 = 8;

/// Time between looks at the file.
const PAUSE: Duration = Duration::from_millis(5);

/// Instance ids of an event that is of no MIG instance.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// Sets that exist, by their handles' numbers less 1.
static SETS: Mutex<Vec<Option<Set>>> = Mutex::new(Vec::new());

struct Set {
    devices: Vec<usize>,
    /// Lines of the file that are older than the set, or were delivered.
    nr_seen: usize,
}

/// A caller's `nvmlEventSet_t`: a number, so that null is invalid.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct SetHandle(*mut c_void);

impl SetHandle {
    /// Calls `work` with the set.
    fn with<T>(self, work: impl FnOnce(&mut Option<Set>) -> T) -> Result<T> {
        let index = self.0.addr().checked_sub(1).ok_or(Error::InvalidArgument)?;
        let mut sets = SETS.lock();
        let set = sets.get_mut(index).filter(|set| set.is_some());
        set.map(work).ok_or(Error::InvalidArgument)
    }
}

/// `nvmlEventData_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EventData {
    device: Handle,
    kind: u64,
    data: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Returns the index and the error of each complete line.
fn errors() -> Vec<(usize, u64)> {
    let text = fs::read_to_string(config::directory().join("xid")).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| {
        let (index, xid) = line.split_once(' ')?;
        Some((index.parse().ok()?, xid.trim().parse().ok()?))
    };
    // An invalid line is an error of no device.
    complete
        .lines()
        .map(|line| parse(line).unwrap_or((usize::MAX, 0)))
        .collect()
}

/// Returns the next error of a device of the set.
fn next(set: &mut Set) -> Option<(usize, u64)> {
    let errors = errors();
    let found = (set.nr_seen..errors.len()).find(|line| set.devices.contains(&errors[*line].0));
    set.nr_seen = found.map_or(errors.len(), |line| line + 1);
    found.map(|line| errors[line])
}

nvml! {
    fn nvmlDeviceGetSupportedEventTypes(device: Handle, types: Out<u64>) => |machine| {
        device.whole(machine)?;
        types.put(XID)
    };

    fn nvmlEventSetCreate(set: Out<SetHandle>) => |_| {
        let mut sets = SETS.lock();
        sets.push(Some(Set { devices: Vec::new(), nr_seen: errors().len() }));
        set.put(SetHandle(core::ptr::without_provenance_mut(sets.len())))
    };

    fn nvmlEventSetFree(set: SetHandle) => |_| set.with(|set| *set = None);

    fn nvmlDeviceRegisterEvents(device: Handle, types: u64, set: SetHandle) => |machine| {
        let index = device.whole(machine)?.index();
        if types & !XID != 0 {
            return Err(Error::NotSupported);
        }
        set.with(|set| set.iter_mut().for_each(|set| set.devices.push(index)))
    };

    fn nvmlEventSetWait_v2(set: SetHandle, data: Out<EventData>, msec: c_uint) => |machine| {
        let end = Instant::now() + Duration::from_millis(msec.into());
        loop {
            if let Some((index, xid)) = set.with(|set| set.as_mut().and_then(next))? {
                let device = machine.device(index).ok_or(Error::InvalidArgument)?;
                return data.put(EventData {
                    device: Handle::new(device),
                    kind: XID,
                    data: xid,
                    gpu_instance: NO_INSTANCE,
                    compute_instance: NO_INSTANCE,
                });
            }
            if Instant::now() >= end {
                return Err(Error::Timeout);
            }
            thread::sleep(PAUSE);
        }
    };
}
