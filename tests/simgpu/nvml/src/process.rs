//! Processes on the devices, their memory and their utilization. Simulated processes only compute: the lists
//! of graphics processes and of MPS clients are empty.

use core::ffi::c_uint;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use simgpu::{Device, Driver, Quirk, config};

use crate::call::{Error, Handle, Out, Result, nvml, version};
use crate::{mig, sample};

/// GPU or compute instance of a process on a device without MIG.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// A process and its device.
pub(crate) struct Found<'a>(Device<'a>, simgpu::Process);

impl Found<'_> {
    /// Returns the GPU instance and the compute instance.
    fn instances(&self) -> (c_uint, c_uint) {
        mig::ids(self.0).unwrap_or((NO_INSTANCE, NO_INSTANCE))
    }
}

/// Returns the processes on a device, in MIG mode those on all its instances.
fn found(device: Device<'_>) -> Vec<Found<'_>> {
    while Quirk::NvmlWaits.is_on() && config::directory().join("nvml-waits").exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let all = [device].into_iter().chain(device.instances());
    all.flat_map(|device| {
        let processes = device.processes().into_iter().filter_map(shown);
        processes.map(move |process| Found(device, process))
    })
    .collect()
}

/// Returns what is told of a process, if anything is, as the quirks want it.
fn shown(process: simgpu::Process) -> Option<simgpu::Process> {
    if Quirk::NvmlMissing.is_on() || Quirk::NvmlLate.is_on() && is_late(process.pid) {
        return None;
    }
    let is_hidden = Quirk::NvmlZero.is_on();
    Some(simgpu::Process {
        used: if is_hidden { 0 } else { process.used },
        ..process
    })
}

/// How long a process is not listed after it was first there.
const LATE: Duration = Duration::from_millis(500);

/// Returns whether a process was first there less than [`LATE`] ago.
fn is_late(pid: c_uint) -> bool {
    static FIRST: Mutex<BTreeMap<c_uint, Instant>> = Mutex::new(BTreeMap::new());
    let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    first.entry(pid).or_insert_with(Instant::now).elapsed() < LATE
}

/// Number of values of `nvmlProcessMode_t`: compute, graphics and MPS.
const MODES: c_uint = 3;
const COMPUTE: c_uint = 0;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessV1 {
    pid: c_uint,
    used: u64,
}

/// `nvmlProcessInfo_v2_t`, also version 3 except with [`Driver::has_long_processes`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessV2 {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlProcessDetail_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Detail {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
    used_protected: u64,
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DetailList {
    version: c_uint,
    mode: c_uint,
    count: c_uint,
    list: Out<Detail>,
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pid: c_uint,
    time_usec: u64,
    sm: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SampleInfo {
    time_usec: u64,
    pid: c_uint,
    sm: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
    jpeg: c_uint,
    ofa: c_uint,
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SampleList {
    version: c_uint,
    count: c_uint,
    last_seen_usec: u64,
    list: Out<SampleInfo>,
}

impl From<Found<'_>> for ProcessV1 {
    fn from(Found(_, process): Found<'_>) -> Self {
        Self {
            pid: process.pid,
            used: process.used,
        }
    }
}

impl From<Found<'_>> for ProcessV2 {
    fn from(found: Found<'_>) -> Self {
        let (gpu_instance, compute_instance) = found.instances();
        let simgpu::Process { pid, used, .. } = found.1;
        Self {
            pid,
            used,
            gpu_instance,
            compute_instance,
        }
    }
}

impl From<Found<'_>> for Detail {
    fn from(found: Found<'_>) -> Self {
        let (gpu_instance, compute_instance) = found.instances();
        let simgpu::Process { pid, used, .. } = found.1;
        Self {
            pid,
            used,
            gpu_instance,
            compute_instance,
            used_protected: 0,
        }
    }
}

/// Returns a list in NVML's way: on input `count` is the capacity, on output the number of entries; if they
/// do not fit, nothing else is written.
pub(crate) fn put_list<T: Copy>(list: &[T], count: Out<c_uint>, into: Out<T>) -> Result {
    let room = count.get()?;
    let there = c_uint::try_from(list.len()).unwrap_or(c_uint::MAX);
    count.put(there)?;
    if there > room {
        return Err(Error::InsufficientSize);
    }
    into.put_all(list)
}

