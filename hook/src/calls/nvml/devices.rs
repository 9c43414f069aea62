//! NVML's list of devices, reduced to those that the process may use (`gcgroup.devices`) and numbered from 0.

use std::ffi::c_uint;
use std::ptr::null_mut;

use crate::driver;
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::interpose::Next;
use crate::driver::nvml::{ROOM, nvmlDevice_t};
use crate::driver::out_pointer::{answer, argument, written};
use crate::shared::allowed;

/// `nvmlDeviceGetCount`, all versions.
pub(crate) fn count(count: *mut c_uint, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(uuids) = allowed::uuids() {
        answer(
            count,
            c_uint::try_from(visible(uuids)?.len()).unwrap_or(c_uint::MAX),
        );
    }
    Ok(())
}

/// `nvmlDeviceGetHandleByIndex`, all versions.
pub(crate) fn by_index(index: c_uint, device: *mut nvmlDevice_t, next: Next<'_>) -> CUresult {
    let Some(uuids) = allowed::uuids().filter(|_| !device.is_null()) else {
        return next();
    };
    let visible = visible(uuids)?;
    let found = visible
        .get(index as usize)
        .ok_or(CUerror::NVML_INVALID_ARGUMENT)?;
    answer(device, *found);
    Ok(())
}

/// The functions that find a device, or an instance, by its name or by another device.
pub(crate) fn found(device: *mut nvmlDevice_t, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(uuids), Some(found)) = (allowed::uuids(), written(device))
        && !is_visible(found, uuids)
    {
        answer(device, nvmlDevice_t(null_mut()));
        return Err(CUerror::NVML_NOT_FOUND);
    }
    Ok(())
}

/// `nvmlDeviceGetIndex`. An instance's index is that within its GPU, and stays.
pub(crate) fn index(of: nvmlDevice_t, index: *mut c_uint, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(uuids) = allowed::uuids()
        && let Some(place) = visible(uuids)?.iter().position(|device| *device == of)
    {
        answer(index, c_uint::try_from(place).unwrap_or(c_uint::MAX));
    }
    Ok(())
}

/// `nvmlDeviceGetTopologyNearestGpus`.
pub(crate) fn nearest(
    to: nvmlDevice_t,
    level: c_uint,
    count: *mut c_uint,
    devices: *mut nvmlDevice_t,
    next: Next<'_>,
) -> CUresult {
    let ask = |count: &mut c_uint, list: &mut [nvmlDevice_t; ROOM]| {
        driver::nvmlDeviceGetTopologyNearestGpus(to, level, count, list)
    };
    list(count, devices, ask, next)
}

/// `nvmlSystemGetTopologyGpuSet`.
pub(crate) fn of_cpu(
    cpu: c_uint,
    count: *mut c_uint,
    devices: *mut nvmlDevice_t,
    next: Next<'_>,
) -> CUresult {
    let ask = |count: &mut c_uint, list: &mut [nvmlDevice_t; ROOM]| {
        driver::nvmlSystemGetTopologyGpuSet(cpu, count, list)
    };
    list(count, devices, ask, next)
}

/// Returns the visible ones of a list of GPUs by NVML's rules for topology: the number of GPUs if `count` is
/// 0, else at most so many GPUs and their number.
fn list(
    count: *mut c_uint,
    devices: *mut nvmlDevice_t,
    ask: impl Fn(&mut c_uint, &mut [nvmlDevice_t; ROOM]) -> CUresult,
    next: Next<'_>,
) -> CUresult {
    let (Some(uuids), Some(room)) = (allowed::uuids(), argument(count)) else {
        return next();
    };
    let mut all = vec![nvmlDevice_t(null_mut()); ROOM];
    let array = all.as_mut_slice().try_into();
    let array: &mut [nvmlDevice_t; ROOM] = array.map_err(|_| CUerror::NVML_INSUFFICIENT_SIZE)?;
    let mut number = 0;
    ask(&mut number, array)?;
    if number as usize > ROOM {
        return Err(CUerror::NVML_INSUFFICIENT_SIZE);
    }
    if number != 0 {
        let asked = number;
        ask(&mut number, array)?;
        number = number.min(asked);
    }
    all.truncate(number as usize);
    all.retain(|device| is_visible(*device, uuids));
    if room != 0 {
        if devices.is_null() {
            return Err(CUerror::NVML_INVALID_ARGUMENT);
        }
        all.truncate(room as usize);
        for (index, device) in all.iter().enumerate() {
            answer(devices.wrapping_add(index), *device);
        }
    }
    answer(count, c_uint::try_from(all.len()).unwrap_or(c_uint::MAX));
    Ok(())
}

/// Returns the visible GPUs in NVML's order.
fn visible(uuids: &[String]) -> Result<Vec<nvmlDevice_t>, CUerror> {
    let mut count = 0;
    driver::nvmlDeviceGetCount_v2(&mut count)?;
    let devices = (0..count).filter_map(|index| {
        let mut device = nvmlDevice_t(null_mut());
        driver::nvmlDeviceGetHandleByIndex_v2(index, &mut device).ok()?;
        is_visible(device, uuids).then_some(device)
    });
    Ok(devices.collect())
}

/// Returns whether a GPU, or one of its instances, or an instance may be used.
fn is_visible(device: nvmlDevice_t, uuids: &[String]) -> bool {
    if has_uuid(device, uuids) {
        return true;
    }
    let mut count = 0;
    if driver::nvmlDeviceGetMaxMigDeviceCount(device, &mut count).is_err() {
        return false;
    }
    (0..count).any(|number| {
        let mut instance = nvmlDevice_t(null_mut());
        driver::nvmlDeviceGetMigDeviceHandleByIndex(device, number, &mut instance).is_ok()
            && has_uuid(instance, uuids)
    })
}

fn has_uuid(device: nvmlDevice_t, uuids: &[String]) -> bool {
    let mut text = [0; 96];
    if driver::nvmlDeviceGetUUID(device, &mut text, 96).is_err() {
        return false;
    }
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let text = text.get(..end).unwrap_or_default();
    uuids.iter().any(|uuid| uuid.as_bytes() == text)
}
