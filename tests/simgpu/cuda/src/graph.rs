//! Graphs: operations and the dependencies between them. `exec` instantiates graphs for launching.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{CUerror, CUgraph, CUgraphNode, CUresult, In, Out, Raw};
use crate::call::{Call, driver};
use crate::conditional::Conditional;
use crate::error::{INVALID_VALUE, NOT_SUPPORTED};
use crate::op::Op;
use crate::process::Process;
use crate::user_object::UserObject;

pub(crate) use crate::exec::Exec;

/// A graph.
pub(crate) struct Graph {
    handle: CUgraph,
    /// Nodes in the order of creation.
    nodes: Mutex<Vec<Arc<Node>>>,
    /// User objects that the graph retains.
    pub(crate) objects: Mutex<Vec<Arc<UserObject>>>,
}

/// A node of a graph.
pub(crate) struct Node {
    pub(crate) handle: CUgraphNode,
    graph: CUgraph,
    /// The node from which this one was cloned; 0 for none.
    original: CUgraphNode,
    pub(crate) task: Mutex<Task>,
    /// Nodes on which this one depends.
    after: Mutex<Vec<CUgraphNode>>,
}

/// Content of a node.
#[derive(Clone)]
pub(crate) enum Task {
    Op(Op),
    /// A child graph, owned by the node.
    Graph(CUgraph),
    /// Body graphs owned by the node, of which one runs.
    Conditional(Arc<Conditional>),
}

impl Task {
    /// Returns the `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Task::Graph(_) => 4,
            Task::Conditional(_) => 13,
            Task::Op(op) => match op {
                Op::Kernel(_) => 0,
                Op::Copy(_) => 1,
                Op::Fill(_) => 2,
                Op::Host(..) | Op::Callback(..) => 3,
                Op::Nothing | Op::Assign(_) => 5,
                Op::Wait(_) => 6,
                Op::Record(_) => 7,
                Op::GraphAllocate(_) => 10,
                Op::GraphFree(_) | Op::Free(..) => 11,
                Op::Store(_) | Op::Until(_) | Op::Batch(_) => 12,
                Op::Conditional(_) => 13,
            },
        }
    }
}

impl Graph {
    /// Creates an empty graph.
    pub(crate) fn make(process: &Process) -> Arc<Graph> {
        let handle = process.graphs.reserve();
        let graph = Arc::new(Graph {
            handle,
            nodes: Mutex::default(),
            objects: Mutex::default(),
        });
        process.graphs.insert_at(handle, Arc::clone(&graph));
        graph
    }

    pub(crate) fn handle(&self) -> CUgraph {
        self.handle
    }

    /// Adds a node that depends on other nodes of this graph.
    pub(crate) fn add(
        &self,
        process: &Process,
        task: Task,
        after: Vec<CUgraphNode>,
    ) -> Result<CUgraphNode, CUerror> {
        self.insert(process, task, after, 0)
    }

    fn insert(
        &self,
        process: &Process,
        task: Task,
        after: Vec<CUgraphNode>,
        original: CUgraphNode,
    ) -> Result<CUgraphNode, CUerror> {
        let mut nodes = self.nodes.lock();
        let is_known = |handle: &CUgraphNode| nodes.iter().any(|node| node.handle == *handle);
        let is_twice = |(index, handle)| after[..index].contains(handle);
        if !after.iter().all(is_known) || after.iter().enumerate().any(is_twice) {
            return Err(INVALID_VALUE);
        }
        let handle = process.nodes.reserve();
        let (task, after) = (Mutex::new(task), Mutex::new(after));
        let node = Arc::new(Node {
            handle,
            graph: self.handle,
            original,
            task,
            after,
        });
        process.nodes.insert_at(handle, Arc::clone(&node));
        nodes.push(node);
        Ok(handle)
    }

