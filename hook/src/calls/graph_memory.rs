//! Memory that graphs allocate.

use crate::driver::cuda::{
    CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, CUDA_GRAPH_INSTANTIATE_PARAMS,
    CUdevice, CUgraph, CUgraphExec, CUgraphNodeParams, CUresult, CUstream,
};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{argument, written};
use crate::hook;
use crate::memory::graph::{begin_use, is_used, launched, needs, run, take};
use crate::memory::page_counter::Unsettled;
use crate::shared::device::LocalDevice;

/// `cuGraphAddMemAllocNode`: takes no memory yet.
pub(crate) fn add_allocation(next: Next<'_>) -> CUresult {
    begin_use();
    next()
}

/// `cuGraphAddNode`: adds a node of any type.
pub(crate) fn add(params: *const CUgraphNodeParams, next: Next<'_>) -> CUresult {
    if argument(params).is_some_and(|params| params.kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        begin_use();
    }
    next()
}

/// `cuGraphInstantiate` and its variants.
pub(crate) fn instantiate(exec: *mut CUgraphExec, graph: CUgraph, flags: u64, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get().filter(|_| is_used()) else {
        return next();
    };
    let needs = needs(hook.memory, graph)?;
    let uploads = flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0;
    run(hook.memory, if uploads { &needs } else { &[] }, next)?;
    if let Some(exec) = written(exec) {
        hook.memory.graphs.enter(exec, needs);
    }
    Ok(())
}

/// `cuGraphInstantiateWithParams`.
pub(crate) fn instantiate_with(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    params: *const CUDA_GRAPH_INSTANTIATE_PARAMS,
    next: Next<'_>,
) -> CUresult {
    let flags = argument(params).map_or(0, |params| params.flags);
    instantiate(exec, graph, flags, next)
}

/// `cuGraphExecUpdate`: may change what the nodes allocate.
pub(crate) fn update(exec: CUgraphExec, graph: CUgraph, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get().filter(|_| is_used()) else {
        return next();
    };
    let needs = needs(hook.memory, graph)?;
    next()?;
    hook.memory.graphs.enter(exec, needs);
    Ok(())
}

/// `cuGraphExecDestroy`: the memory stays reserved until a trim.
pub(crate) fn destroy(exec: CUgraphExec, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get().filter(|_| is_used()) else {
        return next();
    };
    // Removed before the call, since the driver may reuse the handle at once.
    let known = hook.memory.graphs.remove(exec);
    let result = next();
    if let (Err(_), Some(needs)) = (result, known) {
        hook.memory.graphs.enter(exec, needs);
    }
    result
}

/// `cuGraphUpload`.
pub(crate) fn upload(exec: CUgraphExec, next: Next<'_>) -> CUresult {
    let hook = hook::get().filter(|_| is_used());
    let known = hook.and_then(|hook| Some((hook, hook.memory.graphs.needs(exec)?)));
    match known {
        Some((hook, needs)) => run(hook.memory, &needs, next),
        None => next(),
    }
}

/// `cuGraphLaunch`, after its gate.
pub(crate) fn launch(exec: CUgraphExec, stream: CUstream, next: Next<'_>) -> CUresult {
    let hook = hook::get().filter(|_| is_used());
    let known = hook.and_then(|hook| Some((hook, hook.memory.graphs.needs(exec)?)));
    let Some((hook, needs)) = known else {
        return next();
    };
    let mut taken = take(hook.memory, &needs)?;
    let result = next();
    launched(hook.memory, &mut taken, stream, result);
    result
}

/// `cuDeviceGraphMemTrim`.
pub(crate) fn trim(device: CUdevice, next: Next<'_>) -> CUresult {
    let Some((hook, local)) = hook::get().zip(LocalDevice::of(device)).filter(|_| is_used()) else {
        return next();
    };
    let index = hook.session.devices.learn(hook.session.control(), local);
    let _unsettled = Unsettled::on(hook.session.usage(), index);
    next()?;
    hook.memory.reserves.of_graphs(local, index).trimmed(hook.memory);
    Ok(())
}
