//! Memory allocated by graphs, through nodes or captured calls: charged by what the driver reserves for it.
//!
//! An allocation of a graph has its address from the start, and physical memory from the graph's first launch
//! until a trim. Allocations that never exist at the same time share addresses, so what a graph needs is
//! known at instantiation; what a launch will take of the device is predicted from that. If no graph
//! allocates, a launch costs one load more.
//!
//! Graphs that run one after the other share their memory. The graph that ran last has what it needs. For
//! another one the driver takes more, unless what others use is free by then: at a limit, their streams are
//! awaited as those of freed blocks are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::Memory;
use super::account::Want;
use super::page_counter::Unsettled;
use super::reserve::{Advance, Reserve};
use super::stream::{Order, Stream};
use crate::driver;
use crate::driver::cuda::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, CUdevice, CUerror,
    CUgraph, CUgraphExec, CUresult, CUstream,
};
use crate::driver::graphs::nodes;
use crate::driver::interpose::Next;
use crate::shared::device::LocalDevice;

/// Set once any graph of this program allocates.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Number of needs so far.
static NR_NEEDS: AtomicU64 = AtomicU64::new(0);

/// Size of a page of device memory, bytes.
const PAGE: u64 = 2 << 20;

/// Memory that an executable graph needs on one device.
#[derive(Debug)]
pub(crate) struct Need {
    local: LocalDevice,
    bytes: u64,
    /// Distinguishes it from all others of the process.
    number: u64,
}

/// Executable graphs that allocate, by handle.
#[derive(Debug, Default)]
pub(crate) struct Graphs(Mutex<HashMap<usize, Arc<[Need]>>>);

/// Returns whether a launch may allocate.
pub(crate) fn is_used() -> bool {
    IS_USED.load(Relaxed)
}

/// Records that some graph allocates.
pub(crate) fn begin_use() {
    IS_USED.store(true, Relaxed);
}

/// Memory of a device that a call running a graph may take, charged in advance; settled when dropped.
pub(crate) struct Taken<'a> {
    memory: &'a Memory,
    reserve: Arc<Reserve>,
    held: Advance,
    /// The launch that uses the memory.
    order: Option<Order>,
    unsettled: Option<Unsettled<'a>>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // Growth that does not fit exists all the same, and is charged.
        if self.reserve.settle(self.memory, Some(self.held)).is_err() {
            // The helper trims it when the stream has passed the launch.
            self.memory.session.line.wake();
        }
        let mut account = self.reserve.account.lock();
        account.end(self.held.begun.bytes, self.order);
        if self.order.is_none() {
            account.forget_graph();
        }
    }
}

/// Charges what the driver will reserve for graphs with these needs.
pub(crate) fn take<'a>(memory: &'a Memory, needs: &[Need]) -> Result<Vec<Taken<'a>>, CUerror> {
    let mut taken = Vec::with_capacity(needs.len());
    for need in needs {
        let index = memory.session.devices.learn(memory.control(), need.local);
        let reserve = memory.reserves.of_graphs(need.local, index);
        let held = reserve.charge(memory, || {
            let measurements = reserve.account.lock().measurements();
            let (reserved, used) = (reserve.reserved().unwrap_or(0), reserve.used().unwrap_or(0));
            Want::Graph {
                number: need.number,
                bytes: need.bytes,
                free: reserved.saturating_sub(used),
                measurements,
            }
        })?;
        taken.push(Taken {
            memory,
            reserve,
            held,
            order: None,
            unsettled: None,
        });
    }
    // A charge may wait for a measurement, for which nothing may be unsettled.
    for one in &mut taken {
        one.unsettled = Some(Unsettled::on(memory.usage(), one.reserve.index()));
    }
    Ok(taken)
}

/// Runs a call other than a launch that may take what `needs` says.
pub(crate) fn run(memory: &Memory, needs: &[Need], call: Next<'_>) -> CUresult {
    let taken = take(memory, needs)?;
    let result = call();
    if result.is_err() {
        count_failures(memory, &taken);
    }
    result
}

fn count_failures(memory: &Memory, taken: &[Taken<'_>]) {
    for one in taken {
        memory.count_failure(one.reserve.index());
    }
}

/// Records the result of a launch that was charged in advance.
pub(crate) fn launched(memory: &Memory, taken: &mut [Taken<'_>], stream: CUstream, result: CUresult) {
    if result.is_err() {
        return count_failures(memory, taken);
    }
    let order = memory.ordered(Stream::of(memory.program, stream.0.addr()));
    taken.iter_mut().for_each(|one| one.order = Some(order));
}

impl Graphs {
    pub(crate) fn remove(&self, exec: CUgraphExec) -> Option<Arc<[Need]>> {
        self.0.lock().remove(&exec.0.addr())
    }

    pub(crate) fn needs(&self, exec: CUgraphExec) -> Option<Arc<[Need]>> {
        self.0.lock().get(&exec.0.addr()).cloned()
    }

    pub(crate) fn enter(&self, exec: CUgraphExec, needs: Arc<[Need]>) {
        let number = exec.0.addr();
        if needs.is_empty() {
            self.0.lock().remove(&number);
        } else {
            self.0.lock().insert(number, needs);
        }
    }
}

/// Returns what the graph's nodes allocate by device: bytes in whole pages, each page counted once.
///
/// # Errors
/// The driver's, where a limit is in force: an allocation may be unknown.
pub(crate) fn needs(memory: &Memory, graph: CUgraph) -> Result<Arc<[Need]>, CUerror> {
    let mut pages = match allocations(graph) {
        Err(error) if memory.is_limited() => return Err(error),
        found => found.unwrap_or_default(),
    };
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
                number: NR_NEEDS.fetch_add(1, Relaxed) + 1,
            });
            end = 0;
        }
        if let Some(need) = needs.last_mut() {
            need.bytes += to.saturating_sub(from.max(end));
            end = end.max(to);
        }
    }
    Ok(needs.into())
}

/// Returns each allocation of the graph and its child graphs as device, first and last address, in whole
/// pages.
fn allocations(graph: CUgraph) -> Result<Vec<(CUdevice, u64, u64)>, CUerror> {
    let (mut left, mut pages) = (vec![graph], Vec::new());
    while let Some(graph) = left.pop() {
        for node in nodes(graph)? {
            let mut kind = 0;
            driver::cuGraphNodeGetType(node, &mut kind)?;
            if kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
                let mut params = CUDA_MEM_ALLOC_NODE_PARAMS::NONE;
                driver::cuGraphMemAllocNodeGetParams(node, &mut params)?;
                if let Some(device) = params.pool.location.device() {
                    let from = params.address.0 / PAGE * PAGE;
                    let end = params.address.0.saturating_add(params.bytes as u64);
                    pages.push((device, from, end.checked_next_multiple_of(PAGE).unwrap_or(end)));
                }
            } else if kind == CU_GRAPH_NODE_TYPE_GRAPH {
                let mut child = CUgraph::NULL;
                driver::cuGraphChildGraphNodeGetGraph(node, &mut child)?;
                left.push(child);
            }
        }
    }
    Ok(pages)
}
