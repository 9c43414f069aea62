//! CUDA arrays.

use gcgroup_abi::Kind;

use super::sparse;
use crate::driver::cuda::{CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUmipmappedArray, CUresult};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{argument, written};
use crate::hook;
use crate::memory::array::{self, Array, CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_SPARSE, Describe, fit};
use crate::memory::ledger::Entry;
use crate::memory::page_counter::Unsettled;
use crate::program::no_target;

/// `cuArrayCreate`, `cuArray3DCreate`.
pub(crate) fn create<D: Describe>(made: *mut CUarray, wanted: *const D, next: Next<'_>) -> CUresult {
    charge(made, wanted, 0, next)
}

/// `cuMipmappedArrayCreate`.
pub(crate) fn create_mipmapped(
    made: *mut CUmipmappedArray,
    wanted: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
    next: Next<'_>,
) -> CUresult {
    charge(made, wanted, levels, next)
}

fn charge<A: Array, D: Describe>(made: *mut A, wanted: *const D, levels: u32, next: Next<'_>) -> CUresult {
    match argument(wanted) {
        Some(wanted) => charge_for(made, wanted.full(), levels, next),
        None => next(),
    }
}

#[inline(never)]
fn charge_for<A: Array>(
    made: *mut A,
    wanted: CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
    next: Next<'_>,
) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let Some(target) = hook.program.target() else {
        return hook.memory.without_charge(no_target(), next);
    };
    // Mapped to memory of `cuMemCreate`, which is charged there.
    if wanted.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
        return next();
    }
    let expected = array::ask::<A>(wanted, levels, target);
    let block = |bytes| {
        let block = Entry::new(Kind::Array, bytes, target.local, target.index, target.context);
        block.in_unknown_pages(hook.memory.page_shift())
    };
    let expected = expected.map(block);
    let bytes = expected.map_or(0, |block| block.charged());
    let (charge, sums) = hook.memory.try_charge(target.index, bytes)?;
    // The device holds more than is charged until the array's size is known. Nothing is held while the charge
    // waits.
    let _unsettled = (expected.is_none()).then(|| Unsettled::on(hook.session.usage(), target.index));
    // Moved here to be uncharged while the call is unsettled.
    let charge = charge;
    // Others make no room for more than the device has.
    let size = expected.map_or_else(|| array::least_bytes(&wanted), |_| bytes);
    let made_it = hook.memory.pressing(target.index, size, next);
    made_it.inspect_err(|_| hook.memory.count_failure(target.index))?;
    let Some(array) = written(made) else { return Ok(()) };
    let made = match expected {
        Some(block) => {
            charge.keep(sums);
            Some(block)
        }
        None => fit(array, charge, sums, &block)?,
    };
    if let Some(block) = made {
        hook.memory.remember(&hook.memory.arrays, array.key(), block);
    }
    Ok(())
}

fn destroy_any<A: Array>(array: A, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let result = hook.memory.free(&hook.memory.arrays, array.key(), next).result;
    if result.is_ok() {
        sparse::array_gone(hook, array.key());
    }
    result
}

/// `cuArrayDestroy`.
pub(crate) fn destroy(array: CUarray, next: Next<'_>) -> CUresult {
    destroy_any(array, next)
}

/// `cuMipmappedArrayDestroy`.
pub(crate) fn destroy_mipmapped(array: CUmipmappedArray, next: Next<'_>) -> CUresult {
    destroy_any(array, next)
}
