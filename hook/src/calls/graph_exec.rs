//! Executable graphs and their launches.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::Submission;

use super::submit::{known_memory, submit};
use crate::compute::graph_exec::{ExecGraph, kernels};
use crate::driver::cuda::{CUgraph, CUgraphExec, CUresult, CUstream};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::written;
use crate::hook;
use crate::program::window::Shape;

/// Handles `cuGraphInstantiate` and its variants.
pub(crate) fn instantiate(made: *mut CUgraphExec, graph: CUgraph, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(made)) = (hook::get(), written(made)) {
        let compute = hook.compute;
        let memory = |address| known_memory(hook, address);
        let known = ExecGraph {
            kernels: kernels(graph),
            devices: compute
                .graph_devices
                .devices(&compute.program.contexts, &memory, graph),
        };
        compute.exec_graphs.insert(made, known);
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
    let known = hook::get().and_then(|hook| hook.compute.exec_graphs.get(graph));
    let known = known.unwrap_or_default();
    submit(
        Shape::new(Submission::Graph, &[graph.0.addr() as u64]),
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
