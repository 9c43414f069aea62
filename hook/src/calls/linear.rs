//! `cuMemAlloc` and its variants, and `cuMemFree`, which frees memory of any kind by its address.

use gcgroup_abi::Kind;

use super::address::{Address, Out};
use crate::driver;
use crate::driver::cuda::{CUdeviceptr, CUresult};
use crate::driver::interpose::Next;
use crate::hook::{self, Hook};
use crate::memory::ledger::Entry;
use crate::memory::page_counter::Unsettled;
use crate::program::no_target;
use crate::swap::allocation;

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
    let block = Entry::new(kind, bytes, target.local, target.index, target.context);
    // Managed memory is not in pages of the device's.
    let block = match kind {
        Kind::Linear => block.in_pages(hook.memory.page_shift()),
        _ => block,
    };
    if block.is_small() {
        let measured = || bytes;
        return alloc_measured(hook, block, block.likely(), address, measured, next);
    }
    let bytes = block.charged();
    let (charge, sums) = hook.memory.try_charge(target.index, bytes)?;
    let made = hook.memory.pressing(target.index, bytes, next);
    made.inspect_err(|_| hook.memory.count_failure(target.index))?;
    if let Some(address) = address.written() {
        charge.keep(sums);
        hook.memory.remember(&hook.memory.blocks, address, block);
    }
    Ok(())
}

/// `cuMemAllocPitch`: the driver chooses the pitch.
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
    let bytes = width.saturating_mul(height);
    let wanted = Entry::new(Kind::Linear, bytes, target.local, target.index, target.context);
    let wanted = wanted.in_pages(hook.memory.page_shift());
    let steps = &hook.memory.pitch;
    let mut foretold = wanted;
    foretold.size = steps.foretold(width).saturating_mul(height);
    let ([likely, _], [_, least]) = (foretold.likely(), wanted.likely());
    let measured = || {
        let pitch = pitch.written().unwrap_or(width);
        steps.learn(width, pitch);
        pitch.max(width).saturating_mul(height)
    };
    alloc_measured(hook, wanted, [likely, least], address, measured, next)
}

/// Allocates linear memory for which the driver chooses the size (`measured`, after the call), or a page that
/// it shares with other memory. What it likely takes is charged first, or the least if that does not fit; the
/// difference is settled after the call. If the memory exceeds a limit then, it is freed again.
#[expect(clippy::too_many_arguments, reason = "on the path of each allocation")]
fn alloc_measured(
    hook: &Hook,
    mut block: Entry,
    [likely, least]: [u64; 2],
    address: Out,
    measured: impl Fn() -> u64,
    next: Next<'_>,
) -> CUresult {
    let (memory, index) = (hook.memory, block.index());
    let must_keep = || memory.must_keep_page_of(&block);
    let least = || if must_keep() { likely } else { least };
    let (charge, sums) = memory.try_charge_likely(index, likely, least)?;
    // The device may hold more than is charged until the block is measured. Nothing is held while the charge
    // waits.
    let _unsettled = Unsettled::on(memory.usage(), index);
    // Moved here to be uncharged while the call is unsettled.
    let mut charge = charge;
    let made = memory.pressing(index, block.size, next);
    made.inspect_err(|_| memory.count_failure(index))?;
    let Some(address) = address.written() else {
        return Ok(());
    };
    block.size = measured();
    let new = memory.enter_pages(address, &block);
    let bytes = block.charged() + new.bytes;
    let (sums, refused) = match charge.fit(sums, bytes) {
        Ok(sums) => (sums, Ok(())),
        // Charged until it is freed: another thread's block may lie in a page that it has opened.
        Err(refused) => (charge.exceed(bytes), Err(refused)),
    };
    charge.keep(sums);
    memory.charged_pages(&new);
    memory.remember(&memory.blocks, address, block);
    if refused.is_err() {
        let free: Next<'_> = &|| driver::cuMemFree_v2(CUdeviceptr(address));
        memory.free(&memory.blocks, address, free).result?;
    }
    refused
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
