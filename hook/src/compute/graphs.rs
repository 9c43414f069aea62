//! Graphs that can be launched, and how many kernels each has.
//!
//! A launch is one submission, of as many kernels. Nodes inside conditional nodes are not counted: how often they run is
//! known to the GPU alone.

use std::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::gate;
use crate::cuda::{CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream};
use crate::driver;
use crate::interpose::Next;
use crate::place::written;
use crate::process;

use gcgroup_abi::Submission;

const CU_GRAPH_NODE_TYPE_KERNEL: u32 = 0;
const CU_GRAPH_NODE_TYPE_GRAPH: u32 = 4;
/// Graphs within graphs beyond this depth are not looked into.
const DEEPEST: u32 = 16;

/// Kernels by the launchable graph's handle.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    kernels: RwLock<HashMap<usize, u64>>,
}

/// `cuGraphInstantiate` and its like.
pub(crate) fn instantiate(made: *mut CUgraphExec, graph: CUgraph, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(process), Some(made)) = (process::get(), written(made)) {
        let kernels = kernels(graph, 0);
        process.graphs.kernels.write().insert(made.0.addr(), kernels);
    }
    Ok(())
}

/// `cuGraphExecDestroy`.
pub(crate) fn destroy(graph: CUgraphExec, next: Next<'_>) -> CUresult {
    let known = process::get().and_then(|process| process.graphs.kernels.write().remove(&graph.0.addr()));
    let result = next();
    if let (Err(_), Some(process), Some(kernels)) = (result, process::get(), known) {
        process.graphs.kernels.write().insert(graph.0.addr(), kernels);
    }
    result
}

/// `cuGraphLaunch`.
pub(crate) fn launch(graph: CUgraphExec, stream: CUstream, next: Next<'_>) -> CUresult {
    gate::submit(
        Submission::Graph,
        stream,
        &|usage| {
            next()?;
            let Some(process) = process::get() else {
                return Ok(());
            };
            let kernels = process.graphs.kernels.read().get(&graph.0.addr()).copied();
            usage.graph_kernels.fetch_add(kernels.unwrap_or(0), Relaxed);
            Ok(())
        },
        next,
    )
}

/// How many of a graph's nodes are kernels.
fn kernels(graph: CUgraph, depth: u32) -> u64 {
    let mut count = 0;
    if depth == DEEPEST || driver::cuGraphGetNodes(graph, None, &mut count).is_err() {
        return 0;
    }
    let mut nodes = vec![CUgraphNode::NULL; count];
    if driver::cuGraphGetNodes(graph, nodes.first_mut(), &mut count).is_err() {
        return 0;
    }
    nodes
        .iter()
        .take(count)
        .map(|node| kernels_of(*node, depth))
        .sum()
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
