//! Process lists of a device: a limited process sees only itself, by its own pid and with its
//! `memory.current`.

use std::ffi::c_uint;

use super::list::{Whole, put};
use super::seen::Seen;
use crate::driver;
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::interpose::Next;
use crate::driver::nvml::{
    Holder, ROOM, nvmlDevice_t, nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1_t, version,
};
use crate::driver::out_pointer::{argument, rewrite};

/// The NVML function that returns the list.
type Ask<T> = fn(nvmlDevice_t, &mut c_uint, &mut [T; ROOM]) -> CUresult;

/// Value of `nvmlProcessDetailList_v1_t::mode` for compute processes.
const COMPUTE: u32 = 0;

/// `nvmlDeviceGetComputeRunningProcesses` (`computes`), `nvmlDeviceGetGraphicsRunningProcesses` and
/// `nvmlDeviceGetMPSComputeRunningProcesses`, all versions.
pub(crate) fn running<T: Holder>(
    of: nvmlDevice_t,
    count: *mut c_uint,
    into: *mut T,
    ask: Ask<T>,
    computes: bool,
    next: Next<'_>,
) -> CUresult {
    match Seen::on(of)? {
        Some(seen) if !count.is_null() => {
            let whole = Whole::of(|count, into| ask(of, count, into));
            put(&own(whole, seen, computes)?, count, into)
        }
        _ => next(),
    }
}

/// `nvmlDeviceGetRunningProcessDetailList`.
pub(crate) fn details(of: nvmlDevice_t, list: *mut nvmlProcessDetailList_v1_t, next: Next<'_>) -> CUresult {
    let asked = argument(list).filter(|asked| asked.version == version::<nvmlProcessDetailList_v1_t>(1));
    let (Some(seen), Some(asked)) = (Seen::on(of)?, asked) else {
        return next();
    };
    let whole = Whole::of(|count, into: &mut [nvmlProcessDetail_v1_t; ROOM]| {
        let mut all = nvmlProcessDetailList_v1_t {
            numProcArrayEntries: *count,
            procArray: into.as_mut_ptr(),
            ..asked
        };
        let answer = driver::nvmlDeviceGetRunningProcessDetailList(of, &mut all);
        *count = all.numProcArrayEntries;
        answer
    });
    let own = own(whole, seen, asked.mode == COMPUTE)?;
    let mut count = asked.numProcArrayEntries;
    let answer = put(&own, &raw mut count, asked.procArray);
    rewrite(list, |told| nvmlProcessDetailList_v1_t {
        numProcArrayEntries: count,
        ..told
    });
    answer
}

/// Returns what the process sees of a list. If NVML does not list the process (from within a container) or
/// lists too many, it is shown as a compute process if it has memory on the device.
fn own<T: Holder>(whole: Result<Whole<T>, CUerror>, seen: Seen, computes: bool) -> Result<Vec<T>, CUerror> {
    let mut own = match whole {
        Ok(whole) => whole.own(seen.own),
        Err(CUerror::NVML_INSUFFICIENT_SIZE) => Vec::new(),
        Err(other) => return Err(other),
    };
    if own.is_empty() && computes && seen.current > 0 {
        own.push(T::EMPTY.with_pid(seen.own.pid));
    }
    Ok(own
        .into_iter()
        .map(|entry| entry.with_memory(seen.current))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::super::seen::Own;
    use super::*;
    use crate::calls::visible::Visible;
    use crate::driver::nvml::nvmlProcessInfo_v2_t;

    fn seen(current: u64) -> Seen {
        Seen {
            visible: Visible::limit(1000),
            current,
            own: Own { pid: 7, outside: 700 },
        }
    }

    const OTHER: nvmlProcessInfo_v2_t = nvmlProcessInfo_v2_t {
        pid: 1,
        usedGpuMemory: 5000,
        gpuInstanceId: 3,
        computeInstanceId: 4,
    };

    fn told(entries: &[nvmlProcessInfo_v2_t], current: u64, computes: bool) -> Vec<nvmlProcessInfo_v2_t> {
        let whole = Whole::of(|count, into| {
            into[..entries.len()].copy_from_slice(entries);
            *count = c_uint::try_from(entries.len()).unwrap();
            Ok(())
        });
        own(whole, seen(current), computes).unwrap()
    }

    #[test]
    fn process_sees_itself_with_its_charged_memory() {
        let itself = nvmlProcessInfo_v2_t {
            pid: 700,
            usedGpuMemory: 64,
            ..OTHER
        };
        let want = nvmlProcessInfo_v2_t {
            pid: 7,
            usedGpuMemory: 100,
            ..OTHER
        };
        assert_eq!(told(&[OTHER, itself], 100, true), [want]);
        assert_eq!(told(&[OTHER, itself], 100, false), [want], "a graphics program");
        assert_eq!(told(&[itself], 0, true).len(), 1, "it has a context");
    }

    #[test]
    fn process_unknown_to_nvml_is_listed_where_it_has_memory() {
        let want = nvmlProcessInfo_v2_t {
            pid: 7,
            usedGpuMemory: 100,
            ..nvmlProcessInfo_v2_t::EMPTY
        };
        assert_eq!(told(&[OTHER], 100, true), [want]);
        assert!(told(&[OTHER], 100, false).is_empty());
        assert!(told(&[OTHER], 0, true).is_empty());
        let too_many = Err(CUerror::NVML_INSUFFICIENT_SIZE);
        assert_eq!(own(too_many, seen(100), true), Ok(vec![want]));
    }

    #[test]
    fn error_of_nvml_is_passed_on() {
        let lost = Err::<Whole<nvmlProcessInfo_v2_t>, _>(CUerror::NVML_NOT_FOUND);
        assert_eq!(own(lost, seen(100), true), Err(CUerror::NVML_NOT_FOUND));
    }
}
