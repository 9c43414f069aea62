//! `cuMemAlloc` and its variants, and `cuMemFree`, which frees memory of any kind by its address.

use gcgroup_abi::Kind;

use super::address::{Address, Out};
use crate::driver::cuda::{CUdeviceptr, CUresult};
use crate::driver::interpose::Next;
use crate::memory::ledger::Entry;
use crate::memory::page_counter::Unsettled;
use crate::program::no_target;
use crate::swap::allocation;
use crate::{driver, hook};

/// `cuMemAlloc`, `cuMemAllocManaged`: charged before the driver is called, so that a refusal costs nothing.
pub(crate) fn alloc<A: Address>(
    kind: Kind,
    address: *mut A,
    bytes: impl Into<u64>,
    next: Next<'_>,
) -> CUresult {
    alloc_at(kind, A::out_pointer(address), bytes.into(), next)
}

#[inline(never)]
fn alloc_at(kind: Kind, address: Out, bytes: u64, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let Some(target) = hook.program.target() else {
        return hook.memory.without_charge(no_target(), next);
    };
    if kind == Kind::Linear
        && let Some(result) = address
            .wide()
            .and_then(|wide| allocation::alloc(hook.swap, target, wide, bytes))
    {
        return result;
    }
    // Managed memory is not in pages of the device's.
    let bytes = if kind == Kind::Linear {
        hook.memory.in_pages(bytes)
    } else {
        bytes
    };
    let (charge, sums) = hook.memory.try_charge(target.index, bytes)?;
    let made = hook.memory.pressing(target.index, bytes, next);
    made.inspect_err(|_| hook.memory.count_failure(target.index))?;
    if let Some(address) = address.written() {
        charge.keep(sums);
        let entry = Entry::new(kind, bytes, target.local, target.index, target.context);
        hook.memory.remember(&hook.memory.blocks, address, entry);
    }
    Ok(())
}

/// `cuMemAllocPitch`: the driver chooses the pitch. The expected size is charged first, or the requested
/// bytes if that does not fit; the difference is settled after the call. If the actual size exceeds a limit,
/// the memory is freed again: the only refusal that reaches the driver.
pub(crate) fn alloc_pitched<A: Address>(
    address: *mut A,
    pitch: impl Into<Out>,
    width: impl Into<u64>,
    height: impl Into<u64>,
    next: Next<'_>,
) -> CUresult {
    alloc_rows(
        A::out_pointer(address),
        pitch.into(),
        width.into(),
        height.into(),
        next,
    )
}

#[inline(never)]
fn alloc_rows(address: Out, pitch: Out, width: u64, height: u64, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let Some(target) = hook.program.target() else {
        return hook.memory.without_charge(no_target(), next);
    };
    let wanted = hook.memory.in_pages(width.saturating_mul(height));
    let steps = &hook.memory.pitch;
    let likely = hook.memory.in_pages(steps.foretold(width).saturating_mul(height));
    let (charge, sums) = hook.memory.try_charge_likely(target.index, likely, wanted)?;
    // The device may hold more than is charged until the pitch is known. Nothing is held while the charge
    // waits.
    let _unsettled = Unsettled::on(hook.session.usage(), target.index);
    // Moved here to be uncharged while the call is unsettled.
    let mut charge = charge;
    let made = hook.memory.pressing(target.index, wanted, next);
    made.inspect_err(|_| hook.memory.count_failure(target.index))?;
    let pitch = pitch.written().unwrap_or(width);
    let Some(address) = address.written() else {
        return Ok(());
    };
    steps.learn(width, pitch);
    let bytes = hook.memory.in_pages(pitch.max(width).saturating_mul(height));
    let sums = match charge.fit(sums, bytes) {
        Ok(sums) => sums,
        Err(refused) => {
            let freed = driver::cuMemFree_v2(CUdeviceptr(address));
            freed.map_err(|error| charge.keep_refused(bytes, error))?;
            return Err(refused);
        }
    };
    charge.keep(sums);
    let entry = Entry::new(Kind::Linear, bytes, target.local, target.index, target.context);
    hook.memory.remember(&hook.memory.blocks, address, entry);
    Ok(())
}

/// `cuMemFree`: unknown addresses are left to the driver.
pub(crate) fn free(address: impl Address, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    if let Some(result) = allocation::free(hook.swap, address.key()) {
        return result;
    }
    let freed = hook.memory.free(&hook.memory.blocks, address.key(), next);
    if freed.is_pools && freed.result.is_ok() {
        hook.memory.reserves.settle_all(hook.memory);
    }
    freed.result
}
