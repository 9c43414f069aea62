//! Page-locked host memory: counted for `memory.stat`, not charged, since it takes no device memory.

use std::ffi::c_void;

use gcgroup_abi::Kind;

use crate::driver::cuda::CUresult;
use crate::driver::interpose::Next;
use crate::driver::out_pointer::written;
use crate::hook::{self, Process};
use crate::memory::ledger::Entry;

fn remember(process: &Process, address: *mut c_void, bytes: u64) {
    if let Some(place) = process.program.place() {
        let entry = Entry::new(Kind::Host, bytes, place.local, place.index, place.context);
        process
            .memory
            .remember(&process.memory.host, address.expose_provenance() as u64, entry);
    }
}

/// `cuMemHostAlloc`, `cuMemAllocHost`.
pub(crate) fn alloc(address: *mut *mut c_void, bytes: impl Into<u64>, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(process), Some(address)) = (hook::get(), written(address)) {
        remember(process, address, bytes.into());
    }
    Ok(())
}

/// `cuMemHostRegister`: pins memory of the program.
pub(crate) fn register(address: *mut c_void, bytes: impl Into<u64>, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(process) = hook::get() {
        remember(process, address, bytes.into());
    }
    Ok(())
}

/// `cuMemFreeHost`, `cuMemHostUnregister`.
pub(crate) fn free(address: *mut c_void, next: Next<'_>) -> CUresult {
    let Some(process) = hook::get() else {
        return next();
    };
    process
        .memory
        .free(&process.memory.host, address.addr() as u64, next)
        .result
}