    /// Returns the nodes in topological order, otherwise in the order of creation; `None` if they form a
    /// cycle.
    pub(crate) fn order(&self) -> Option<Vec<Arc<Node>>> {
        let mut left = self.nodes.lock().clone();
        let mut order: Vec<Arc<Node>> = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let waits = |node: &Arc<Node>| {
                node.after
                    .lock()
                    .iter()
                    .any(|before| left.iter().any(|n| n.handle == *before))
            };
            let next = left.iter().position(|node| !waits(node))?;
            order.push(left.remove(next));
        }
        Some(order)
    }

    /// Returns all edges; the second node of a pair depends on the first.
    pub(crate) fn edges(&self) -> Vec<(CUgraphNode, CUgraphNode)> {
        let nodes = self.nodes.lock();
        let of = |node: &Arc<Node>| {
            node.after
                .lock()
                .iter()
                .map(|from| (*from, node.handle))
                .collect::<Vec<_>>()
        };
        nodes.iter().flat_map(of).collect()
    }

    /// Returns all nodes on which the given ones depend, those included.
    pub(crate) fn ancestors(&self, of: &[CUgraphNode]) -> HashSet<CUgraphNode> {
        let edges = self.edges();
        let mut found = HashSet::new();
        let mut open = of.to_vec();
        while let Some(node) = open.pop() {
            if found.insert(node) {
                open.extend(edges.iter().filter(|(_, to)| *to == node).map(|(from, _)| *from));
            }
        }
        found
    }

    pub(crate) fn handles(&self) -> Vec<CUgraphNode> {
        self.nodes.lock().iter().map(|node| node.handle).collect()
    }

    /// Clones the graph with its child graphs.
    pub(crate) fn copy(&self, process: &Process) -> Result<Arc<Graph>, CUerror> {
        let copy = Graph::make(process);
        copy.objects.lock().clone_from(&self.objects.lock());
        let mut new = HashMap::new();
        for node in self.order().ok_or(INVALID_VALUE)? {
            let task = match node.task.lock().clone() {
                Task::Graph(graph) => {
                    Task::Graph(process.graphs.get(graph, INVALID_VALUE)?.copy(process)?.handle)
                }
                // As documented: a graph with a conditional node cannot be cloned.
                Task::Conditional(_) => return Err(NOT_SUPPORTED),
                task @ Task::Op(_) => task,
            };
            let after = node
                .after
                .lock()
                .iter()
                .filter_map(|before| new.get(before).copied())
                .collect();
            new.insert(node.handle, copy.insert(process, task, after, node.handle)?);
        }
        Ok(copy)
    }

    /// Destroys the graph, its nodes and its child graphs.
    pub(crate) fn destroy(&self, process: &Process) {
        let _ = process.graphs.remove(self.handle, INVALID_VALUE);
        for node in self.nodes.lock().drain(..) {
            node.forget(process);
        }
    }
}

impl Node {
    fn forget(&self, process: &Process) {
        let _ = process.nodes.remove(self.handle, INVALID_VALUE);
        let task = self.task.lock().clone();
        match task {
            Task::Graph(graph) => {
                if let Ok(graph) = process.graphs.get(graph, INVALID_VALUE) {
                    graph.destroy(process);
                }
            }
            Task::Conditional(conditional) => conditional.forget(process),
            Task::Op(_) => (),
        }
    }
}

impl Call {
    pub(crate) fn graph(&self, graph: CUgraph) -> Result<Arc<Graph>, CUerror> {
        self.process.graphs.get(graph, INVALID_VALUE)
    }

    pub(crate) fn node(&self, node: CUgraphNode) -> Result<Arc<Node>, CUerror> {
        self.process.nodes.get(node, INVALID_VALUE)
    }
}

/// Returns the number of nodes, or stores as many as there is room for and zeroes the rest.
fn list(out: Out<CUgraphNode>, count: Out<usize>, found: &[CUgraphNode]) -> CUresult {
    let room = count.get()?;
    if out.is_null() {
        return count.set(found.len());
    }
    for index in 0..room {
        out.set_at(index, found.get(index).copied().unwrap_or(0));
    }
    count.set(found.len().min(room))
}

fn list_edges(
    call: Call,
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    count: Out<usize>,
) -> CUresult {
    let room = count.get()?;
    let edges = call.graph(graph)?.edges();
    if from.is_null() != to.is_null() {
        return Err(INVALID_VALUE);
    }
    if from.is_null() {
        return count.set(edges.len());
    }
    for index in 0..room {
        let (first, second) = edges.get(index).copied().unwrap_or((0, 0));
        from.set_at(index, first);
        to.set_at(index, second);
    }
    count.set(edges.len().min(room))
}

/// Stores zeros as edge data: edges have no data here.
fn no_data(data: Out<u64>, count: Out<usize>) -> CUresult {
    let length = if data.is_null() { 0 } else { count.get()? };
    (0..length).for_each(|index| data.set_at(index, 0));
    Ok(())
}

fn before(call: Call, node: CUgraphNode, out: Out<CUgraphNode>, count: Out<usize>) -> CUresult {
    let found = call.node(node)?.after.lock().clone();
    list(out, count, &found)
}

fn behind(call: Call, node: CUgraphNode, out: Out<CUgraphNode>, count: Out<usize>) -> CUresult {
    let edges = call.graph(call.node(node)?.graph)?.edges();
    let found: Vec<_> = edges
        .iter()
        .filter(|(from, _)| *from == node)
        .map(|(_, to)| *to)
        .collect();
    list(out, count, &found)
}

