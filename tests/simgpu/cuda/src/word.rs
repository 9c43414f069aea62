//! Stream memory operations: words written and awaited in stream order.

use std::sync::Arc;

use simgpu::Quirk;
use simgpu::memory::Space;

use crate::abi::{CUdeviceptr, CUerror, CUresult, CUstream, Raw};
use crate::bytes;
use crate::call::{Call, driver};
use crate::error::{ILLEGAL_ADDRESS, INVALID_VALUE, NOT_SUPPORTED};
use crate::op::Op;
use crate::price::Price;
use crate::process;

/// A word to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Store {
    address: u64,
    value: u64,
    size: u64,
    /// Nanoseconds of the device.
    cost: u64,
}

/// A word to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    word: Store,
    compare: u32,
}

/// `CUstreamWriteValue_flags`.
const WRITE_DEFAULT: u32 = 0;
const WRITE_NO_MEMORY_BARRIER: u32 = 1;
const WAIT_GEQ: u32 = 0;
const WAIT_EQ: u32 = 1;
const WAIT_AND: u32 = 2;
const WAIT_NOR: u32 = 3;
/// `CU_STREAM_WAIT_VALUE_FLUSH`, without effect here.
const WAIT_FLUSH: u32 = 1 << 30;

impl Store {
    fn new(call: Call, address: u64, value: u64, size: u64) -> Result<Store, CUerror> {
        let reachable = address.is_multiple_of(size) && call.process.space.chunks(address, size).is_some();
        reachable
            .then_some(Store {
                address,
                value,
                size,
                cost: 0,
            })
            .ok_or(INVALID_VALUE)
    }

    /// Returns the nanoseconds that the write takes the device.
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    /// Writes the word.
    pub(crate) fn run(&self, space: &Space) -> CUresult {
        let bytes = self.value.to_le_bytes();
        let size = usize::try_from(self.size).unwrap_or(4);
        // A single store: words are aligned, and the program may be polling them.
        let chunk = space
            .chunks(self.address, self.size)
            .and_then(|chunks| chunks.first().copied());
        let chunk = chunk.ok_or(ILLEGAL_ADDRESS)?;
        match size {
            // SAFETY: an aligned word of an arena or of registered memory.
            8 => unsafe { chunk.bytes.cast::<u64>().write_volatile(self.value) },
            _ => {
                let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                // SAFETY: an aligned word of an arena or of registered memory.
                unsafe { chunk.bytes.cast::<u32>().write_volatile(word) };
            }
        }
        Ok(())
    }

    fn mask(&self) -> u64 {
        if self.size == 8 {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        }
    }
}

/// A batch of operations, as given by the program.
pub(crate) struct Batch {
    params: Vec<BatchOp>,
    ops: Vec<Op>,
}

impl Batch {
    /// Checks a list of operations.
    pub(crate) fn new(call: Call, count: u32, list: Raw) -> Result<Arc<Batch>, CUerror> {
        let params: Vec<BatchOp> = list.as_in().list(usize::try_from(count).unwrap_or(0))?;
        let ops = params.iter().filter_map(|one| one.op(call).transpose());
        let ops = ops.collect::<Result<_, _>>()?;
        Ok(Arc::new(Batch { params, ops }))
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns the list, valid as long as the batch.
    pub(crate) fn list(&self) -> (u32, Raw) {
        let count = u32::try_from(self.params.len()).unwrap_or(0);
        (count, Raw(self.params.as_ptr().cast_mut().cast()))
    }
}

impl Until {
    fn new(word: Store, flags: u32) -> Result<Until, CUerror> {
        let compare = flags & !WAIT_FLUSH;
        (compare <= WAIT_NOR)
            .then_some(Until { word, compare })
            .ok_or(INVALID_VALUE)
    }

