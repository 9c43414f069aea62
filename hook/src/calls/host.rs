//! Page-locked host memory: counted for `memory.stat`, not charged, since it takes no device memory.

use std::ffi::c_void;

use gcgroup_abi::Kind;

use crate::driver::cuda::CUresult;
use crate::driver::interpose::Next;
use crate::driver::out_pointer::written;
use crate::hook::{self, Hook};
use crate::memory::ledger::Entry;

fn remember(hook: &Hook, address: *mut c_void, bytes: u64) {
    if let Some(target) = hook.program.target() {
        let entry = Entry::new(Kind::Host, bytes, target.local, target.index, target.context);
        hook.memory
            .remember(&hook.memory.host, address.expose_provenance() as u64, entry);
    }
}

/// `cuMemHostAlloc`, `cuMemAllocHost`.
pub(crate) fn alloc(address: *mut *mut c_void, bytes: impl Into<u64>, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(address)) = (hook::get(), written(address)) {
        remember(hook, address, bytes.into());
    }
    Ok(())
}

/// `cuMemHostRegister`: pins memory of the program.
pub(crate) fn register(address: *mut c_void, bytes: impl Into<u64>, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(hook) = hook::get() {
        remember(hook, address, bytes.into());
    }
    Ok(())
}

/// `cuMemFreeHost`, `cuMemHostUnregister`.
pub(crate) fn free(address: *mut c_void, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    hook.memory
        .free(&hook.memory.host, address.addr() as u64, next)
        .result
}
