//! Memory allocated by graphs, through nodes or captured calls: charged by what the driver reserves for it.
//!
//! An allocation of a graph has its address from the start, and physical memory from the graph's first launch
//! until a trim. Allocations that never exist at the same time share addresses, so what a graph needs is
//! known at instantiation; what a launch will take of the device is predicted from that. If no graph
//! allocates, a launch costs one load more.
//!
//! Two graphs that ran one after the other share their memory. If they run concurrently later, the driver
//! takes more, which is charged even beyond a limit, since it cannot be predicted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::levels::Unsettled;
use super::reserve::Reserve;
use crate::cuda::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUdevice, CUerror, CUgraph, CUgraphExec,
    CUgraphNodeParams, CUresult,
};
use crate::device::LocalDevice;
use crate::driver;
use crate::driver::graphs::nodes;
use crate::interpose::Next;
use crate::place::{given, written};
use crate::process::{self, Process};

/// Set once any graph of this program allocates.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Size of a page of device memory, bytes.
const PAGE: u64 = 2 << 20;
/// Depth to which child graphs are searched; the driver's own bound is not known.
const MOST_DEPTH: u32 = 16;

/// Memory that an executable graph needs on one device.
#[derive(Debug)]
struct Need {
    local: LocalDevice,
    bytes: u64,
    /// Number of the device's trim since which the graph has had its memory, or [`NO_ROOM`].
    has_room_since: AtomicUsize,
}

/// Executable graphs that allocate, by handle.
#[derive(Debug, Default)]
pub(crate) struct Graphs(Mutex<HashMap<usize, Arc<[Need]>>>);

/// Value of [`Need::has_room_since`]: the graph has no memory on the device.
const NO_ROOM: usize = usize::MAX;

/// Returns whether a launch may allocate.
fn is_used() -> bool {
    IS_USED.load(Relaxed)
}

/// Records that some graph allocates.
pub(super) fn begin_use() {
    IS_USED.store(true, Relaxed);
}

/// Memory of a device that a call running a graph may take, charged in advance; settled when dropped.
struct Taken<'a> {
    process: &'a Process,
    reserve: Arc<Reserve>,
    trims: usize,
    held: u64,
    _unsettled: Unsettled<'a>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // Growth that does not fit exists all the same, and is charged.
        let _ = self.reserve.settle(self.process, self.held);
    }
}

/// Charges what the driver will reserve for graphs with these needs.
fn take<'a>(process: &'a Process, needs: &[Need]) -> Result<Vec<Taken<'a>>, CUerror> {
    let mut taken = Vec::with_capacity(needs.len());
    for need in needs {
        let index = process.devices.learn(process.control(), need.local);
        let reserve = process.memory.reserves.of_graphs(need.local, index);
        let unsettled = Unsettled::on(process.usage(), index);
        let trims = reserve.trims();
        let foretold = || match need.has_room_since.load(Relaxed) == reserve.trims() {
            true => 0,
            false => {
                (reserve.used().unwrap_or(0) + need.bytes).saturating_sub(reserve.reserved().unwrap_or(0))
            }
        };
        let held = hold(process, &reserve, foretold)?;
        taken.push(Taken {
            process,
            reserve,
            trims,
            held,
            _unsettled: unsettled,
        });
    }
    Ok(taken)
}

/// Charges the predicted bytes, trimming pools if necessary, or refuses.
fn hold(process: &Process, reserve: &Reserve, foretold: impl Fn() -> u64) -> Result<u64, CUerror> {
    let bytes = foretold();
    let Err(full) = reserve.hold(process, bytes) else {
        return Ok(bytes);
    };
    full.count_hit(process.usage());
    process.memory.reserves.trim(process);
    let bytes = foretold();
    reserve.hold(process, bytes).map(|()| bytes).map_err(|full| {
        full.count_refusal(process.usage());
        process.count_failure(reserve.index());
        CUerror::OUT_OF_MEMORY
    })
}

/// Runs a call other than a launch that may take what `needs` says.
fn run(process: &Process, needs: &[Need], call: Next<'_>) -> CUresult {
    let taken = take(process, needs)?;
    let result = call();
    if result.is_err() {
        count_failures(process, &taken);
    }
    result
}