    /// Returns whether the wait is over; also true if the memory no longer exists.
    pub(crate) fn is_met(&self, space: &Space) -> bool {
        let Some(now) = bytes::read(space, self.word.address, self.word.size) else {
            return true;
        };
        let mut word = [0; 8];
        word[..now.len()].copy_from_slice(&now);
        let (now, value, mask) = (u64::from_le_bytes(word), self.word.value, self.word.mask());
        match self.compare {
            // Cyclic comparison, as documented: the difference, as a signed number, is not negative.
            WAIT_GEQ => now.wrapping_sub(value) & mask <= mask >> 1,
            WAIT_EQ => now == value,
            WAIT_AND => now & value != 0,
            _ => !(now | value) & mask != 0,
        }
    }
}

fn write(call: Call, stream: CUstream, word: (CUdeviceptr, u64, u64), flags: u32) -> CUresult {
    check_offered()?;
    let stream = call.stream(stream)?;
    let (address, value, size) = word;
    let price = match flags {
        WRITE_DEFAULT => Price::Marker,
        WRITE_NO_MEMORY_BARRIER => Price::BareMarker,
        _ => return Err(INVALID_VALUE),
    };
    let store = Store::new(call, address, value, size)?;
    Price::MemoryOperation.work(1);
    call.enqueue(
        &stream,
        Op::Store(Store {
            cost: price.get(),
            ..store
        }),
    )
}

/// Writes by the calls of CUDA 11.7, which always have a memory barrier (cuda.h).
fn write_v2(call: Call, stream: CUstream, word: (CUdeviceptr, u64, u64), flags: u32) -> CUresult {
    if flags != WRITE_DEFAULT {
        return Err(INVALID_VALUE);
    }
    write(call, stream, word, flags)
}

fn check_offered() -> CUresult {
    if Quirk::NoMemoryOperations.is_on() {
        Err(NOT_SUPPORTED)
    } else {
        Ok(())
    }
}

/// Writes a word at once, in null mode, where all earlier work of any stream is done.
fn write_at_once(address: CUdeviceptr, value: u64, size: u64) {
    if let Ok(process) = process::get() {
        let _ = Store {
            address,
            value,
            size,
            cost: 0,
        }
        .run(process.space);
    }
}

fn wait(call: Call, stream: CUstream, address: CUdeviceptr, value: u64, size: u64, flags: u32) -> CUresult {
    check_offered()?;
    let stream = call.stream(stream)?;
    call.enqueue(
        &stream,
        Op::Until(Until::new(Store::new(call, address, value, size)?, flags)?),
    )
}

/// An operation of `cuStreamBatchMemOp`, a union of 48 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct BatchOp {
    operation: u32,
    address: u64,
    value: u64,
    flags: u32,
    rest: [u32; 5],
}

const _: () = assert!(size_of::<BatchOp>() == 48);

const OP_WAIT_32: u32 = 1;
const OP_WRITE_32: u32 = 2;
const OP_WAIT_64: u32 = 4;
const OP_WRITE_64: u32 = 5;
const OP_BARRIER: u32 = 6;
const OP_FLUSH: u32 = 3;

impl BatchOp {
    /// Returns the operation, if it has an observable effect.
    fn op(&self, call: Call) -> Result<Option<Op>, CUerror> {
        let low = self.value & u64::from(u32::MAX);
        let store = |value, size| Store::new(call, self.address, value, size);
        Ok(Some(match self.operation {
            OP_WAIT_32 => Op::Until(Until::new(store(low, 4)?, self.flags)?),
            OP_WAIT_64 => Op::Until(Until::new(store(self.value, 8)?, self.flags)?),
            OP_WRITE_32 => Op::Store(store(low, 4)?),
            OP_WRITE_64 => Op::Store(store(self.value, 8)?),
            OP_BARRIER | OP_FLUSH => return Ok(None),
            _ => return Err(INVALID_VALUE),
        }))
    }
}

/// Submits a batch; as documented, up to 256 operations, none of which is executed if one is invalid.
fn batch(call: Call, stream: CUstream, count: u32, list: Raw, flags: u32) -> CUresult {
    const MOST: u32 = 256;
    check_offered()?;
    let stream = call.stream(stream)?;
    if count > MOST || flags != 0 {
        return Err(INVALID_VALUE);
    }
    call.enqueue(&stream, Op::Batch(Batch::new(call, count, list)?))
}

driver! {
    fn cuStreamWriteValue32(stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) twin cuStreamWriteValue32_ptsz null { write_at_once(address, u64::from(value), 4); } |call| {
        write(call, stream, (address, u64::from(value), 4), flags)
    }
    fn cuStreamWriteValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) twin cuStreamWriteValue32_v2_ptsz null { write_at_once(address, u64::from(value), 4); } |call| {
        write_v2(call, stream, (address, u64::from(value), 4), flags)
    }
    fn cuStreamWriteValue64(stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) twin cuStreamWriteValue64_ptsz null { write_at_once(address, value, 8); } |call| {
        write(call, stream, (address, value, 8), flags)
    }
    fn cuStreamWriteValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) twin cuStreamWriteValue64_v2_ptsz null { write_at_once(address, value, 8); } |call| {
        write_v2(call, stream, (address, value, 8), flags)
    }
    fn cuStreamWaitValue32(stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) twin cuStreamWaitValue32_ptsz null {} |call| {
        wait(call, stream, address, u64::from(value), 4, flags)
    }
    fn cuStreamWaitValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) twin cuStreamWaitValue32_v2_ptsz null {} |call| {
        wait(call, stream, address, u64::from(value), 4, flags)
    }
    fn cuStreamWaitValue64(stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) twin cuStreamWaitValue64_ptsz null {} |call| {
        wait(call, stream, address, value, 8, flags)
    }
    fn cuStreamWaitValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) twin cuStreamWaitValue64_v2_ptsz null {} |call| {
        wait(call, stream, address, value, 8, flags)
    }
    fn cuStreamBatchMemOp(stream: CUstream, count: u32, list: Raw, flags: u32) twin cuStreamBatchMemOp_ptsz null {} |call| {
        batch(call, stream, count, list, flags)
    }
    fn cuStreamBatchMemOp_v2(stream: CUstream, count: u32, list: Raw, flags: u32) twin cuStreamBatchMemOp_v2_ptsz null {} |call| {
        batch(call, stream, count, list, flags)
    }
}
