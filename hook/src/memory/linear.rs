//! `cuMemAlloc` and its like, and `cuMemFree`, which frees whatever has an address.

use gcgroup_abi::Kind;

use super::Address;
use super::ledger::Entry;
use crate::cuda::{CUdeviceptr, CUresult};
use crate::interpose::Next;
use crate::place::written;
use crate::{driver, process, swap};

/// `cuMemAlloc`, `cuMemAllocManaged`: charged before the driver is asked, so that a refusal costs nothing.
pub(crate) fn alloc<A: Address>(
    kind: Kind,
    address: *mut A,
    bytes: impl Into<u64>,
    next: Next<'_>,
) -> CUresult {
    let bytes = bytes.into();
    let Some(process) = process::get() else {
        return next();
    };
    let Some(place) = process.place() else {
        return next();
    };
    if kind == Kind::Linear
        && let Some(result) = A::wide(address).and_then(|wide| swap::alloc(process, place, wide, bytes))
    {
        return result;
    }
    let charge = process.try_charge(place.index, bytes)?;
    let made = process.pressing(place.index, bytes, next);
    made.inspect_err(|_| process.count_failure(place.index))?;
    if let Some(address) = written(address) {
        charge.keep();
        let entry = Entry::new(kind, bytes, place.local, place.index, place.context);
        process.remember(&process.memory.blocks, address.key(), entry);
    }
    Ok(())
}

/// `cuMemAllocPitch`: the driver chooses the pitch, so the bytes that are wanted are charged before, and those that
/// it adds to each row after. If those are too many, the memory goes back at once: the one refusal the driver sees.
pub(crate) fn alloc_pitched<A: Address, P: Copy + TryInto<u64>>(
    address: *mut A,
    pitch: *const P,
    width: impl Into<u64>,
    height: impl Into<u64>,
    next: Next<'_>,
) -> CUresult {
    let (width, height) = (width.into(), height.into());
    let Some(process) = process::get() else {
        return next();
    };
    let Some(place) = process.place() else {
        return next();
    };
    let wanted = width.saturating_mul(height);
    let mut charge = process.try_charge(place.index, wanted)?;
    let made = process.pressing(place.index, wanted, next);
    made.inspect_err(|_| process.count_failure(place.index))?;
    let pitch = written(pitch)
        .and_then(|pitch| pitch.try_into().ok())
        .unwrap_or(width);
    let Some(address) = written(address) else {
        return Ok(());
    };
    let padding = pitch.saturating_sub(width).saturating_mul(height);
    if let Err(refused) = charge.extend(padding) {
        // Were it not freed, it would be memory that nobody is charged for.
        driver::cuMemFree_v2(CUdeviceptr(address.key()))?;
        return Err(refused);
    }
    let bytes = pitch.saturating_mul(height);
    charge.keep();
    let entry = Entry::new(Kind::Linear, bytes, place.local, place.index, place.context);
    process.remember(&process.memory.blocks, address.key(), entry);
    Ok(())
}

/// `cuMemFree`: an address that we do not know is the driver's to judge.
pub(crate) fn free(address: impl Address, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    if let Some(result) = swap::free(process, address.key()) {
        return result;
    }
    let (result, entry) = process.free(&process.memory.blocks, address.key(), next);
    if result.is_ok() && entry.is_some_and(|entry| entry.kind() == Kind::Pool) {
        process.memory.reserves.settle_all(process);
    }
    result
}
