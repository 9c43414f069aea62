//! Executable graphs: number of kernels and devices used.
//!
//! A graph launch is one submission of that many kernels. Nodes inside conditional nodes are not counted:
//! only the GPU knows how often they run.

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::device_set::DeviceSet;
use crate::driver;
use crate::driver::cuda::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL, CUgraph, CUgraphExec, CUgraphNode,
};
use crate::driver::graphs::nodes;

/// Graphs nested deeper than this are not examined.
const DEEPEST: u32 = 16;

/// Executable graphs by handle.
#[derive(Debug, Default)]
pub(crate) struct ExecGraphs(RwLock<HashMap<usize, ExecGraph>>);

/// Number of kernels and devices of an executable graph.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ExecGraph {
    pub(crate) kernels: u64,
    /// Devices of its nodes; empty if the process uses one device.
    pub(crate) devices: DeviceSet,
}

impl ExecGraphs {
    pub(crate) fn insert(&self, graph: CUgraphExec, graph_facts: ExecGraph) {
        self.0.write().insert(graph.0.addr(), graph_facts);
    }

    pub(crate) fn remove(&self, graph: CUgraphExec) -> Option<ExecGraph> {
        self.0.write().remove(&graph.0.addr())
    }

    pub(crate) fn get(&self, graph: CUgraphExec) -> Option<ExecGraph> {
        self.0.read().get(&graph.0.addr()).copied()
    }
}

/// Returns how many of a graph's nodes are kernels.
pub(crate) fn kernels(graph: CUgraph) -> u64 {
    kernels_at(graph, 0)
}

fn kernels_at(graph: CUgraph, depth: u32) -> u64 {
    if depth == DEEPEST {
        return 0;
    }
    let nodes = nodes(graph).unwrap_or_default().into_iter();
    nodes.map(|node| kernels_of(node, depth)).sum()
}

fn kernels_of(node: CUgraphNode, depth: u32) -> u64 {
    let mut kind = u32::MAX;
    match driver::cuGraphNodeGetType(node, &mut kind).map(|()| kind) {
        Ok(CU_GRAPH_NODE_TYPE_KERNEL) => 1,
        Ok(CU_GRAPH_NODE_TYPE_GRAPH) => {
            let mut child = CUgraph::NULL;
            driver::cuGraphChildGraphNodeGetGraph(node, &mut child)
                .map_or(0, |()| kernels_at(child, depth + 1))
        }
        _ => 0,
    }
}
