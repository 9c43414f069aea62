//! Instances of devices: no simulated device can be divided.

use core::ffi::{c_uint, c_void};

use crate::call::{Error, Handle, Place, Result, nvml};

fn unsupported(device: Handle, machine: &simgpu::Machine) -> Result {
    device.device(machine)?;
    Err(Error::NotSupported)
}

nvml! {
    fn nvmlDeviceGetMaxMigDeviceCount | nvmlDeviceIsMigDeviceHandle (device: Handle, answer: Place<c_uint>) =>
        |machine| device.device(machine).and_then(|_| answer.put(0));

    fn nvmlDeviceGetMigMode(device: Handle, _now: Place<c_uint>, _later: Place<c_uint>) =>
        |machine| unsupported(device, machine);

    fn nvmlDeviceSetMigMode(device: Handle, _mode: c_uint, _status: Place<c_uint>) =>
        |machine| unsupported(device, machine);

    fn nvmlDeviceGetGpuInstanceId | nvmlDeviceGetComputeInstanceId (device: Handle, _id: Place<c_uint>) =>
        |machine| unsupported(device, machine);

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, _index: c_uint, _found: Place<Handle>) =>
        |machine| unsupported(device, machine);

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Handle, _found: Place<Handle>) =>
        |machine| device.device(machine).and(Err(Error::InvalidArgument));

    fn nvmlDeviceGetGpuInstances(
        device: Handle,
        _profile: c_uint,
        _instances: Place<*mut c_void>,
        _count: Place<c_uint>,
    ) => |machine| unsupported(device, machine);

    fn nvmlDeviceGetGpuInstanceById(device: Handle, _id: c_uint, _instance: Place<*mut c_void>) =>
        |machine| unsupported(device, machine);

    fn nvmlDeviceGetGpuInstanceProfileInfo | nvmlDeviceGetGpuInstanceProfileInfoV (
        device: Handle,
        _profile: c_uint,
        _info: Place<c_uint>,
    ) => |machine| unsupported(device, machine);

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: Handle, _profile: c_uint, _count: Place<c_uint>) =>
        |machine| unsupported(device, machine);
}
