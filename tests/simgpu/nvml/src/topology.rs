//! Topology: one NUMA node with all CPUs, and a PCIe host bridge for each GPU.

use core::ffi::c_uint;

use simgpu::Device;

use crate::call::{Error, Handle, Out, Result, nvml};

/// Values of `nvmlGpuTopologyLevel_t`.
const LEVELS: [c_uint; 6] = [0, 10, 20, 30, NODE, 50];
/// The path crosses the host bridges of one NUMA node.
const NODE: c_uint = 40;

/// Returns devices: their number if the caller has room for none, else as many as there is room for.
fn put<'a>(devices: impl Iterator<Item = Device<'a>>, count: Out<c_uint>, into: Out<Handle>) -> Result {
    let mut handles: Vec<Handle> = devices.map(Handle::new).collect();
    let room = count.get()? as usize;
    if room != 0 {
        if into.is_null() {
            return Err(Error::InvalidArgument);
        }
        handles.truncate(room);
        into.put_all(&handles)?;
    }
    count.put(c_uint::try_from(handles.len()).unwrap_or(c_uint::MAX))
}

nvml! {
    fn nvmlDeviceGetTopologyNearestGpus(device: Handle, level: c_uint, count: Out<c_uint>, devices: Out<Handle>) =>
        |machine| {
            let of = device.whole(machine)?.index();
            if !LEVELS.contains(&level) {
                return Err(Error::InvalidArgument);
            }
            let others = machine.devices().filter(|other| level == NODE && other.index() != of);
            put(others, count, devices)
        };

    fn nvmlSystemGetTopologyGpuSet(_cpu: c_uint, count: Out<c_uint>, devices: Out<Handle>) =>
        |machine| put(machine.devices(), count, devices);
}
