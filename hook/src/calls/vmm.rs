//! Physical memory by handle (`cuMemCreate`), and multicast objects.

use gcgroup_abi::Kind;

use crate::driver;
use crate::driver::cuda::{
    CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
    CUdevice, CUdeviceptr, CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult,
};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{argument, written};
use crate::hook::{self, Hook};
use crate::memory::ledger::Entry;
use crate::memory::physical::{Binder, Gone, Region};
use crate::shared::device::LocalDevice;

/// `cuMemCreate`. Memory outside devices is shown, not charged: of the host, and of locations newer than this
/// library.
pub(crate) fn create(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    next: Next<'_>,
) -> CUresult {
    let Some((hook, properties)) = hook::get().zip(argument(properties)) else {
        return next();
    };
    let bytes = bytes as u64;
    let Some(local) = properties.location.device().and_then(LocalDevice::of) else {
        next()?;
        let kind = match properties.location.kind {
            CU_MEM_LOCATION_TYPE_HOST
            | CU_MEM_LOCATION_TYPE_HOST_NUMA
            | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Kind::Host,
            _ => Kind::Unknown,
        };
        if let (Some(handle), Some((local, index))) = (written(handle), hook.memory.somewhere()) {
            hook.memory
                .add_physical(handle, Entry::new(kind, bytes, local, index, 0));
        }
        return Ok(());
    };
    let index = hook.session.devices.learn(hook.session.control(), local);
    let (charge, sums) = hook.memory.try_charge(index, bytes)?;
    let made = hook.memory.pressing(index, bytes, next);
    made.inspect_err(|_| hook.memory.count_failure(index))?;
    if let Some(handle) = written(handle) {
        charge.keep(sums);
        hook.memory
            .add_physical(handle, Entry::new(Kind::Vmm, bytes, local, index, 0));
    }
    Ok(())
}

/// `cuMemImportFromShareableHandle`: charged to the process that created it.
pub(crate) fn import(handle: *mut CUmemGenericAllocationHandle, next: Next<'_>) -> CUresult {
    next()?;
    let (Some(hook), Some(handle)) = (hook::get(), written(handle)) else {
        return Ok(());
    };
    if hook.memory.physical(|physical, _| physical.hold_handle(handle.0)) {
        return Ok(());
    }
    let mut properties = CUmemAllocationProp::NONE;
    let is_memory = driver::cuMemGetAllocationPropertiesFromHandle(&mut properties, handle).is_ok();
    let place = match properties.location.device().and_then(LocalDevice::of) {
        Some(local) => Some((local, hook.session.devices.learn(hook.session.control(), local))),
        None => hook.memory.somewhere(),
    };
    if let Some((local, index)) = place {
        // The size is known only once it is mapped, so it is counted with 0 bytes.
        let kind = if is_memory { Kind::Ipc } else { Kind::Multicast };
        let mut entry = Entry::new(kind, 0, local, index, 0);
        hook.memory.share(&mut entry);
        hook.memory.count_unsized(&entry, 1);
        hook.memory.add_physical(handle, entry);
    }
    Ok(())
}

/// `cuMemExportToShareableHandle`.
pub(crate) fn export(handle: CUmemGenericAllocationHandle, next: Next<'_>) -> CUresult {
    // Before the call, as in `cuIpcGetMemHandle`.
    if let Some(hook) = hook::get() {
        hook.memory.share_handle(handle);
    }
    next()
}

/// `cuMemRelease`.
pub(crate) fn release(handle: CUmemGenericAllocationHandle, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    // Before the call, after which the driver may reuse the number for another thread's memory.
    let mut gone = Gone::default();
    let released = hook.memory.physical.objects.lock().release(handle.0, &mut gone);
    let Some(released) = released else {
        return next();
    };
    let _freeing = hook.memory.freeing_shared();
    let result = next();
    match result {
        Ok(()) => hook.memory.bury(&gone),
        // If it was a multicast object, its bindings are not restored.
        Err(_) => hook.memory.undo_release(handle, released),
    }
    result
}

