//! Utilization by process and NVML's accounting: a limited process sees only itself.

use std::ffi::c_uint;

use super::list::{Whole, put};
use super::seen::{Own, Seen};
use crate::driver;
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::interpose::Next;
use crate::driver::nvml::{
    ROOM, nvmlAccountingStats_t, nvmlAccountingStats_v2_t, nvmlDevice_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_v1_t, version,
};
use crate::driver::out_pointer;

/// `nvmlDeviceGetProcessUtilization`.
pub(crate) fn samples(
    of: nvmlDevice_t,
    into: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen: u64,
    next: Next<'_>,
) -> CUresult {
    match Seen::on(of)? {
        Some(seen) if !count.is_null() => {
            let whole =
                Whole::of(|count, into| driver::nvmlDeviceGetProcessUtilization(of, into, count, last_seen));
            put_worked(whole?.own(seen.own), count, into)
        }
        _ => next(),
    }
}

/// `nvmlDeviceGetProcessesUtilizationInfo`.
pub(crate) fn infos(
    of: nvmlDevice_t,
    list: *mut nvmlProcessesUtilizationInfo_v1_t,
    next: Next<'_>,
) -> CUresult {
    let known = version::<nvmlProcessesUtilizationInfo_v1_t>(1);
    let asked = out_pointer::argument(list).filter(|asked| asked.version == known);
    let (Some(seen), Some(asked)) = (Seen::on(of)?, asked) else {
        return next();
    };
    let whole = Whole::of(|count, into: &mut [nvmlProcessUtilizationInfo_v1_t; ROOM]| {
        let mut all = nvmlProcessesUtilizationInfo_v1_t {
            processSamplesCount: *count,
            procUtilArray: into.as_mut_ptr(),
            ..asked
        };
        let answer = driver::nvmlDeviceGetProcessesUtilizationInfo(of, &mut all);
        *count = all.processSamplesCount;
        answer
    });
    let mut count = asked.processSamplesCount;
    let answer = put_worked(whole?.own(seen.own), &raw mut count, asked.procUtilArray);
    out_pointer::rewrite(list, |told| nvmlProcessesUtilizationInfo_v1_t {
        processSamplesCount: count,
        ..told
    });
    answer
}

/// Writes samples to the program by NVML's rules for them: an empty list is "not found", and with a null
/// array only their number is returned.
fn put_worked<T: Copy>(samples: Vec<T>, count: *mut c_uint, into: *mut T) -> CUresult {
    if samples.is_empty() {
        return Err(CUerror::NVML_NOT_FOUND);
    }
    if into.is_null() {
        out_pointer::answer(count, 0);
    }
    put(&samples, count, into)
}

/// `nvmlDeviceGetAccountingPids`.
pub(crate) fn pids(of: nvmlDevice_t, count: *mut c_uint, into: *mut c_uint, next: Next<'_>) -> CUresult {
    match Seen::on(of)? {
        Some(seen) if !count.is_null() => {
            let whole = Whole::of(|count, into| driver::nvmlDeviceGetAccountingPids(of, count, into));
            put(&whole?.own(seen.own), count, into)
        }
        _ => next(),
    }
}

/// `nvmlDeviceGetAccountingStats`: of the process itself, by its own pid.
pub(crate) fn stats(
    of: nvmlDevice_t,
    pid: c_uint,
    into: *mut nvmlAccountingStats_t,
    next: Next<'_>,
) -> CUresult {
    let Some(seen) = Seen::on(of)?.filter(|_| !into.is_null()) else {
        return next();
    };
    let mut told = nvmlAccountingStats_t::EMPTY;
    first_known(seen.own, pid, |pid| {
        driver::nvmlDeviceGetAccountingStats(of, pid, &mut told)
    })?;
    told.maxMemoryUsage = seen.peak;
    out_pointer::answer(into, told);
    Ok(())
}

/// `nvmlDeviceGetAccountingStats_v2`: the structure contains the pid.
pub(crate) fn stats_v2(of: nvmlDevice_t, into: *mut nvmlAccountingStats_v2_t, next: Next<'_>) -> CUresult {
    let (Some(seen), Some(asked)) = (Seen::on(of)?, out_pointer::argument(into)) else {
        return next();
    };
    let mut told = asked;
    first_known(seen.own, asked.pid, |pid| {
        told.pid = pid;
        driver::nvmlDeviceGetAccountingStats_v2(of, &mut told)
    })?;
    told.pid = asked.pid;
    told.maxMemoryUsage = seen.peak;
    out_pointer::answer(into, told);
    Ok(())
}

/// Asks by each pid under which NVML may know the process; other pids are not found.
fn first_known(own: Own, pid: c_uint, mut ask: impl FnMut(c_uint) -> CUresult) -> CUresult {
    if pid != own.pid {
        return Err(CUerror::NVML_NOT_FOUND);
    }
    match ask(own.pid) {
        Err(CUerror::NVML_NOT_FOUND) if own.outside != 0 && own.outside != own.pid => ask(own.outside),
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounting_finds_own_process_by_either_pid_only() {
        let own = Own { pid: 7, outside: 700 };
        let ask = |known: c_uint| {
            move |pid: c_uint| {
                if pid == known {
                    Ok(())
                } else {
                    Err(CUerror::NVML_NOT_FOUND)
                }
            }
        };
        assert_eq!(first_known(own, 7, ask(7)), Ok(()));
        assert_eq!(first_known(own, 7, ask(700)), Ok(()));
        assert_eq!(first_known(own, 700, ask(700)), Err(CUerror::NVML_NOT_FOUND));
        assert_eq!(first_known(own, 1, ask(1)), Err(CUerror::NVML_NOT_FOUND));
        let disabled = |_| Err(CUerror::NOT_INITIALIZED);
        assert_eq!(first_known(own, 7, disabled), Err(CUerror::NOT_INITIALIZED));
    }
}
