//! The nodes of a graph.

use super::cuda::{CUgraph, CUgraphNode};
use super::functions::cuGraphGetNodes;

/// Returns a graph's nodes; empty if the driver does not answer.
pub(crate) fn nodes(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    if cuGraphGetNodes(graph, None, &mut count).is_err() {
        return Vec::new();
    }
    let mut nodes = vec![CUgraphNode::NULL; count];
    if cuGraphGetNodes(graph, nodes.first_mut(), &mut count).is_err() {
        return Vec::new();
    }
    nodes.truncate(count);
    nodes
}
