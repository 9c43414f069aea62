//! Lists of NVML, reduced to the process's own entries and returned by NVML's rules.

use std::ffi::c_uint;

use super::seen::Own;
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::nvml::{Entry, ROOM};
use crate::driver::out_pointer::{answer, argument};

#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const TOLD: c_uint = ROOM as c_uint;

/// A complete list, independent of the room that the program offers.
#[derive(Debug)]
pub(super) struct Whole<T>(Vec<T>);

impl<T: Entry> Whole<T> {
    /// Calls `ask` with the number of entries that there is room for; `ask` fills them in and sets the
    /// number.
    pub(super) fn of(ask: impl FnOnce(&mut c_uint, &mut [T; ROOM]) -> CUresult) -> Result<Self, CUerror> {
        let mut entries = vec![T::EMPTY; ROOM];
        let mut count = TOLD;
        let array = entries.as_mut_slice().try_into();
        ask(&mut count, array.map_err(|_| CUerror::NVML_INSUFFICIENT_SIZE)?)?;
        entries.truncate(count.min(TOLD) as usize);
        Ok(Self(entries))
    }

    /// Returns the process's own entries, with the pid by which it knows itself.
    pub(super) fn own(self, own: Own) -> Vec<T> {
        let is = |pid: u32| move |entry: &T| pid != 0 && entry.pid() == pid;
        // NVML may report pids of the caller's namespace or of the machine. In another namespace either
        // number may be another process's, so the second is used only if the first is not listed.
        let pid = [own.pid, own.outside]
            .into_iter()
            .find(|pid| self.0.iter().any(is(*pid)));
        let entries = self.0.into_iter().filter(is(pid.unwrap_or(0)));
        entries.map(|entry| entry.with_pid(own.pid)).collect()
    }
}

/// Returns a list to the program. `count` (not null) has the room in entries and receives the length; if the
/// list is longer, nothing else is written.
///
/// # Errors
/// `NVML_ERROR_INSUFFICIENT_SIZE` if there is too little room, `NVML_ERROR_INVALID_ARGUMENT` if `into` is
/// null and the list is not empty.
pub(super) fn put<T: Copy>(list: &[T], count: *mut c_uint, into: *mut T) -> CUresult {
    let room = argument(count).unwrap_or(0) as usize;
    answer(count, c_uint::try_from(list.len()).unwrap_or(c_uint::MAX));
    if list.len() > room {
        return Err(CUerror::NVML_INSUFFICIENT_SIZE);
    }
    if into.is_null() && !list.is_empty() {
        return Err(CUerror::NVML_INVALID_ARGUMENT);
    }
    for (index, entry) in list.iter().enumerate() {
        answer(into.wrapping_add(index), *entry);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    fn whole(pids: &[u32]) -> Whole<u32> {
        Whole::of(|count, into| {
            assert_eq!(*count, TOLD);
            into[..pids.len()].copy_from_slice(pids);
            *count = u32::try_from(pids.len()).unwrap();
            Ok(())
        })
        .unwrap()
    }

    #[test]
    fn only_own_entries_remain_with_the_own_pid() {
        let own = Own { pid: 7, outside: 700 };
        assert_eq!(whole(&[1, 7, 2]).own(own), [7]);
        assert_eq!(whole(&[1, 700, 2]).own(own), [7], "the machine's pid");
        assert_eq!(whole(&[700, 7]).own(own), [7], "another process's");
        assert_eq!(whole(&[7, 3, 7]).own(own), [7, 7], "several samples");
        assert!(whole(&[1, 2]).own(own).is_empty());
        assert!(whole(&[0, 1]).own(Own { pid: 7, outside: 0 }).is_empty());
    }

    #[test]
    fn count_beyond_the_room_is_clamped() {
        let list = Whole::<u32>::of(|count, into| {
            into.fill(7);
            *count = u32::MAX;
            Ok(())
        });
        assert_eq!(list.unwrap().0.len(), TOLD as usize);
        let refused = Whole::<u32>::of(|_, _| Err(CUerror::NVML_NOT_FOUND));
        assert!(matches!(refused, Err(CUerror::NVML_NOT_FOUND)));
    }

    #[test]
    fn lists_are_returned_by_nvmls_rules() {
        let mut places = [0_u32; 3];
        let mut count = 0;
        let into = places.as_mut_ptr();
        assert_eq!(
            put(&[5, 6], &raw mut count, null_mut()),
            Err(CUerror::NVML_INSUFFICIENT_SIZE)
        );
        assert_eq!(count, 2, "what is needed");
        count = 1;
        assert_eq!(
            put(&[5, 6], &raw mut count, into),
            Err(CUerror::NVML_INSUFFICIENT_SIZE)
        );
        assert_eq!((count, places), (2, [0; 3]), "nothing is written");
        count = 3;
        assert_eq!(
            put(&[5, 6], &raw mut count, null_mut()),
            Err(CUerror::NVML_INVALID_ARGUMENT)
        );
        count = 3;
        let into = places.as_mut_ptr();
        assert_eq!(put(&[5, 6], &raw mut count, into), Ok(()));
        assert_eq!((count, places), (2, [5, 6, 0]));
        assert_eq!(put::<u32>(&[], &raw mut count, null_mut()), Ok(()));
        assert_eq!(count, 0);
    }
}
