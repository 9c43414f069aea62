//! Utilization of the devices: current value and past samples.

use core::ffi::c_uint;

use crate::call::{Error, Handle, Out, nvml};
use crate::sample;

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlSample_t`; the value is a union of eight bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    time_usec: u64,
    value: u64,
}

/// The values of `nvmlSamplingType_t` that a simulated device supports: GPU, memory, encoder and decoder.
const OF_GPU: c_uint = 1;
const OF_MEMORY: c_uint = 2;
const OF_ENCODER: c_uint = 3;
const OF_DECODER: c_uint = 4;

/// `nvmlValueType_t`: an unsigned int.
const UNSIGNED: c_uint = 1;

/// Sampling period of the idle engines, in microseconds.
const PERIOD_USEC: c_uint = 1_000_000;

nvml! {
    /// Returns the share of the last second in which the device worked; not supported with MIG. Memory
    /// traffic is not simulated.
    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: Out<Utilization>) => |machine| {
        let gpu = sample::busy(device.undivided(machine)?).all;
        rates.put(Utilization { gpu, memory: 0 })
    };

    /// Only kernels and copies are simulated: the other engines are idle.
    fn nvmlDeviceGetEncoderUtilization | nvmlDeviceGetDecoderUtilization | nvmlDeviceGetJpgUtilization
        | nvmlDeviceGetOfaUtilization (device: Handle, share: Out<c_uint>, period: Out<c_uint>) => |machine| {
        device.device(machine)?;
        share.put(0)?;
        period.put(PERIOD_USEC)
    };

    /// With a null pointer only returns the number of samples.
    fn nvmlDeviceGetSamples(
        device: Handle,
        kind: c_uint,
        last_seen_usec: u64,
        value_type: Out<c_uint>,
        count: Out<c_uint>,
        samples: Out<Sample>,
    ) => |machine| {
        let device = device.undivided(machine)?;
        let room = count.get()?;
        let share = |percent: u32| match kind {
            OF_GPU => Ok(u64::from(percent)),
            OF_MEMORY | OF_ENCODER | OF_DECODER => Ok(0),
            _ => Err(Error::NotSupported),
        };
        share(0)?;
        value_type.put(UNSIGNED)?;
        let mut found = Vec::new();
        for (time_usec, percent) in sample::history(device, last_seen_usec) {
            found.push(Sample { time_usec, value: share(percent)? });
        }
        if found.is_empty() {
            return Err(Error::NotFound);
        }
        let there = c_uint::try_from(found.len()).unwrap_or(c_uint::MAX);
        if samples.is_null() {
            return count.put(there);
        }
        if room == 0 {
            return Err(Error::InvalidArgument);
        }
        // The newest samples, if there is not room for all.
        let first = found.len().saturating_sub(room as usize);
        count.put(there.min(room))?;
        samples.put_all(&found[first..])
    };
}
