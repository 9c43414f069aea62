//! Prefetch, advice and discard of managed memory.
//!
//! The bytes have only one location here, so that a prefetch moves nothing; arguments are checked
//! nevertheless.

use simgpu::memory::Kind;

use crate::abi::{CUdevice, CUdeviceptr, CUmemLocation, CUresult, CUstream, In};
use crate::batch::{check_indexes, check_stream};
use crate::call::{Call, driver};
use crate::error::{INVALID_DEVICE, INVALID_VALUE};
use crate::op::Op;
use crate::vmm::{self, LOCATION_DEVICE, LOCATION_HOST};

/// `CU_DEVICE_CPU`.
const CPU: CUdevice = -1;

/// Checks that a range lies in one managed block, or in a pool of managed memory.
fn check_range(call: Call, address: CUdeviceptr, bytes: usize) -> CUresult {
    let block = call.process.space.find(address).ok_or(INVALID_VALUE)?;
    let is_managed = match block.kind {
        Kind::Managed => true,
        Kind::Pool(handle) => {
            let pool = call.process.pools.get(handle, INVALID_VALUE)?;
            pool.wish.backing.is_addressable
        }
        _ => false,
    };
    let fits = address
        .checked_add(bytes as u64)
        .is_some_and(|end| end <= block.base + block.size);
    (is_managed && fits && bytes > 0)
        .then_some(())
        .ok_or(INVALID_VALUE)
}

fn of_device(device: CUdevice) -> CUmemLocation {
    CUmemLocation {
        kind: if device == CPU {
            LOCATION_HOST
        } else {
            LOCATION_DEVICE
        },
        id: device,
    }
}

fn check_location(call: Call, location: CUmemLocation) -> CUresult {
    vmm::device_of(call.process, location).map(|_| ())
}

fn prefetch(
    call: Call,
    address: CUdeviceptr,
    bytes: usize,
    location: CUmemLocation,
    stream: CUstream,
) -> CUresult {
    let stream = call.stream(stream)?;
    check_range(call, address, bytes)?;
    check_location(call, location).map_err(|_| INVALID_DEVICE)?;
    call.enqueue(&stream, Op::Nothing)
}

/// Target locations of batched prefetches.
struct Locations {
    list: In<CUmemLocation>,
    indexes: In<usize>,
    count: usize,
}

fn batch(
    call: Call,
    addresses: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    locations: Option<&Locations>,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    if count == 0 || flags != 0 {
        return Err(INVALID_VALUE);
    }
    check_stream(call, stream)?;
    if let Some(locations) = locations {
        if locations.count > count {
            return Err(INVALID_VALUE);
        }
        check_indexes(&locations.indexes.list(locations.count)?, count)?;
        for location in locations.list.list(locations.count)? {
            check_location(call, location)?;
        }
    }
    for (address, bytes) in addresses.list(count)?.into_iter().zip(sizes.list(count)?) {
        check_range(call, address, bytes)?;
    }
    call.enqueue(&*call.stream(stream)?, Op::Nothing)
}

driver! {
    fn cuMemAdvise(_address: CUdeviceptr, _bytes: usize, _advice: u32, _device: i32) |_| { Ok(()) }
    fn cuMemAdvise_v2(_address: CUdeviceptr, _bytes: usize, _advice: u32, _location: CUmemLocation) |_| { Ok(()) }
    fn cuMemPrefetchAsync(address: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream) twin cuMemPrefetchAsync_ptsz |call| {
        prefetch(call, address, bytes, of_device(device), stream)
    }
    fn cuMemPrefetchAsync_v2(
        address: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: u32, stream: CUstream,
    ) twin cuMemPrefetchAsync_v2_ptsz |call| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        prefetch(call, address, bytes, location, stream)
    }
    fn cuMemPrefetchBatchAsync(
        addresses: In<CUdeviceptr>, sizes: In<usize>, count: usize, locations: In<CUmemLocation>, indexes: In<usize>,
        nr_locations: usize, flags: u64, stream: CUstream,
    ) twin cuMemPrefetchBatchAsync_ptsz |call| {
        let locations = Locations { list: locations, indexes, count: nr_locations };
        batch(call, addresses, sizes, count, Some(&locations), flags, stream)
    }
    fn cuMemDiscardBatchAsync(
        addresses: In<CUdeviceptr>, sizes: In<usize>, count: usize, flags: u64, stream: CUstream,
    ) twin cuMemDiscardBatchAsync_ptsz |call| {
        batch(call, addresses, sizes, count, None, flags, stream)
    }
    fn cuMemDiscardAndPrefetchBatchAsync(
        addresses: In<CUdeviceptr>, sizes: In<usize>, count: usize, locations: In<CUmemLocation>, indexes: In<usize>,
        nr_locations: usize, flags: u64, stream: CUstream,
    ) twin cuMemDiscardAndPrefetchBatchAsync_ptsz |call| {
        let locations = Locations { list: locations, indexes, count: nr_locations };
        batch(call, addresses, sizes, count, Some(&locations), flags, stream)
    }
}
