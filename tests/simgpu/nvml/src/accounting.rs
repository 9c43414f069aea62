//! Accounting of each process's use of a device over its lifetime, while enabled.

use core::ffi::c_uint;

use simgpu::{Device, Life, MAX_LIVES};

use crate::call::{Error, Handle, Out, Result, nvml};
use crate::process::put_list;

/// `nvmlAccountingStats_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Stats {
    /// Percentage of the lifetime in which the device worked for the process.
    gpu: c_uint,
    memory: c_uint,
    peak: u64,
    /// Lifetime in milliseconds; 0 while the process is running.
    time_msec: u64,
    began_usec: u64,
    is_running: c_uint,
    reserved: [c_uint; 5],
}

impl From<Life> for Stats {
    fn from(life: Life) -> Self {
        let share = (life.busy_ns / 10)
            .checked_div(life.lasted_usec)
            .unwrap_or(0)
            .min(100);
        Stats {
            gpu: c_uint::try_from(share).unwrap_or(100),
            memory: 0,
            peak: life.peak,
            time_msec: if life.is_running {
                0
            } else {
                life.lasted_usec / 1000
            },
            began_usec: life.began_usec,
            is_running: c_uint::from(life.is_running),
            reserved: [0; 5],
        }
    }
}

/// Returns the accounted lifetimes, living processes before dead ones with the same pid.
fn lives(device: Device<'_>) -> Result<Vec<Life>> {
    if !device.remembers() {
        return Err(Error::NotSupported);
    }
    let mut lives = device.lives();
    lives.sort_unstable_by_key(|life| (life.pid, !life.is_running, u64::MAX - life.began_usec));
    lives.dedup_by_key(|life| life.pid);
    Ok(lives)
}

fn check_root() -> Result {
    // SAFETY: geteuid has no arguments and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        Ok(())
    } else {
        Err(Error::NoPermission)
    }
}

nvml! {
    fn nvmlDeviceGetAccountingMode(device: Handle, mode: Out<c_uint>) =>
        |machine| mode.put(c_uint::from(device.device(machine)?.remembers()));

    fn nvmlDeviceSetAccountingMode(device: Handle, mode: c_uint) => |machine| {
        let device = device.device(machine)?;
        if mode > 1 {
            return Err(Error::InvalidArgument);
        }
        check_root()?;
        device.remember(mode == 1);
        Ok(())
    };

    fn nvmlDeviceClearAccountingPids(device: Handle) => |machine| {
        let device = device.device(machine)?;
        check_root()?;
        device.forget();
        Ok(())
    };

    fn nvmlDeviceGetAccountingBufferSize(device: Handle, size: Out<c_uint>) => |machine| {
        device.device(machine)?;
        size.put(c_uint::try_from(MAX_LIVES).unwrap_or(c_uint::MAX))
    };

    fn nvmlDeviceGetAccountingPids(device: Handle, count: Out<c_uint>, pids: Out<c_uint>) => |machine| {
        let lives = lives(device.device(machine)?)?;
        let list: Vec<c_uint> = lives.iter().map(|life| life.pid).collect();
        put_list(&list, count, pids)
    };

    fn nvmlDeviceGetAccountingStats(device: Handle, pid: c_uint, stats: Out<Stats>) => |machine| {
        let lives = lives(device.device(machine)?)?;
        let life = lives.iter().find(|life| life.pid == pid).ok_or(Error::NotFound)?;
        stats.put(Stats::from(*life))
    };
}
