//! Executable graphs and their launches.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{Submission, UsageDevice};

use crate::compute::gate;
use crate::compute::graph_exec::kernels;
use crate::driver::cuda::{CUgraph, CUgraphExec, CUresult, CUstream};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::written;
use crate::hook;
use crate::program::window::Shape;

/// Handles `cuGraphInstantiate` and its variants.
pub(crate) fn instantiate(made: *mut CUgraphExec, graph: CUgraph, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(made)) = (hook::get(), written(made)) {
        hook.compute.exec_graphs.insert(made, kernels(graph));
    }
    Ok(())
}

/// Handles `cuGraphExecDestroy`.
pub(crate) fn destroy(graph: CUgraphExec, next: Next<'_>) -> CUresult {
    let known = hook::get().and_then(|hook| hook.compute.exec_graphs.remove(graph));
    let result = next();
    if let (Err(_), Some(hook), Some(known)) = (result, hook::get(), known) {
        hook.compute.exec_graphs.insert(graph, known);
    }
    result
}

/// Handles `cuGraphLaunch`.
pub(crate) fn launch(graph: CUgraphExec, stream: CUstream, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let kernels = hook.compute.exec_graphs.kernels(graph);
    let body = |usage: &UsageDevice| {
        next()?;
        usage.graph_kernels.fetch_add(kernels, Relaxed);
        Ok(())
    };
    let shape = Shape::new(Submission::Graph, &[graph.0.addr() as u64]);
    gate::submit(hook.compute, shape, stream, &body, next)
}
