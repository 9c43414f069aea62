//! Executable graphs: number of kernels and devices used.
//!
//! A graph launch is one submission of that many kernels. Nodes inside conditional nodes are not counted:
//! only the GPU knows how often they run.

use std::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::gate;
use super::reach::DeviceSet;
use crate::driver;
use crate::driver::cuda::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL, CUgraph, CUgraphExec, CUgraphNode, CUresult,
    CUstream,
};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::written;
use crate::process;

use gcgroup_abi::Submission;

/// Graphs nested deeper than this are not examined.
const DEEPEST: u32 = 16;

/// Executable graphs by handle.
#[derive(Debug, Default)]
pub(crate) struct Graphs(RwLock<HashMap<usize, Known>>);

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    kernels: u64,
    /// Devices of its nodes; empty if the process uses one device.
    devices: DeviceSet,
}

/// Handles `cuGraphInstantiate` and its variants.
pub(crate) fn instantiate(made: *mut CUgraphExec, graph: CUgraph, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(process), Some(made)) = (process::get(), written(made)) {
        let known = Known {
            kernels: kernels(graph, 0),
            devices: process.reach.devices(process, graph),
        };
        process.graphs.0.write().insert(made.0.addr(), known);
    }
    Ok(())
}

/// Handles `cuGraphExecDestroy`.
pub(crate) fn destroy(graph: CUgraphExec, next: Next<'_>) -> CUresult {
    let known = process::get().and_then(|process| process.graphs.0.write().remove(&graph.0.addr()));
    let result = next();
    if let (Err(_), Some(process), Some(known)) = (result, process::get(), known) {
        process.graphs.0.write().insert(graph.0.addr(), known);
    }
    result
}

/// Handles `cuGraphLaunch`.
pub(crate) fn launch(graph: CUgraphExec, stream: CUstream, next: Next<'_>) -> CUresult {
    let known = process::get().and_then(|process| process.graphs.0.read().get(&graph.0.addr()).copied());
    let known = known.unwrap_or_default();
    gate::submit(
        Submission::Graph,
        stream,
        known.devices,
        &|usage| {
            next()?;
            usage.graph_kernels.fetch_add(known.kernels, Relaxed);
            Ok(())
        },
        next,
    )
}

/// Returns how many of a graph's nodes are kernels.
fn kernels(graph: CUgraph, depth: u32) -> u64 {
    if depth == DEEPEST {
        return 0;
    }
    nodes(graph).into_iter().map(|node| kernels_of(node, depth)).sum()
}

/// Returns a graph's nodes; empty if the driver does not answer.
pub(crate) fn nodes(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    if driver::cuGraphGetNodes(graph, None, &mut count).is_err() {
        return Vec::new();
    }
    let mut nodes = vec![CUgraphNode::NULL; count];
    if driver::cuGraphGetNodes(graph, nodes.first_mut(), &mut count).is_err() {
        return Vec::new();
    }
    nodes.truncate(count);
    nodes
}

fn kernels_of(node: CUgraphNode, depth: u32) -> u64 {
    let mut kind = u32::MAX;
    match driver::cuGraphNodeGetType(node, &mut kind).map(|()| kind) {
        Ok(CU_GRAPH_NODE_TYPE_KERNEL) => 1,
        Ok(CU_GRAPH_NODE_TYPE_GRAPH) => {
            let mut child = CUgraph::NULL;
            driver::cuGraphChildGraphNodeGetGraph(node, &mut child).map_or(0, |()| kernels(child, depth + 1))
        }
        _ => 0,
    }
}
