//! Sparse arrays (`cuMemMapArrayAsync`): their tiles are mapped to memory of `cuMemCreate`, which is charged
//! there.

use crate::driver::cuda::{CU_MEM_OPERATION_TYPE_MAP, CUarrayMapInfo, CUresult, CUstream};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::argument_list;
use crate::hook::{self, Hook};
use crate::memory::physical::{Binder, Region};
use crate::memory::stream::Stream;

/// `CUarrayMapInfo::subresourceType`: the levels of a mipmapped array that are smaller than a tile, taken
/// together.
const MIPTAIL: u32 = 1;

fn region(info: &CUarrayMapInfo) -> Region {
    let words = info.subresource;
    let pair = |low: usize| u64::from(words[low]) | u64::from(words[low + 1]) << 32;
    if info.subresource_type == MIPTAIL {
        return Region {
            group: [MIPTAIL, 0, words[0]],
            start: [pair(2), 0, 0],
            extent: [pair(4), 1, 1],
        };
    }
    let [level, layer, x, y, z, width, height, depth] = words;
    Region {
        group: [info.subresource_type, level, layer],
        start: [x, y, z].map(u64::from),
        // Dimensions that the array does not have may be 0.
        extent: [width, height, depth].map(|extent| u64::from(extent.max(1))),
    }
}

/// `cuMemMapArrayAsync`: previous mappings of the region end when the stream reaches the call.
pub(crate) fn map(list: *const CUarrayMapInfo, count: u32, stream: CUstream, next: Next<'_>) -> CUresult {
    next()?;
    let Some(hook) = hook::get() else {
        return Ok(());
    };
    hook.memory.physical.begin_sparse();
    let order = hook.memory.ordered(Stream::of(hook.program, stream.0.addr()));
    for info in argument_list(list, count) {
        let (array, region) = (Binder::Array(info.resource), region(&info));
        hook.memory.physical(|physical, gone| {
            physical.unbind_after(order, array, &region);
            let object = physical.of_handle(info.memory.0);
            if let Some(object) = object.filter(|_| info.operation == CU_MEM_OPERATION_TYPE_MAP) {
                physical.bind(array, region, object, None, gone);
            }
        });
    }
    Ok(())
}

/// Ends all mappings of a destroyed array or mipmapped array.
pub(super) fn array_gone(hook: &Hook, handle: u64) {
    if hook.memory.physical.is_sparse() {
        hook.memory
            .physical(|physical, gone| physical.unbind_all(Binder::Array(handle), gone));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::cuda::CUmemGenericAllocationHandle;

    fn info(subresource_type: u32, subresource: [u32; 8]) -> CUarrayMapInfo {
        CUarrayMapInfo {
            resource_type: 1,
            resource: 7,
            subresource_type,
            padding: 0,
            subresource,
            operation: CU_MEM_OPERATION_TYPE_MAP,
            handle_type: 0,
            memory: CUmemGenericAllocationHandle(9),
            offset: 0,
            device_bit_mask: 1,
            flags: 0,
            reserved: [0; 2],
        }
    }

    #[test]
    fn a_tile_is_a_region_of_its_level_and_layer() {
        let tile = region(&info(0, [2, 3, 10, 20, 0, 64, 32, 0]));
        let expected = Region {
            group: [0, 2, 3],
            start: [10, 20, 0],
            extent: [64, 32, 1],
        };
        assert_eq!(tile, expected);
    }

    #[test]
    fn a_mip_tail_is_bytes_of_its_layer() {
        let tail = region(&info(MIPTAIL, [4, 0, 0x1000, 1, 0x2000, 0, 0, 0]));
        let expected = Region {
            group: [MIPTAIL, 0, 4],
            start: [0x1_0000_1000, 0, 0],
            extent: [0x2000, 1, 1],
        };
        assert_eq!(tail, expected);
    }
}
