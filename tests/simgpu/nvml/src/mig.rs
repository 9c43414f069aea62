//! MIG instances. If a machine is created without any, its devices do not support MIG.

use core::ffi::{c_uint, c_void};

use simgpu::{Device, Machine};

use crate::call::{Error, Handle, Out, Result, nvml};

/// Returns the ids of an instance's GPU instance and compute instance; each GPU instance has one compute
/// instance.
pub(crate) fn ids(device: Device<'_>) -> Option<(c_uint, c_uint)> {
    let (_, number) = device.part_of()?;
    Some((
        c_uint::try_from(number).unwrap_or(c_uint::MAX).saturating_add(1),
        0,
    ))
}

/// Returns the device if it supports MIG.
fn divisible(device: Handle, machine: &Machine) -> Result<Device<'_>> {
    let device = device.whole(machine)?;
    match machine.mig().is_anywhere() {
        true => Ok(device),
        false => Err(Error::NotSupported),
    }
}

/// Refuses calls that would change MIG instances.
fn unsupported(device: Handle, machine: &Machine) -> Result {
    device.device(machine)?;
    Err(Error::NotSupported)
}

nvml! {
    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<c_uint>) => |machine| {
        let is_divided = device.whole(machine)?.is_divided();
        count.put(if is_divided { simgpu::MAX_INSTANCES } else { 0 })
    };

    fn nvmlDeviceIsMigDeviceHandle(device: Handle, answer: Out<c_uint>) =>
        |machine| answer.put(c_uint::from(device.device(machine)?.part_of().is_some()));

    /// Returns the current and the pending mode, which are equal: the mode never changes.
    fn nvmlDeviceGetMigMode(device: Handle, now: Out<c_uint>, later: Out<c_uint>) => |machine| {
        let mode = c_uint::from(divisible(device, machine)?.is_divided());
        now.put(mode)?;
        later.put(mode)
    };

    fn nvmlDeviceSetMigMode(device: Handle, _mode: c_uint, _status: Out<c_uint>) =>
        |machine| unsupported(device, machine);

    fn nvmlDeviceGetGpuInstanceId(device: Handle, id: Out<c_uint>) =>
        |machine| id.put(ids(device.device(machine)?).ok_or(Error::NotSupported)?.0);

    fn nvmlDeviceGetComputeInstanceId(device: Handle, id: Out<c_uint>) =>
        |machine| id.put(ids(device.device(machine)?).ok_or(Error::NotSupported)?.1);

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: c_uint, found: Out<Handle>) => |machine| {
        let instance = divisible(device, machine)?.instances().nth(index as usize);
        found.put(Handle::new(instance.ok_or(Error::NotFound)?))
    };

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Handle, found: Out<Handle>) => |machine| {
        let part_of = device.device(machine)?.part_of();
        found.put(Handle::new(part_of.ok_or(Error::InvalidArgument)?.0))
    };

    fn nvmlDeviceGetGpuInstances(
        device: Handle,
        _profile: c_uint,
        _instances: Out<*mut c_void>,
        _count: Out<c_uint>,
    ) => |machine| unsupported(device, machine);

    fn nvmlDeviceGetGpuInstanceById(device: Handle, _id: c_uint, _instance: Out<*mut c_void>) =>
        |machine| unsupported(device, machine);

    fn nvmlDeviceGetGpuInstanceProfileInfo | nvmlDeviceGetGpuInstanceProfileInfoV (
        device: Handle,
        _profile: c_uint,
        _info: Out<c_uint>,
    ) => |machine| unsupported(device, machine);

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: Handle, _profile: c_uint, _count: Out<c_uint>) =>
        |machine| unsupported(device, machine);
}