fn put_processes<T>(device: Device<'_>, count: Out<c_uint>, into: Out<T>) -> Result
where
    T: Copy + for<'a> From<Found<'a>>,
{
    let list: Vec<T> = found(device).into_iter().map(T::from).collect();
    put_list(&list, count, into)
}

/// Returns the samples newer than a time given by the caller: one per process that has worked recently.
fn samples(device: Device<'_>, last_seen_usec: u64) -> Result<Vec<SampleInfo>> {
    let time_usec = sample::now_usec();
    if time_usec <= last_seen_usec {
        return Err(Error::NotFound);
    }
    let sample = |(pid, sm)| SampleInfo {
        time_usec,
        pid,
        sm,
        memory: 0,
        encoder: 0,
        decoder: 0,
        jpeg: 0,
        ofa: 0,
    };
    let samples: Vec<SampleInfo> = sample::busy(device).by_pid.into_iter().map(sample).collect();
    if samples.is_empty() {
        Err(Error::NotFound)
    } else {
        Ok(samples)
    }
}

nvml! {
    fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: Out<c_uint>, list: Out<ProcessV1>) =>
        |machine| put_processes(device.device(machine)?, count, list);

    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: Out<c_uint>, list: Out<ProcessV2>) =>
        |machine| put_processes(device.device(machine)?, count, list);

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, list: Out<ProcessV2>) => |machine| {
        let device = device.device(machine)?;
        if Driver::of_process().has_long_processes() {
            put_processes(device, count, list.cast::<Detail>())
        } else {
            put_processes(device, count, list)
        }
    };

    fn nvmlDeviceGetGraphicsRunningProcesses | nvmlDeviceGetMPSComputeRunningProcesses (
        device: Handle,
        count: Out<c_uint>,
        list: Out<ProcessV1>,
    ) => |machine| device.device(machine).and_then(|_| put_list(&[], count, list));

    fn nvmlDeviceGetGraphicsRunningProcesses_v2 | nvmlDeviceGetGraphicsRunningProcesses_v3
        | nvmlDeviceGetMPSComputeRunningProcesses_v2 | nvmlDeviceGetMPSComputeRunningProcesses_v3 (
        device: Handle,
        count: Out<c_uint>,
        list: Out<ProcessV2>,
    ) => |machine| device.device(machine).and_then(|_| put_list(&[], count, list));

    fn nvmlDeviceGetRunningProcessDetailList(device: Handle, list: Out<DetailList>) => |machine| {
        let device = device.device(machine)?;
        let asked = list.get()?;
        if asked.version != version::<DetailList>(1) {
            return Err(Error::VersionMismatch);
        }
        let found: Vec<Detail> = match asked.mode {
            COMPUTE => self::found(device).into_iter().map(Detail::from).collect(),
            mode if mode < MODES => Vec::new(),
            _ => return Err(Error::InvalidArgument),
        };
        let mut count = asked.count;
        let result = put_list(&found, Out::to(&mut count), asked.list);
        list.put(DetailList { count, ..asked }).and(result)
    };

    fn nvmlDeviceGetProcessUtilization(
        device: Handle,
        list: Out<Sample>,
        count: Out<c_uint>,
        last_seen_usec: u64,
    ) => |machine| {
        let found = samples(device.undivided(machine)?, last_seen_usec)?;
        let found: Vec<Sample> = found
            .into_iter()
            .map(|SampleInfo { time_usec, pid, sm, .. }| Sample {
                pid,
                time_usec,
                sm,
                memory: 0,
                encoder: 0,
                decoder: 0,
            })
            .collect();
        put_list(&found, count, list)
    };

    fn nvmlDeviceGetProcessesUtilizationInfo(device: Handle, list: Out<SampleList>) => |machine| {
        let device = device.undivided(machine)?;
        let asked = list.get()?;
        if asked.version != version::<SampleList>(1) {
            return Err(Error::VersionMismatch);
        }
        let mut count = asked.count;
        let found = samples(device, asked.last_seen_usec)?;
        let result = put_list(&found, Out::to(&mut count), asked.list);
        list.put(SampleList { count, ..asked }).and(result)
    };
}
