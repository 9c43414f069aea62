//! Memory that graphs allocate and free, by captured calls or by allocation nodes.
//!
//! An allocation has its address from creation, and device memory from a launch until it is freed. Until it
//! is trimmed, a device keeps the peak of this memory reserved; all graphs share it.

use std::collections::BTreeMap;
use std::sync::Arc;

use simgpu::Held;
use simgpu::memory::Kind;

use crate::abi::{
    CUdevice, CUdeviceptr, CUerror, CUgraph, CUgraphNode, CUmemLocation, CUmemPoolProps, CUresult, In, Out,
    Raw,
};
use crate::call::{Call, driver};
use crate::context::Context;
use crate::error::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::graph::Task;
use crate::memory;
use crate::op::Op;
use crate::pool::Gauge;
use crate::process::{OneDevice, Process};

/// An allocation of a graph, held by its nodes and, while in use, by its device.
pub(crate) struct Memory {
    process: &'static Process,
    device: &'static OneDevice,
    address: u64,
    bytes: u64,
    size: u64,
}

/// Graph memory of a device.
#[derive(Default)]
pub(crate) struct OfDevice {
    reserved: Gauge,
    used: Gauge,
    in_use: BTreeMap<u64, InUse>,
}

/// An allocation made by a launch.
struct InUse {
    memory: Arc<Memory>,
    /// Whether a stream has a pending free of it.
    is_freeing: bool,
}

