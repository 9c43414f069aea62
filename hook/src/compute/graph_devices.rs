//! Devices of a graph: its nodes may be on other devices than the stream on which it is launched.
//!
//! Determined when a graph is instantiated, and only in a process with contexts on several devices: no update
//! of an executable graph moves a node to another device. For each node the driver returns its context, its
//! function or the memory it names. A function's device is that of its module, recorded when the module is
//! loaded. The graphs in a conditional node are recorded when the node is created. Captured work is on the
//! device of the capturing stream. For a copy of a graph, only the nodes are examined.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::MAX_DEVICES;
use hashbrown::HashMap;
use parking_lot::RwLock;

use super::device_set::DeviceSet;
use super::elsewhere::{self, KnownMemory};
use crate::driver::cuda::{
    CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_NODE_TYPE_GRAPH,
    CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEMCPY,
    CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEM_ALLOC_NODE_PARAMS, CUcontext, CUfunction, CUgraph, CUgraphNode,
    CUmodule, CUstream, NODE_WORDS,
};
use crate::driver::{self, graphs};
use crate::program::contexts::Contexts;
use crate::shared::device::LocalDevice;

/// Graphs nested deeper than this are not examined.
const DEEPEST: u32 = 16;

/// Facts about graphs and modules that the driver does not return.
#[derive(Debug)]
pub(crate) struct GraphDevices {
    /// Device of each module, by handle.
    modules: RwLock<HashMap<usize, LocalDevice>>,
    /// Facts about graphs, by handle.
    graphs: RwLock<HashMap<usize, GraphFacts>>,
    /// Set, for each device, of the devices from whose streams graphs were launched that use it.
    feeders: [AtomicU64; MAX_DEVICES],
}

/// Facts about one graph that the driver does not return.
#[derive(Debug, Default)]
struct GraphFacts {
    /// Devices of the streams that the graph was captured from.
    captured: DeviceSet,
    /// Handles of the graphs in each conditional node.
    bodies: HashMap<usize, Vec<usize>>,
}

/// Facts that were removed with a graph.
#[derive(Debug)]
pub(crate) struct RemovedGraphs(Vec<(usize, GraphFacts)>);

impl Default for GraphDevices {
    fn default() -> Self {
        Self {
            modules: RwLock::default(),
            graphs: RwLock::default(),
            feeders: [const { AtomicU64::new(0) }; MAX_DEVICES],
        }
    }
}

