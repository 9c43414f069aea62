//! Facts about graphs and modules by which the devices of a graph are found.

use crate::driver::cuda::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CUDA_CONDITIONAL_NODE_PARAMS, CUfunction, CUgraph, CUgraphNode,
    CUgraphNodeParams, CUmodule, CUresult,
};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{argument, argument_list, written};
use crate::hook;

/// Handles `cuModuleLoad`, its variants and `cuLibraryGetModule`: the module belongs to the current context.
pub(crate) fn load(module: *const CUmodule, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(module)) = (hook::get(), written(module)) {
        hook.compute.graph_devices.load(module);
    }
    Ok(())
}

/// Handles `cuKernelGetFunction`: the function's module belongs to the current context.
pub(crate) fn get_function(function: *const CUfunction, next: Next<'_>) -> CUresult {
    next()?;
    if let (Some(hook), Some(function)) = (hook::get(), written(function)) {
        hook.compute.graph_devices.load_module_of(function);
    }
    Ok(())
}

/// Handles `cuModuleUnload`.
pub(crate) fn unload(module: CUmodule, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    // Removed before the driver's call, after which the handle may be reused at once.
    let known = hook.compute.graph_devices.unload(module);
    let result = next();
    if let (Err(_), Some(known)) = (result, known) {
        hook.compute.graph_devices.reload(module, known);
    }
    result
}

/// Handles `cuGraphAddNode`: records the graphs of a conditional node.
pub(crate) fn add(
    graph: CUgraph,
    node: *const CUgraphNode,
    params: *const CUgraphNodeParams,
    next: Next<'_>,
) -> CUresult {
    next()?;
    let is_conditional = argument(params).is_some_and(|params| params.kind == CU_GRAPH_NODE_TYPE_CONDITIONAL);
    if let (true, Some(hook), Some(node)) = (is_conditional, hook::get(), written(node))
        && let Some(params) = written(params.cast::<CUDA_CONDITIONAL_NODE_PARAMS>())
    {
        let bodies = argument_list(params.graphs, params.size);
        hook.compute.graph_devices.add_bodies(graph, node, &bodies);
    }
    Ok(())
}

/// Handles `cuGraphDestroy`.
pub(crate) fn destroy(graph: CUgraph, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    // Removed before the driver's call, after which the handle may be reused at once.
    let removed = hook.compute.graph_devices.remove_graph(graph);
    let result = next();
    if result.is_err() {
        hook.compute.graph_devices.put_back(removed);
    }
    result
}
