//! Memory of other processes and other drivers: shown as `ipc`, charged to the process that made it.

use std::ffi::c_void;

use gcgroup_abi::Kind;

use crate::driver;
use crate::driver::cuda::{CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUdeviceptr, CUexternalMemory, CUresult};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{argument, written};
use crate::hook::{self, Hook};
use crate::memory::ledger::Entry;

/// Makes an entry for memory whose size the driver knows.
fn entry_at(hook: &Hook, address: CUdeviceptr) -> Option<Entry> {
    let target = hook.program.target()?;
    let (mut base, mut bytes) = (CUdeviceptr(0), 0);
    driver::cuMemGetAddressRange_v2(&mut base, &mut bytes, address).ok()?;
    let entry = Entry::new(
        Kind::Ipc,
        bytes as u64,
        target.local,
        target.index,
        target.context,
    );
    Some(entry)
}

/// `cuIpcGetMemHandle`.
pub(crate) fn export(address: CUdeviceptr, next: Next<'_>) -> CUresult {
    // Before the call: the process may end, or another thread free the memory, as soon as it is shared.
    if let Some(hook) = hook::get() {
        hook.memory.share_block(address);
    }
    next()
}

/// `cuIpcOpenMemHandle`.
pub(crate) fn open(address: *mut CUdeviceptr, next: Next<'_>) -> CUresult {
    next()?;
    if let Some((hook, address)) = hook::get().zip(written(address))
        && let Some(mut entry) = entry_at(hook, address)
    {
        hook.memory.follow(&mut entry);
        let first = || {
            hook.memory.share(&mut entry);
            entry
        };
        if let Some(first) = hook.memory.opened.open(address.0, first) {
            hook.memory.count_in(&first);
        }
    }
    Ok(())
}

/// `cuIpcCloseMemHandle`.
pub(crate) fn close(address: CUdeviceptr, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(hook) = hook::get()
        && let Some(closed) = hook.memory.opened.close(address.0)
    {
        hook.memory.discharge(address.0, &closed);
    }
    Ok(())
}

/// `cuMemPoolImportPointer`: freed by the same calls as allocations from a pool of this process.
pub(crate) fn import_pointer(address: *mut CUdeviceptr, next: Next<'_>) -> CUresult {
    next()?;
    if let Some((hook, address)) = hook::get().zip(written(address))
        && let Some(entry) = entry_at(hook, address)
    {
        hook.memory.remember(&hook.memory.blocks, address.0, entry);
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
    if let Some(hook) = hook::get()
        && let (Some(memory), Some(description), Some(target)) =
            (written(memory), argument(description), hook.program.target())
    {
        let entry = Entry::new(
            Kind::Ipc,
            description.size,
            target.local,
            target.index,
            target.context,
        );
        hook.memory.remember(&hook.memory.external, key(memory), entry);
    }
    Ok(())
}

/// `cuDestroyExternalMemory`.
pub(crate) fn destroy_external(memory: CUexternalMemory, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    hook.memory.free(&hook.memory.external, key(memory), next).result
}

fn key(memory: CUexternalMemory) -> u64 {
    let pointer: *mut c_void = memory.0;
    pointer.addr() as u64
}