impl GraphDevices {
    /// Records that a submission to `stream` becomes part of a graph.
    pub(crate) fn capture(&self, contexts: &Contexts, stream: CUstream, current: Option<LocalDevice>) {
        if !contexts.are_on_several() {
            return;
        }
        let (mut status, mut id, mut graph) = (0, 0, CUgraph::NULL);
        let local = contexts.device_of(stream).or(current);
        if driver::cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, 0, 0).is_ok()
            && !graph.is_null()
            && let Some(local) = local
        {
            let mut graphs = self.graphs.write();
            let facts = graphs.entry(graph.0.addr()).or_default();
            facts.captured = facts.captured.and(DeviceSet::one(local));
        }
    }

    /// Records the launch of a graph that uses `devices` on a stream of the device `from`.
    pub(crate) fn launch(&self, devices: DeviceSet, from: impl FnOnce() -> Option<LocalDevice>) {
        let Some(from) = (devices != DeviceSet::default()).then(from).flatten() else {
            return;
        };
        for local in devices.without(from).iter() {
            if let Some(feeders) = self.feeders.get(usize::from(local.number()))
                && feeders.load(Relaxed) & DeviceSet::one(from).0 == 0
            {
                feeders.fetch_or(DeviceSet::one(from).0, Relaxed);
            }
        }
    }

    /// Returns whether work submitted to streams of `from` may run on another device that is `wanted`.
    pub(super) fn is_feeder(&self, from: LocalDevice, wanted: impl Fn(LocalDevice) -> bool) -> bool {
        let feeds = |local: &LocalDevice| {
            let feeders = self.feeders.get(usize::from(local.number()));
            feeders.is_some_and(|feeders| feeders.load(Relaxed) & DeviceSet::one(from).0 != 0)
        };
        DeviceSet(u64::MAX).iter().filter(feeds).any(wanted)
    }

    /// Returns the known devices of the graph's nodes; empty if the process uses only one device.
    pub(crate) fn devices(&self, contexts: &Contexts, known: KnownMemory<'_>, graph: CUgraph) -> DeviceSet {
        if contexts.are_on_several() {
            self.of_graph(contexts, known, graph, 0)
        } else {
            DeviceSet::default()
        }
    }

    fn of_graph(&self, contexts: &Contexts, known: KnownMemory<'_>, graph: CUgraph, depth: u32) -> DeviceSet {
        if depth == DEEPEST {
            return DeviceSet::default();
        }
        let captured = self
            .graphs
            .read()
            .get(&graph.0.addr())
            .map(|facts| facts.captured);
        graphs::nodes(graph)
            .unwrap_or_default()
            .into_iter()
            .map(|node| self.of_node(contexts, known, graph, node, depth))
            .fold(captured.unwrap_or_default(), DeviceSet::and)
    }

    #[expect(clippy::too_many_arguments, reason = "what the walk of one graph knows")]
    fn of_node(
        &self,
        contexts: &Contexts,
        known: KnownMemory<'_>,
        graph: CUgraph,
        node: CUgraphNode,
        depth: u32,
    ) -> DeviceSet {
        let mut kind = u32::MAX;
        let mut words = [0; NODE_WORDS];
        let asked = driver::cuGraphNodeGetType(node, &mut kind);
        let one = |local: Option<LocalDevice>| local.map_or(DeviceSet::default(), DeviceSet::one);
        match asked.map_or(u32::MAX, |()| kind) {
            CU_GRAPH_NODE_TYPE_KERNEL => one(self.of_kernel(contexts, node)),
            CU_GRAPH_NODE_TYPE_MEMCPY => match driver::cuGraphMemcpyNodeGetParams(node, &mut words) {
                Ok(()) => elsewhere::devices_of_copy(known, |offset| words.get(offset / 8).copied())
                    .map(DeviceSet::one)
                    .fold(DeviceSet::default(), DeviceSet::and),
                Err(_) => DeviceSet::default(),
            },
            CU_GRAPH_NODE_TYPE_MEMSET => match driver::cuGraphMemsetNodeGetParams(node, &mut words) {
                Ok(()) => one(elsewhere::device_of(known, words[0])),
                Err(_) => DeviceSet::default(),
            },
            CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
                match driver::cuGraphBatchMemOpNodeGetParams(node, &mut words) {
                    Ok(()) => one(of_context(contexts, words[0])),
                    Err(_) => DeviceSet::default(),
                }
            }
            CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                let mut params = CUDA_MEM_ALLOC_NODE_PARAMS::NONE;
                let asked = driver::cuGraphMemAllocNodeGetParams(node, &mut params);
                let device = asked.ok().and_then(|()| params.pool.location.device());
                one(device.and_then(LocalDevice::of))
            }
            CU_GRAPH_NODE_TYPE_GRAPH => {
                let mut child = CUgraph::NULL;
                let asked = driver::cuGraphChildGraphNodeGetGraph(node, &mut child);
                asked.map_or(DeviceSet::default(), |()| {
                    self.of_graph(contexts, known, child, depth + 1)
                })
            }
            CU_GRAPH_NODE_TYPE_CONDITIONAL => {
                let bodies = self.bodies(graph, node).into_iter();
                bodies
                    .map(CUgraph::numbered)
                    .map(|body| self.of_graph(contexts, known, body, depth + 1))
                    .fold(DeviceSet::default(), DeviceSet::and)
            }
            _ => DeviceSet::default(),
        }
    }

    /// Returns the graphs in a conditional node. Known only for the graph that the node was added to: in a
    /// copy they have other handles, and the recorded ones may be stale by then.
    fn bodies(&self, graph: CUgraph, node: CUgraphNode) -> Vec<usize> {
        let graphs = self.graphs.read();
        let bodies = graphs
            .get(&graph.0.addr())
            .and_then(|facts| facts.bodies.get(&node.0.addr()));
        bodies.cloned().unwrap_or_default()
    }

    /// Removes and returns what was recorded of a graph and of the graphs in its conditional nodes, which go
    /// with it; `put_back` undoes it.
    pub(crate) fn remove_graph(&self, graph: CUgraph) -> RemovedGraphs {
        let mut graphs = self.graphs.write();
        let (mut left, mut removed) = (vec![graph.0.addr()], Vec::new());
        while let Some(graph) = left.pop() {
            if let Some(facts) = graphs.remove(&graph) {
                left.extend(facts.bodies.values().flatten());
                removed.push((graph, facts));
            }
        }
        RemovedGraphs(removed)
    }

    /// Records again what [`Self::remove_graph`] removed.
    pub(crate) fn put_back(&self, removed: RemovedGraphs) {
        self.graphs.write().extend(removed.0);
    }

    /// Records the graphs in a conditional node that was added to `graph`.
    pub(crate) fn add_bodies(&self, graph: CUgraph, node: CUgraphNode, bodies: &[CUgraph]) {
        let bodies = bodies.iter().map(|body| body.0.expose_provenance()).collect();
        let mut graphs = self.graphs.write();
        let facts = graphs.entry(graph.0.addr()).or_default();
        facts.bodies.insert(node.0.addr(), bodies);
    }

    /// Records that a module belongs to the current context.
    pub(crate) fn load(&self, module: CUmodule) {
        if let Some(local) = current_device() {
            self.modules.write().insert(module.0.addr(), local);
        }
    }

    /// Records that a function's module belongs to the current context.
    pub(crate) fn load_module_of(&self, function: CUfunction) {
        if let Some(module) = module_of(function) {
            self.load(module);
        }
    }

    /// Removes a module and returns its device.
    pub(crate) fn unload(&self, module: CUmodule) -> Option<LocalDevice> {
        self.modules.write().remove(&module.0.addr())
    }

    /// Records a module's device.
    pub(crate) fn reload(&self, module: CUmodule, local: LocalDevice) {
        self.modules.write().insert(module.0.addr(), local);
    }

    fn of_kernel(&self, contexts: &Contexts, node: CUgraphNode) -> Option<LocalDevice> {
        // The older call is that of drivers before CUDA 12, which have no kernels without a context.
        let mut words = [0; NODE_WORDS];
        driver::cuGraphKernelNodeGetParams_v2(node, &mut words)
            .or_else(|_| driver::cuGraphKernelNodeGetParams(node, &mut words))
            .ok()?;
        if words[FUNCTION] == 0 {
            return of_context(contexts, words[CONTEXT]);
        }
        let module = module_of(CUfunction::numbered(words[FUNCTION]))?;
        self.modules.read().get(&module.0.addr()).copied()
    }
}

