//! Conditional nodes: if, while and switch graphs that depend on a value set by kernels.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::abi::{CUcontext, CUerror, CUgraph, CUresult, Out, Raw};
use crate::call::{Call, driver};
use crate::error::INVALID_VALUE;
use crate::graph::Graph;
use crate::op::Op;
use crate::process::Process;

/// The value that controls a conditional node.
pub(crate) struct Condition {
    graph: CUgraph,
    default: u32,
    /// Whether each launch resets the value to the default.
    is_assigned: bool,
    value: AtomicU32,
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConditionalParams {
    handle: u64,
    kind: u32,
    size: u32,
    /// Output of the driver: the body graphs.
    graphs: Raw,
    context: CUcontext,
}

const _: () = assert!(size_of::<ConditionalParams>() == 32);

const IF: u32 = 0;
const WHILE: u32 = 1;
const SWITCH: u32 = 2;
const ASSIGN_DEFAULT: u32 = 1;

/// A conditional node with its body graphs, of which one runs.
pub(crate) struct Conditional {
    kind: u32,
    condition: Arc<Condition>,
    graphs: Vec<CUgraph>,
}

/// A conditional node of an instantiated graph.
pub(crate) struct Branches {
    kind: u32,
    condition: Arc<Condition>,
    /// Operations of each body graph.
    bodies: Vec<Vec<Op>>,
}

/// One execution of a conditional node.
pub(crate) struct Turn {
    branches: Arc<Branches>,
    nr_runs: u64,
}

impl Condition {
    /// Resets the value at the start of a launch, if requested.
    pub(crate) fn assign(&self) {
        if self.is_assigned {
            self.value.store(self.default, Release);
        }
    }

    /// Sets the value, as a kernel does with `cudaGraphSetConditional`.
    pub(crate) fn set(&self, value: u32) {
        self.value.store(value, Release);
    }
}

impl Conditional {
    pub(crate) fn condition(&self) -> &Arc<Condition> {
        &self.condition
    }

    pub(crate) fn graphs(&self) -> &[CUgraph] {
        &self.graphs
    }

    /// Returns the node with the operations of its body graphs.
    pub(crate) fn branches(&self, bodies: Vec<Vec<Op>>) -> Arc<Branches> {
        Arc::new(Branches {
            kind: self.kind,
            condition: Arc::clone(&self.condition),
            bodies,
        })
    }

    /// Destroys the body graphs.
    pub(crate) fn forget(&self, process: &Process) {
        for graph in &self.graphs {
            if let Ok(graph) = process.graphs.get(*graph, INVALID_VALUE) {
                graph.destroy(process);
            }
        }
    }
}

impl Branches {
    pub(crate) fn begin(self: &Arc<Self>) -> Turn {
        Turn {
            branches: Arc::clone(self),
            nr_runs: 0,
        }
    }
}

impl Turn {
    /// Returns the next operations; none when the node is done.
    pub(crate) fn next_ops(&mut self) -> Vec<Op> {
        let branches = &self.branches;
        let value = branches.condition.value.load(Acquire);
        let body = match branches.kind {
            WHILE => (value != 0).then_some(0),
            _ if self.nr_runs > 0 => None,
            IF => Some(usize::from(value == 0)),
            _ => usize::try_from(value).ok(),
        };
        self.nr_runs += 1;
        let ops = body
            .and_then(|body| branches.bodies.get(body))
            .cloned()
            .unwrap_or_default();
        if ops.is_empty() && branches.kind == WHILE && body.is_some() {
            // A loop with an empty body never ends, as on a real device; a no-op lets other streams make
            // progress here.
            return vec![Op::Nothing];
        }
        ops
    }
}

/// Creates the node and its body graphs, which are stored in the parameters.
pub(crate) fn prepare(
    call: Call,
    graph: &Graph,
    params: Out<ConditionalParams>,
) -> Result<Arc<Conditional>, CUerror> {
    let wish = params.get()?;
    let handle = usize::try_from(wish.handle).map_err(|_| INVALID_VALUE)?;
    let condition = call.process.conditions.get(handle, INVALID_VALUE)?;
    let is_sound = match wish.kind {
        IF => matches!(wish.size, 1 | 2),
        WHILE => wish.size == 1,
        SWITCH => wish.size > 0,
        _ => false,
    };
    if !is_sound || condition.graph != graph.handle() {
        return Err(INVALID_VALUE);
    }
    let graphs: Vec<CUgraph> = (0..wish.size)
        .map(|_| Graph::make(call.process).handle())
        .collect();
    let conditional = Arc::new(Conditional {
        kind: wish.kind,
        condition,
        graphs,
    });
    let graphs = Raw(conditional.graphs.as_ptr().cast_mut().cast());
    params.set(ConditionalParams { graphs, ..wish })?;
    Ok(conditional)
}

fn create(
    call: Call,
    out: Out<u64>,
    graph: CUgraph,
    context: CUcontext,
    default: u32,
    flags: u32,
) -> CUresult {
    call.graph(graph)?;
    if context != 0 {
        call.context_of(context)?;
    }
    if out.is_null() || flags > ASSIGN_DEFAULT {
        return Err(INVALID_VALUE);
    }
    let condition = Condition {
        graph,
        default,
        is_assigned: flags == ASSIGN_DEFAULT,
        value: AtomicU32::new(default),
    };
    out.set(call.process.conditions.insert(condition) as u64)
}

driver! {
    fn cuGraphConditionalHandleCreate(
        out: Out<u64>, graph: CUgraph, context: CUcontext, default: u32, flags: u32,
    ) |call| {
        create(call, out, graph, context, default, flags)
    }
}
