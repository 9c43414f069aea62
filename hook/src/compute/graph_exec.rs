//! Executable graphs: their number of kernels.
//!
//! A graph launch is one submission of that many kernels. Nodes inside conditional nodes are not counted:
//! only the GPU knows how often they run. In a process with contexts on several devices, a node may be on any
//! of them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::driver;
use crate::driver::cuda::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL, CUgraph, CUgraphExec, CUgraphNode,
};
use crate::driver::graphs::nodes;
use crate::program::contexts::Contexts;

/// Graphs nested deeper than this are not examined.
const DEEPEST: u32 = 16;

#[derive(Debug, Default)]
pub(crate) struct ExecGraphs {
    /// Number of kernels by handle.
    kernels: RwLock<HashMap<usize, u64>>,
    /// Set once a graph was launched while the process had contexts on several devices.
    may_be_anywhere: AtomicBool,
}

impl ExecGraphs {
    pub(crate) fn insert(&self, graph: CUgraphExec, kernels: u64) {
        self.kernels.write().insert(graph.0.addr(), kernels);
    }

    pub(crate) fn remove(&self, graph: CUgraphExec) -> Option<u64> {
        self.kernels.write().remove(&graph.0.addr())
    }

    /// Returns the number of kernels; 0 if the graph is unknown.
    pub(crate) fn kernels(&self, graph: CUgraphExec) -> u64 {
        self.kernels.read().get(&graph.0.addr()).copied().unwrap_or(0)
    }

    /// Records a launch.
    pub(super) fn launched(&self, contexts: &Contexts) {
        if contexts.are_on_several() && !self.may_be_anywhere() {
            self.may_be_anywhere.store(true, Relaxed);
        }
    }

    /// Returns whether work on a stream may run on another device than the stream's.
    pub(super) fn may_be_anywhere(&self) -> bool {
        self.may_be_anywhere.load(Relaxed)
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