/// Offsets in `CUDA_KERNEL_NODE_PARAMS`, words.
const FUNCTION: usize = 0;
const CONTEXT: usize = 8;

fn of_context(contexts: &Contexts, number: usize) -> Option<LocalDevice> {
    let handle = CUcontext::numbered(number);
    Some(contexts.find(handle)?.local)
}

fn module_of(function: CUfunction) -> Option<CUmodule> {
    let mut module = CUmodule::NULL;
    driver::cuFuncGetModule(&mut module, function).ok()?;
    Some(module)
}

fn current_device() -> Option<LocalDevice> {
    let mut device = 0;
    driver::cuCtxGetDevice(&mut device).ok()?;
    LocalDevice::of(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forget_removes_graphs_in_conditional_nodes_only() {
        let reach = GraphDevices::default();
        let handle = |number: usize| CUgraph(std::ptr::without_provenance_mut(number));
        let node = CUgraphNode(std::ptr::without_provenance_mut(7));
        let with_bodies = |bodies: &[usize]| GraphFacts {
            bodies: [(7, bodies.to_vec())].into(),
            ..GraphFacts::default()
        };
        for (graph, bodies) in [(1, &[2, 3][..]), (3, &[4]), (4, &[]), (5, &[6])] {
            reach.graphs.write().insert(graph, with_bodies(bodies));
        }
        assert_eq!(reach.bodies(handle(1), node), [2, 3]);
        assert_eq!(reach.bodies(handle(2), node), [0; 0]);
        let removed = reach.remove_graph(handle(1)).0;
        let mut gone: Vec<_> = removed.iter().map(|(graph, _)| *graph).collect();
        gone.sort_unstable();
        assert_eq!(gone, [1, 3, 4]);
        assert_eq!(reach.bodies(handle(3), node), [0; 0]);
        assert_eq!(reach.bodies(handle(5), node), [6]);
    }

    #[test]
    fn launch_feeds_other_devices_and_not_its_own() {
        let [zero, one, two] = [0, 1, 2].map(|device| LocalDevice::of(device).unwrap());
        let reach = GraphDevices::default();
        reach.launch(DeviceSet::one(zero).and(DeviceSet::one(one)), || Some(one));
        assert!(reach.is_feeder(one, |local| local == zero));
        assert!(!reach.is_feeder(one, |local| local == one || local == two));
        assert!(!reach.is_feeder(zero, |_| true));
    }
}
