//! Pointer queries for blocks. The answers are those for plain device memory, wherever the bytes are.

use std::ffi::{c_uint, c_void};

use super::swap;
use crate::driver::cuda::{CUdeviceptr, CUresult};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{answer, argument};
use crate::hook;
use crate::swap::allocation::Allocation;

/// `CU_POINTER_ATTRIBUTE_P2P_TOKENS`: requested by programs that let another device read the memory.
const P2P_TOKENS: c_uint = 5;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`: false for mapped memory too. Programs pass out-pointers to one byte or
/// to four, and the written width is not documented; so the driver writes it, if it can.
const IS_MANAGED: c_uint = 8;
/// `CU_MEMORYTYPE_DEVICE`.
const MEMORYTYPE_DEVICE: u64 = 2;

/// An attribute that a move changes: its number, its width in bytes and its value.
struct Attribute {
    number: c_uint,
    width: usize,
    value: fn(&Allocation, Asked) -> u64,
}

/// Properties of the request.
#[derive(Clone, Copy)]
struct Asked {
    context: usize,
}

/// By the numbers of `CUpointer_attribute`.
const ATTRIBUTES: &[Attribute] = &[
    // CONTEXT
    Attribute {
        number: 1,
        width: 8,
        value: |_, asked| asked.context as u64,
    },
    // MEMORY_TYPE
    Attribute {
        number: 2,
        width: 4,
        value: |_, _| MEMORYTYPE_DEVICE,
    },
    // BUFFER_ID: distinct from those of the driver, which count up from 0.
    Attribute {
        number: 7,
        width: 8,
        value: |block, _| 1 << 63 | block.number,
    },
    Attribute {
        number: IS_MANAGED,
        width: 4,
        value: |_, _| 0,
    },
    // DEVICE_ORDINAL
    Attribute {
        number: 9,
        width: 4,
        value: |block, _| u64::from(block.local.number()),
    },
    // RANGE_START_ADDR
    Attribute {
        number: 11,
        width: 8,
        value: |block, _| block.base,
    },
    // RANGE_SIZE
    Attribute {
        number: 12,
        width: 8,
        value: |block, _| block.asked,
    },
];

/// Handles `cuMemGetAddressRange`: returns the requested size, not the mapped size.
pub(crate) fn range(
    base: *mut CUdeviceptr,
    bytes: *mut usize,
    address: CUdeviceptr,
    next: Next<'_>,
) -> CUresult {
    let Some(block) = hook::get().and_then(|hook| hook.swap.find(address.0)) else {
        return next();
    };
    answer(base, CUdeviceptr(block.base));
    answer(bytes, usize::try_from(block.asked).unwrap_or(usize::MAX));
    Ok(())
}

/// Handles `cuPointerGetAttribute`.
pub(crate) fn attribute(
    data: *mut c_void,
    attribute: c_uint,
    address: CUdeviceptr,
    next: Next<'_>,
) -> CUresult {
    if attribute == P2P_TOKENS {
        return swap::pin(address, next);
    }
    if attribute == IS_MANAGED && next().is_ok() || correct(data, attribute, address) {
        return Ok(());
    }
    next()
}

/// Handles `cuPointerGetAttributes`: a list of attributes and of out-pointers.
pub(crate) fn attributes(
    count: c_uint,
    list: *const c_uint,
    pointers: *const *mut c_void,
    address: CUdeviceptr,
    next: Next<'_>,
) -> CUresult {
    next()?;
    for at in 0..count as usize {
        let (Some(attribute), Some(pointer)) = (
            argument(list.wrapping_add(at)),
            argument(pointers.wrapping_add(at)),
        ) else {
            break;
        };
        if attribute != IS_MANAGED {
            correct(pointer, attribute, address);
        }
    }
    Ok(())
}

/// Writes the answer for an attribute that a move changes. Returns whether it did.
fn correct(pointer: *mut c_void, attribute: c_uint, address: CUdeviceptr) -> bool {
    let Some(known) = ATTRIBUTES.iter().find(|known| known.number == attribute) else {
        return false;
    };
    let found = hook::get().and_then(|hook| {
        let block = hook.swap.find(address.0)?;
        let context = hook.program.contexts.numbered(block.context)?.handle();
        Some((known.value)(&block, Asked { context }))
    });
    let Some(value) = found.filter(|_| !pointer.is_null()) else {
        return false;
    };
    match known.width {
        4 => answer(pointer.cast(), u32::try_from(value).unwrap_or(u32::MAX)),
        _ => answer(pointer.cast(), value),
    }
    true
}