/// Adds or removes edges: all, or none if one is invalid.
fn connect(
    call: Call,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    count: usize,
    is_wanted: bool,
) -> CUresult {
    let graph = call.graph(graph)?;
    let edges: Vec<_> = from.list(count)?.into_iter().zip(to.list(count)?).collect();
    let now = graph.edges();
    for &(from, to) in &edges {
        let ours = |node| call.node(node).is_ok_and(|node| node.graph == graph.handle);
        if !ours(from) || !ours(to) || from == to || now.contains(&(from, to)) == is_wanted {
            return Err(INVALID_VALUE);
        }
    }
    for (from, to) in edges {
        let node = call.node(to)?;
        let mut after = node.after.lock();
        if is_wanted {
            after.push(from)
        } else {
            after.retain(|before| *before != from)
        }
    }
    Ok(())
}

fn remove(call: Call, handle: CUgraphNode) -> CUresult {
    let node = call.node(handle)?;
    let graph = call.graph(node.graph)?;
    let mut nodes = graph.nodes.lock();
    nodes.retain(|other| other.handle != handle);
    nodes
        .iter()
        .for_each(|other| other.after.lock().retain(|before| *before != handle));
    node.forget(call.process);
    Ok(())
}

driver! {
    fn cuGraphCreate(graph: Out<CUgraph>, flags: u32) |call| {
        if graph.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        graph.set(Graph::make(call.process).handle)
    }
    fn cuGraphDestroy(graph: CUgraph) |call| {
        call.graph(graph)?.destroy(call.process);
        Ok(())
    }
    fn cuGraphClone(clone: Out<CUgraph>, graph: CUgraph) |call| { clone.set(call.graph(graph)?.copy(call.process)?.handle) }
    fn cuGraphNodeFindInClone(found: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph) |call| {
        let clone = call.graph(clone)?;
        let nodes = clone.nodes.lock();
        let node = nodes.iter().find(|node| node.original == original && original != 0);
        found.set(node.ok_or(INVALID_VALUE)?.handle)
    }
    fn cuGraphDestroyNode(node: CUgraphNode) |call| { remove(call, node) }
    fn cuGraphNodeGetType(node: CUgraphNode, kind: Out<u32>) |call| { kind.set(call.node(node)?.task.lock().kind()) }
    fn cuGraphNodeGetContainingGraph(node: CUgraphNode, graph: Out<CUgraph>) |call| { graph.set(call.node(node)?.graph) }
    fn cuGraphNodeGetLocalId(node: CUgraphNode, id: Out<u32>) |call| {
        let graph = call.graph(call.node(node)?.graph)?;
        let place = graph.handles().iter().position(|handle| *handle == node).ok_or(INVALID_VALUE)?;
        id.set(u32::try_from(place).unwrap_or(u32::MAX))
    }
    fn cuGraphNodeGetToolsId(node: CUgraphNode, id: Out<u64>) |call| { id.set(call.node(node)?.handle as u64) }
    fn cuGraphGetId(graph: CUgraph, id: Out<u32>) |call| {
        id.set(u32::try_from(call.graph(graph)?.handle >> 4 & 0xffff_ffff).unwrap_or(0))
    }
    fn cuGraphGetNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) |call| {
        list(nodes, count, &call.graph(graph)?.handles())
    }
    fn cuGraphGetRootNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) |call| {
        let graph = call.graph(graph)?;
        let is_root = |node: &&Arc<Node>| node.after.lock().is_empty();
        let roots: Vec<_> = graph.nodes.lock().iter().filter(is_root).map(|node| node.handle).collect();
        list(nodes, count, &roots)
    }
    fn cuGraphGetEdges(graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Out<usize>) |call| {
        list_edges(call, graph, from, to, count)
    }
    fn cuGraphGetEdges_v2(
        graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, data: Out<u64>, count: Out<usize>,
    ) |call| {
        no_data(data, count)?;
        list_edges(call, graph, from, to, count)
    }
    fn cuGraphNodeGetDependencies(node: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>) |call| {
        before(call, node, nodes, count)
    }
    fn cuGraphNodeGetDependencies_v2(node: CUgraphNode, nodes: Out<CUgraphNode>, data: Out<u64>, count: Out<usize>) |call| {
        no_data(data, count)?;
        before(call, node, nodes, count)
    }
    fn cuGraphNodeGetDependentNodes(node: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>) |call| {
        behind(call, node, nodes, count)
    }
    fn cuGraphNodeGetDependentNodes_v2(node: CUgraphNode, nodes: Out<CUgraphNode>, data: Out<u64>, count: Out<usize>) |call| {
        no_data(data, count)?;
        behind(call, node, nodes, count)
    }
    fn cuGraphAddDependencies(graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) |call| {
        connect(call, graph, from, to, count, true)
    }
    fn cuGraphAddDependencies_v2(graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, _data: Raw, count: usize) |call| {
        connect(call, graph, from, to, count, true)
    }
    fn cuGraphRemoveDependencies(graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) |call| {
        connect(call, graph, from, to, count, false)
    }
    fn cuGraphRemoveDependencies_v2(graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, _data: Raw, count: usize) |call| {
        connect(call, graph, from, to, count, false)
    }
}