fn count_failures(process: &Process, taken: &[Taken<'_>]) {
    for one in taken {
        process.count_failure(one.reserve.index());
    }
}

/// Records the result of a launch that was charged in advance.
fn launched(process: &Process, needs: &[Need], taken: &[Taken<'_>], result: CUresult) {
    if result.is_err() {
        return count_failures(process, taken);
    }
    for (one, need) in taken.iter().zip(needs) {
        need.has_room_since.store(one.trims, Relaxed);
    }
}

impl Graphs {
    fn needs(&self, exec: CUgraphExec) -> Option<Arc<[Need]>> {
        self.0.lock().get(&exec.0.addr()).cloned()
    }

    fn enter(&self, exec: CUgraphExec, needs: Arc<[Need]>) {
        let number = exec.0.addr();
        if needs.is_empty() {
            self.0.lock().remove(&number);
        } else {
            self.0.lock().insert(number, needs);
        }
    }
}

/// Returns what the graph's nodes allocate by device: bytes in whole pages, each page counted once.
fn needs(graph: CUgraph) -> Arc<[Need]> {
    let mut pages = Vec::new();
    collect(graph, 0, &mut pages);
    pages.sort_unstable();
    let mut needs: Vec<Need> = Vec::new();
    let mut end = 0;
    for (device, from, to) in pages {
        let Some(local) = LocalDevice::of(device) else {
            continue;
        };
        if needs.last().is_none_or(|need| need.local != local) {
            needs.push(Need {
                local,
                bytes: 0,
                has_room_since: AtomicUsize::new(NO_ROOM),
            });
            end = 0;
        }
        if let Some(need) = needs.last_mut() {
            need.bytes += to.saturating_sub(from.max(end));
            end = end.max(to);
        }
    }
    needs.into()
}

/// Appends each allocation as device, first and last address, in whole pages.
fn collect(graph: CUgraph, depth: u32, into: &mut Vec<(CUdevice, u64, u64)>) {
    for node in nodes(graph) {
        let mut kind = 0;
        if driver::cuGraphNodeGetType(node, &mut kind).is_err() {
            continue;
        }
        let mut params = CUDA_MEM_ALLOC_NODE_PARAMS::NONE;
        let mut child = CUgraph::NULL;
        if kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC
            && driver::cuGraphMemAllocNodeGetParams(node, &mut params).is_ok()
            && let Some(device) = params.pool.location.device()
        {
            let from = params.address.0 / PAGE * PAGE;
            let end = params.address.0.saturating_add(params.bytes as u64);
            into.push((device, from, end.checked_next_multiple_of(PAGE).unwrap_or(end)));
        } else if kind == CU_GRAPH_NODE_TYPE_GRAPH
            && depth < MOST_DEPTH
            && driver::cuGraphChildGraphNodeGetGraph(node, &mut child).is_ok()
        {
            collect(child, depth + 1, into);
        }
    }
}

/// `cuGraphAddMemAllocNode`: takes no memory yet.
pub(crate) fn add_allocation(next: Next<'_>) -> CUresult {
    begin_use();
    next()
}

/// `cuGraphAddNode`: adds a node of any type.
pub(crate) fn add(params: *const CUgraphNodeParams, next: Next<'_>) -> CUresult {
    if given(params).is_some_and(|params| params.kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        begin_use();
    }
    next()
}

/// `cuGraphInstantiate` and its variants.
pub(crate) fn instantiate(exec: *mut CUgraphExec, graph: CUgraph, flags: u64, next: Next<'_>) -> CUresult {
    let Some(process) = process::get().filter(|_| is_used()) else {
        return next();
    };
    let needs = needs(graph);
    let uploads = flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0;
    run(process, if uploads { &needs } else { &[] }, next)?;
    if let Some(exec) = written(exec) {
        process.memory.graphs.enter(exec, needs);
    }
    Ok(())
}

/// `cuGraphInstantiateWithParams`.
pub(crate) fn instantiate_with(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    params: *const CUDA_GRAPH_INSTANTIATE_PARAMS,
    next: Next<'_>,
) -> CUresult {
    let flags = given(params).map_or(0, |params| params.flags);
    instantiate(exec, graph, flags, next)
}

/// `cuGraphExecUpdate`: may change what the nodes allocate.
pub(crate) fn update(exec: CUgraphExec, graph: CUgraph, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(process) = process::get().filter(|_| is_used()) {
        process.memory.graphs.enter(exec, needs(graph));
    }
    Ok(())
}

/// `cuGraphExecDestroy`: the memory stays reserved until a trim.
pub(crate) fn destroy(exec: CUgraphExec, next: Next<'_>) -> CUresult {
    let Some(process) = process::get().filter(|_| is_used()) else {
        return next();
    };
    // Removed before the call, since the driver may reuse the handle at once.
    let known = process.memory.graphs.0.lock().remove(&exec.0.addr());
    let result = next();
    if let (Err(_), Some(needs)) = (result, known) {
        process.memory.graphs.enter(exec, needs);
    }
    result
}

/// `cuGraphUpload`.
pub(crate) fn upload(exec: CUgraphExec, next: Next<'_>) -> CUresult {
    let process = process::get().filter(|_| is_used());
    let known = process.and_then(|process| Some((process, process.memory.graphs.needs(exec)?)));
    match known {
        Some((process, needs)) => run(process, &needs, next),
        None => next(),
    }
}

/// `cuGraphLaunch`, after its gate.
pub(crate) fn launch(exec: CUgraphExec, next: Next<'_>) -> CUresult {
    let process = process::get().filter(|_| is_used());
    let known = process.and_then(|process| Some((process, process.memory.graphs.needs(exec)?)));
    let Some((process, needs)) = known else {
        return next();
    };
    let taken = take(process, &needs)?;
    let result = next();
    launched(process, &needs, &taken, result);
    result
}

/// `cuDeviceGraphMemTrim`.
pub(crate) fn trim(device: CUdevice, next: Next<'_>) -> CUresult {
    let Some((process, local)) = process::get().zip(LocalDevice::of(device)).filter(|_| is_used()) else {
        return next();
    };
    let index = process.devices.learn(process.control(), local);
    let _unsettled = Unsettled::on(process.usage(), index);
    next()?;
    process.memory.reserves.of_graphs(local, index).trimmed(process);
    Ok(())
}