const UNIT: u64 = 2 << 20;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`: the graph may be launched again while its memory is not
/// freed.
const AUTO_FREE_ON_LAUNCH: u64 = 1;

fn of_index(process: &'static Process, index: usize) -> Result<&'static OneDevice, CUerror> {
    let mut devices = process.devices.iter();
    devices.find(|device| device.index == index).ok_or(INVALID_DEVICE)
}

impl Memory {
    /// Reserves addresses for `bytes` bytes.
    pub(crate) fn reserve(
        process: &'static Process,
        context: &Context,
        index: usize,
        bytes: u64,
    ) -> Result<Memory, CUerror> {
        let device = of_index(process, index)?;
        let size = bytes.checked_next_multiple_of(UNIT).ok_or(OUT_OF_MEMORY)?;
        let address = process.space.take_linear(size).ok_or(OUT_OF_MEMORY)?;
        process
            .space
            .make_within(address, bytes, Kind::Graph, index, context.owner());
        Ok(Memory {
            process,
            device,
            address,
            bytes,
            size,
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Allocates device memory if there is none yet. Returns whether there was none.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<bool, CUerror> {
        let mut state = self.device.graph_memory.lock();
        if state.in_use.contains_key(&self.address) {
            return Ok(false);
        }
        let wanted = state.used.current + self.size;
        let missing = wanted.saturating_sub(state.reserved.current);
        if missing > 0 {
            memory::charge(self.process, self.device.index, Held::Graph, missing)?;
            state.reserved.add(missing);
        }
        state.used.add(self.size);
        let memory = Arc::clone(self);
        let is_freeing = false;
        state.in_use.insert(self.address, InUse { memory, is_freeing });
        Ok(true)
    }

    /// Returns whether it is allocated and no free is pending.
    fn is_unfreed(&self) -> bool {
        let state = self.device.graph_memory.lock();
        state
            .in_use
            .get(&self.address)
            .is_some_and(|block| !block.is_freeing)
    }

    fn end(&self) -> bool {
        let mut state = self.device.graph_memory.lock();
        let gone = state.in_use.remove(&self.address);
        if gone.is_some() {
            state.used.current -= self.size;
        }
        drop(state);
        gone.is_some()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.process
            .space
            .remove(self.address, |block| block.kind == Kind::Graph);
        self.process.space.give_linear(self.address, self.size);
    }
}

/// Makes all allocations of a launch of these operations, or none.
pub(crate) fn prepare(ops: &[Op], flags: u64) -> CUresult {
    let is_freed = |address| {
        ops.iter()
            .any(|op| matches!(op, Op::GraphFree(at) if *at == address))
    };
    let made = || {
        ops.iter().filter_map(|op| match op {
            Op::GraphAllocate(memory) => Some(memory),
            _ => None,
        })
    };
    let may_stay = flags & AUTO_FREE_ON_LAUNCH != 0;
    if !may_stay && made().any(|memory| memory.is_unfreed() && !is_freed(memory.address)) {
        return Err(INVALID_VALUE);
    }
    let mut begun = Vec::new();
    for memory in made() {
        match memory.begin() {
            Ok(true) => begun.push(memory),
            Ok(false) => (),
            Err(error) => {
                for memory in begun {
                    memory.end();
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

fn in_use(process: &'static Process, address: u64) -> Option<Arc<Memory>> {
    let block = process
        .space
        .find(address)
        .filter(|block| block.kind == Kind::Graph)?;
    let state = of_index(process, block.device).ok()?.graph_memory.lock();
    state.in_use.get(&address).map(|block| Arc::clone(&block.memory))
}

/// Ends an allocation. Returns whether there was one.
pub(crate) fn free(process: &'static Process, address: u64) -> bool {
    in_use(process, address).is_some_and(|memory| memory.end())
}

/// Records that a stream will free an allocation.
pub(crate) fn begin_freeing(process: &'static Process, address: u64) -> CUresult {
    let memory = in_use(process, address).ok_or(INVALID_VALUE)?;
    let mut state = memory.device.graph_memory.lock();
    let block = state.in_use.get_mut(&address).filter(|block| !block.is_freeing);
    block.ok_or(INVALID_VALUE)?.is_freeing = true;
    Ok(())
}

/// Returns the graph operation that frees memory allocated by a graph.
pub(crate) fn free_op(call: Call, address: CUdeviceptr) -> Result<Op, CUerror> {
    let block = call.process.space.find(address);
    let is_ours = block.is_some_and(|block| block.base == address && block.kind == Kind::Graph);
    is_ours.then_some(Op::GraphFree(address)).ok_or(INVALID_VALUE)
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, all versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocateParams {
    pool: CUmemPoolProps,
    access: Raw,
    access_count: usize,
    bytes: usize,
    /// Output of the driver.
    address: CUdeviceptr,
}

const _: () = assert!(size_of::<AllocateParams>() == 120);

const ALLOCATION_PINNED: u32 = 1;
const LOCATION_DEVICE: u32 = 1;

/// Adds an allocation node, and stores the address in its parameters.
pub(crate) fn add_allocation(
    call: Call,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Vec<CUgraphNode>,
    params: Out<AllocateParams>,
) -> CUresult {
    let context = call.context()?;
    let wish = params.get()?;
    if wish.bytes == 0 || wish.pool.alloc_type != ALLOCATION_PINNED || out.is_null() {
        return Err(INVALID_VALUE);
    }
    if wish.pool.location.kind != LOCATION_DEVICE || wish.pool.handle_types != 0 {
        return Err(NOT_SUPPORTED);
    }
    let index = call.process.device(wish.pool.location.id)?.index;
    let graph = call.graph(graph)?;
    let memory = Memory::reserve(call.process, &context, index, wish.bytes as u64)?;
    let address = memory.address;
    let task = Task::Op(Op::GraphAllocate(Arc::new(memory)));
    out.set_if(graph.add(call.process, task, after)?);
    params.set(AllocateParams { address, ..wish })
}

fn allocation(call: Call, node: CUgraphNode, params: Out<AllocateParams>) -> CUresult {
    let node = call.node(node)?;
    let task = node.task.lock();
    let Task::Op(Op::GraphAllocate(memory)) = &*task else {
        return Err(INVALID_VALUE);
    };
    let id = call.process.ordinal(memory.device.index).ok_or(INVALID_DEVICE)?;
    let location = CUmemLocation {
        kind: LOCATION_DEVICE,
        id,
    };
    let pool = CUmemPoolProps {
        alloc_type: ALLOCATION_PINNED,
        handle_types: 0,
        location,
        win32_security_attributes: 0,
        max_size: 0,
        usage: 0,
        reserved: [0; 54],
    };
    params.set(AllocateParams {
        pool,
        access: Raw(std::ptr::null_mut()),
        access_count: 0,
        bytes: usize::try_from(memory.bytes).unwrap_or(usize::MAX),
        address: memory.address,
    })
}

const USED: u32 = 0;
const USED_HIGH: u32 = 1;
const RESERVED: u32 = 2;
const RESERVED_HIGH: u32 = 3;

fn attribute(call: Call, device: CUdevice, attribute: u32, value: Out<u64>) -> CUresult {
    let state = call.process.device(device)?.graph_memory.lock();
    match attribute {
        USED => value.set(state.used.current),
        USED_HIGH => value.set(state.used.high),
        RESERVED => value.set(state.reserved.current),
        RESERVED_HIGH => value.set(state.reserved.high),
        _ => Err(INVALID_VALUE),
    }
}

fn reset(call: Call, device: CUdevice, attribute: u32, value: In<u64>) -> CUresult {
    let mut state = call.process.device(device)?.graph_memory.lock();
    match attribute {
        USED_HIGH | RESERVED_HIGH if value.get()? != 0 => Err(INVALID_VALUE),
        USED_HIGH => {
            state.used.high = state.used.current;
            Ok(())
        }
        RESERVED_HIGH => {
            state.reserved.high = state.reserved.current;
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Returns unused graph memory to the device.
fn trim(call: Call, device: CUdevice) -> CUresult {
    let device = call.process.device(device)?;
    let mut state = device.graph_memory.lock();
    let unused = state.reserved.current - state.used.current;
    state.reserved.current -= unused;
    call.process.member.uncharge(device.index, Held::Graph, unused);
    Ok(())
}

driver! {
    fn cuGraphAddMemAllocNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: Out<AllocateParams>,
    ) |call| {
        add_allocation(call, out, graph, after.list(count)?, params)
    }
    fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: Out<AllocateParams>) |call| { allocation(call, node, params) }
    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attr: u32, value: Out<u64>) |call| {
        attribute(call, device, attr, value)
    }
    fn cuDeviceSetGraphMemAttribute(device: CUdevice, attr: u32, value: In<u64>) |call| { reset(call, device, attr, value) }
    fn cuDeviceGraphMemTrim(device: CUdevice) |call| { trim(call, device) }
}
