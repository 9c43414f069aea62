//! Memory of other processes and other drivers: shown as `ipc`, charged to the process that made it.

use std::ffi::c_void;

use gcgroup_abi::Kind;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::ledger::Entry;
use crate::cuda::{CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUdeviceptr, CUexternalMemory, CUresult};
use crate::driver;
use crate::interpose::Next;
use crate::place::{given, written};
use crate::process::{self, Process};

/// Opened memory by address with the number of openings: the driver returns the same address for each.
#[derive(Debug, Default)]
pub(crate) struct Opened(Mutex<HashMap<u64, (Entry, u32)>>);

impl Opened {
    /// Counts an opening; returns the entry if it is the first.
    fn open(&self, address: u64, entry: impl FnOnce() -> Entry) -> Option<Entry> {
        let mut opened = self.0.lock();
        let (entry, count) = opened.entry(address).or_insert_with(|| (entry(), 0));
        *count += 1;
        (*count == 1).then_some(*entry)
    }

    /// Counts a closing; returns the entry if it was the last.
    fn close(&self, address: u64) -> Option<Entry> {
        let mut opened = self.0.lock();
        let (_, count) = opened.get_mut(&address)?;
        *count -= 1;
        (*count == 0)
            .then(|| opened.remove(&address))?
            .map(|(entry, _)| entry)
    }

    /// Removes and returns what a context had opened.
    pub(super) fn context_gone(&self, context: u32) -> Vec<Entry> {
        let mut opened = self.0.lock();
        let gone = opened.extract_if(|_, (entry, _)| entry.owner == context);
        gone.map(|(_, (entry, _))| entry).collect()
    }

    pub(super) fn renumber(&self, process: &Process) {
        for (entry, _) in self.0.lock().values_mut() {
            process.follow(entry);
        }
    }
}

/// Makes an entry for memory whose size the driver knows.
fn entry_at(process: &Process, address: CUdeviceptr) -> Option<Entry> {
    let place = process.place()?;
    let (mut base, mut bytes) = (CUdeviceptr(0), 0);
    driver::cuMemGetAddressRange_v2(&mut base, &mut bytes, address).ok()?;
    let entry = Entry::new(Kind::Ipc, bytes as u64, place.local, place.index, place.context);
    Some(entry)
}

/// `cuIpcOpenMemHandle`.
pub(crate) fn open(address: *mut CUdeviceptr, next: Next<'_>) -> CUresult {
    next()?;
    if let Some((process, address)) = process::get().zip(written(address))
        && let Some(mut entry) = entry_at(process, address)
    {
        process.follow(&mut entry);
        if let Some(first) = process.memory.opened.open(address.0, || entry) {
            process.count_in(&first);
        }
    }
    Ok(())
}

/// `cuIpcCloseMemHandle`.
pub(crate) fn close(address: CUdeviceptr, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(process) = process::get()
        && let Some(closed) = process.memory.opened.close(address.0)
    {
        process.discharge(&closed);
    }
    Ok(())
}

/// `cuMemPoolImportPointer`: freed by the same calls as allocations from a pool of this process.
pub(crate) fn import_pointer(address: *mut CUdeviceptr, next: Next<'_>) -> CUresult {
    next()?;
    if let Some((process, address)) = process::get().zip(written(address))
        && let Some(entry) = entry_at(process, address)
    {
        process.remember(&process.memory.blocks, address.0, entry);
    }
    Ok(())
}

/// `cuImportExternalMemory`: memory of another driver; its size is taken from the description.
pub(crate) fn import_external(
    memory: *mut CUexternalMemory,
    description: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    next: Next<'_>,
) -> CUresult {
    next()?;
    if let Some(process) = process::get()
        && let (Some(memory), Some(description), Some(place)) =
            (written(memory), given(description), process.place())
    {
        let entry = Entry::new(
            Kind::Ipc,
            description.size,
            place.local,
            place.index,
            place.context,
        );
        process.remember(&process.memory.external, key(memory), entry);
    }
    Ok(())
}

/// `cuDestroyExternalMemory`.
pub(crate) fn destroy_external(memory: CUexternalMemory, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    process.free(&process.memory.external, key(memory), next).result
}

fn key(memory: CUexternalMemory) -> u64 {
    let pointer: *mut c_void = memory.0;
    pointer.addr() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LocalDevice;

    #[test]
    fn memory_opened_twice_is_shown_once_until_closed_twice() {
        let opened = Opened::default();
        let entry = |context| Entry::new(Kind::Ipc, 10, LocalDevice::of(0).unwrap(), 0, context);
        assert_eq!(opened.open(7, || entry(1)), Some(entry(1)));
        assert_eq!(opened.open(7, || entry(1)), None);
        assert_eq!(opened.close(7), None);
        assert_eq!(opened.close(7), Some(entry(1)));
        assert_eq!(opened.close(7), None, "left to the driver");
        opened.open(8, || entry(1));
        opened.open(9, || entry(2));
        assert_eq!(opened.context_gone(1), [entry(1)]);
        assert_eq!(opened.close(9), Some(entry(2)));
    }
}