/// `cuMemMap`.
pub(crate) fn map(
    address: CUdeviceptr,
    bytes: usize,
    handle: CUmemGenericAllocationHandle,
    next: Next<'_>,
) -> CUresult {
    // Before the call: another thread may release the handle as soon as it is mapped.
    let hold = |hook: &'static Hook| hook.memory.physical(|physical, _| physical.hold(handle.0));
    let held = hook::get().and_then(|hook| Some((hook, hold(hook)?)));
    let Some((hook, (number, is_imported))) = held else {
        return next();
    };
    let let_go = |_: &_| {
        hook.memory
            .physical(|physical, gone| physical.let_go(number, gone))
    };
    next().inspect_err(let_go)?;
    let bytes = bytes as u64;
    let more = hook.memory.physical(|physical, gone| {
        physical.map((address.0, bytes, number), gone);
        is_imported.then(|| physical.grow(number, bytes)).flatten()
    });
    if let Some(more) = more {
        hook.memory.page_counter.show(&more);
        if more.size == bytes {
            hook.memory.count_unsized(&more, 1_u64.wrapping_neg());
        }
    }
    Ok(())
}

/// `cuMemUnmap`.
pub(crate) fn unmap(address: CUdeviceptr, bytes: usize, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    // Before the call, after which another thread may map something there.
    let taken = hook
        .memory
        .physical(|physical, _| physical.take_mappings(address.0, bytes as u64));
    let _freeing = hook.memory.freeing_shared();
    let result = next();
    hook.memory.physical(|physical, gone| {
        for range @ (.., number) in taken {
            match result {
                Ok(()) => physical.let_go(number, gone),
                Err(_) => physical.map(range, gone),
            }
        }
    });
    result
}

/// `cuMemRetainAllocationHandle`.
pub(crate) fn retain(handle: *mut CUmemGenericAllocationHandle, address: u64, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(handle)) = (hook::get(), written(handle)) {
        hook.memory
            .physical(|physical, _| physical.retain(address, handle.0));
    }
    Ok(())
}

/// `cuMulticastCreate`: has no memory of its own.
pub(crate) fn create_multicast(handle: *mut CUmemGenericAllocationHandle, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(hook) = hook::get()
        && let (Some(handle), Some((local, index))) = (written(handle), hook.memory.somewhere())
    {
        hook.memory
            .add_physical(handle, Entry::new(Kind::Multicast, 0, local, index, 0));
    }
    Ok(())
}

/// Memory to bind to a multicast object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    Memory(CUmemGenericAllocationHandle),
    Mapped(CUdeviceptr),
}

/// Returns a range of bytes of a multicast object for one device.
fn bytes_of(device: CUdevice, offset: usize, bytes: usize) -> Region {
    Region {
        group: [device.cast_unsigned(), 0, 0],
        start: [offset as u64, 0, 0],
        extent: [bytes as u64, 1, 1],
    }
}

/// `cuMulticastBindMem`, `cuMulticastBindAddr`: binding holds the memory, which stays charged to its creator.
/// Without `device`, the memory's device is used.
pub(crate) fn bind(
    to: CUmemGenericAllocationHandle,
    device: Option<CUdevice>,
    offset: usize,
    what: Bound,
    bytes: usize,
    next: Next<'_>,
) -> CUresult {
    next()?;
    let Some(hook) = hook::get() else {
        return Ok(());
    };
    let shown = hook.memory.physical(|physical, gone| {
        let object = match what {
            Bound::Memory(handle) => physical.of_handle(handle.0),
            Bound::Mapped(address) => physical.at(address.0),
        }?;
        let multicast = physical.of_handle(to.0)?;
        let memory = physical.entry(object)?;
        let (local, index) = (memory.local, memory.index());
        let region = bytes_of(device.unwrap_or(local.device()), offset, bytes);
        let shown = Entry::new(Kind::Multicast, bytes as u64, local, index, 0);
        physical.bind(Binder::Multicast(multicast), region, object, Some(shown), gone);
        Some(shown)
    });
    shown.inspect(|shown| hook.memory.page_counter.show(shown));
    Ok(())
}

/// `cuMulticastUnbind`.
pub(crate) fn unbind(
    from: CUmemGenericAllocationHandle,
    device: CUdevice,
    offset: usize,
    bytes: usize,
    next: Next<'_>,
) -> CUresult {
    next()?;
    if let Some(hook) = hook::get() {
        hook.memory.physical(|physical, gone| {
            if let Some(multicast) = physical.of_handle(from.0) {
                physical.unbind(
                    Binder::Multicast(multicast),
                    &bytes_of(device, offset, bytes),
                    gone,
                );
            }
        });
    }
    Ok(())
}
