//! The nodes of a graph.

use super::cuda::{CUerror, CUgraph, CUgraphNode};
use super::functions::cuGraphGetNodes;

/// Returns a graph's nodes.
pub(crate) fn nodes(graph: CUgraph) -> Result<Vec<CUgraphNode>, CUerror> {
    let mut count = 0;
    cuGraphGetNodes(graph, None, &mut count)?;
    let mut nodes = vec![CUgraphNode::NULL; count];
    cuGraphGetNodes(graph, nodes.first_mut(), &mut count)?;
    nodes.truncate(count);
    Ok(nodes)
}
