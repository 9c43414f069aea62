//! Executable graphs: instantiation, update and launch.

use std::ffi::c_char;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{CUerror, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream, Out};
use crate::call::{Call, driver};
use crate::error::{GRAPH_EXEC_UPDATE_FAILURE, INVALID_VALUE};
use crate::graph::{Graph, Task};
use crate::op::Op;
use crate::user_object::UserObject;
use crate::{capture, graph_memory};

/// An executable graph: its operations, in an order that satisfies all dependencies.
pub(crate) struct Exec {
    flags: u64,
    steps: Mutex<Vec<Step>>,
    /// User objects retained by the source graph.
    _objects: Vec<Arc<UserObject>>,
}

struct Step {
    /// The node of the source graph.
    node: CUgraphNode,
    kind: u32,
    op: Op,
    is_enabled: bool,
}

/// All of `CUgraphInstantiate_flags`.
const FLAGS: u64 = 0xf;
const UPLOAD: u64 = 2;

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct InstantiateParams {
    flags: u64,
    upload_stream: CUstream,
    error_node: CUgraphNode,
    result: u32,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UpdateResult {
    result: u32,
    error_node: CUgraphNode,
    error_from_node: CUgraphNode,
}

const _: () = assert!(size_of::<InstantiateParams>() == 32 && size_of::<UpdateResult>() == 24);

/// `CU_GRAPH_NODE_TYPE_EMPTY`.
const EMPTY: u32 = 5;

const INSTANTIATE_INVALID_STRUCTURE: u32 = 2;
const UPDATE_TOPOLOGY_CHANGED: u32 = 2;
const UPDATE_NODE_TYPE_CHANGED: u32 = 3;

/// Returns the steps of a graph and of its child graphs.
fn steps(call: Call, graph: &Graph) -> Result<Vec<Step>, CUerror> {
    let mut all = Vec::new();
    let mut assigned = Vec::new();
    for node in graph.order().ok_or(INVALID_VALUE)? {
        let task = node.task.lock().clone();
        let kind = task.kind();
        match task {
            Task::Op(op) => all.push(Step {
                node: node.handle,
                kind,
                op,
                is_enabled: true,
            }),
            Task::Graph(inner) => all.extend(steps(call, &*call.graph(inner)?)?),
            Task::Conditional(conditional) => {
                let mut bodies = Vec::new();
                for body in conditional.graphs() {
                    let body = steps(call, &*call.graph(*body)?)?;
                    bodies.push(body.into_iter().map(|step| step.op).collect());
                }
                all.push(Step {
                    node: node.handle,
                    kind,
                    op: Op::Conditional(conditional.branches(bodies)),
                    is_enabled: true,
                });
                assigned.push(Arc::clone(conditional.condition()));
            }
        }
    }
    // Conditions are reset before any operation that may set them.
    let assign = |condition| Step {
        node: 0,
        kind: EMPTY,
        op: Op::Assign(condition),
        is_enabled: true,
    };
    all.splice(0..0, assigned.into_iter().map(assign));
    Ok(all)
}

impl Exec {
    /// Replaces the operation of a node.
    pub(crate) fn set(&self, node: CUgraphNode, op: Op) -> CUresult {
        let kind = Task::Op(op.clone()).kind();
        let mut steps = self.steps.lock();
        let step = steps
            .iter_mut()
            .find(|step| step.node == node && step.kind == kind);
        step.ok_or(INVALID_VALUE)?.op = op;
        Ok(())
    }

    fn ops(&self) -> Vec<Op> {
        self.steps
            .lock()
            .iter()
            .filter(|step| step.is_enabled)
            .map(|step| step.op.clone())
            .collect()
    }

    /// Updates the steps. On failure returns a `CUgraphExecUpdateResult` and the node of the graph that
    /// cannot be applied.
    fn update(&self, new: Vec<Step>) -> Result<(), (u32, CUgraphNode)> {
        let mut steps = self.steps.lock();
        if steps.len() != new.len() {
            return Err((UPDATE_TOPOLOGY_CHANGED, 0));
        }
        if let Some((_, other)) = steps
            .iter()
            .zip(&new)
            .find(|(step, other)| step.kind != other.kind)
        {
            return Err((UPDATE_NODE_TYPE_CHANGED, other.node));
        }
        for (step, other) in steps.iter_mut().zip(new) {
            step.op = other.op;
        }
        Ok(())
    }
}

impl Call {
    pub(crate) fn exec(&self, exec: CUgraphExec) -> Result<Arc<Exec>, CUerror> {
        self.process.execs.get(exec, INVALID_VALUE)
    }
}

fn instantiate(call: Call, out: Out<CUgraphExec>, graph: CUgraph, flags: u64) -> CUresult {
    let graph = call.graph(graph)?;
    if out.is_null() || flags & !FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let steps = Mutex::new(steps(call, &graph)?);
    let objects = graph.objects.lock().clone();
    out.set(call.process.execs.insert(Exec {
        flags,
        steps,
        _objects: objects,
    }))
}

fn instantiate_logged(
    call: Call,
    out: Out<CUgraphExec>,
    graph: CUgraph,
    node: Out<CUgraphNode>,
    log: Out<c_char>,
    size: usize,
) -> CUresult {
    node.set_if(0);
    if size > 0 {
        log.set_if(0);
    }
    instantiate(call, out, graph, 0)
}

fn instantiate_with(
    call: Call,
    out: Out<CUgraphExec>,
    graph: CUgraph,
    params: Out<InstantiateParams>,
) -> CUresult {
    let wish = params.get()?;
    let result = instantiate(call, out, graph, wish.flags);
    let code = if result.is_ok() {
        0
    } else {
        INSTANTIATE_INVALID_STRUCTURE
    };
    params.set_if(InstantiateParams {
        error_node: 0,
        result: code,
        ..wish
    });
    if result.is_ok() && wish.flags & UPLOAD != 0 {
        call.stream(wish.upload_stream)?;
    }
    result
}

fn launch(call: Call, exec: CUgraphExec, stream: CUstream) -> CUresult {
    let stream = call.stream(stream)?;
    let exec = call.exec(exec)?;
    let ops = exec.ops();
    if let Some(result) = capture::intercept_graph(call, &stream, &ops) {
        return result;
    }
    let context = call.context_of(stream.context)?;
    graph_memory::prepare(&ops, exec.flags)?;
    let work: Vec<_> = ops.iter().map(|op| op.work(call.process, &context)).collect();
    stream.engine.submit(stream.id, work);
    Ok(())
}

fn update(call: Call, exec: CUgraphExec, graph: CUgraph) -> Result<(), (CUerror, UpdateResult)> {
    let failed = |error, result, error_node| {
        (
            error,
            UpdateResult {
                result,
                error_node,
                error_from_node: 0,
            },
        )
    };
    let invalid = |error| failed(error, 1, 0);
    let exec = call.exec(exec).map_err(invalid)?;
    let graph = call.graph(graph).map_err(invalid)?;
    let new = steps(call, &graph).map_err(invalid)?;
    exec.update(new)
        .map_err(|(result, node)| failed(GRAPH_EXEC_UPDATE_FAILURE, result, node))
}

const UPDATED: UpdateResult = UpdateResult {
    result: 0,
    error_node: 0,
    error_from_node: 0,
};

driver! {
    fn cuGraphInstantiate(exec: Out<CUgraphExec>, graph: CUgraph, node: Out<CUgraphNode>, log: Out<c_char>, size: usize) |call| {
        instantiate_logged(call, exec, graph, node, log, size)
    }
    fn cuGraphInstantiate_v2(exec: Out<CUgraphExec>, graph: CUgraph, node: Out<CUgraphNode>, log: Out<c_char>, size: usize) |call| {
        instantiate_logged(call, exec, graph, node, log, size)
    }
    fn cuGraphInstantiateWithFlags(exec: Out<CUgraphExec>, graph: CUgraph, flags: u64) |call| {
        instantiate(call, exec, graph, flags)
    }
    fn cuGraphInstantiateWithParams(exec: Out<CUgraphExec>, graph: CUgraph, params: Out<InstantiateParams>) twin cuGraphInstantiateWithParams_ptsz |call| {
        instantiate_with(call, exec, graph, params)
    }
    fn cuGraphExecGetFlags(exec: CUgraphExec, flags: Out<u64>) |call| { flags.set(call.exec(exec)?.flags) }
    fn cuGraphExecGetId(exec: CUgraphExec, id: Out<u32>) |call| {
        call.exec(exec)?;
        id.set(u32::try_from(exec >> 4 & 0xffff_ffff).unwrap_or(0))
    }
    fn cuGraphExecDestroy(exec: CUgraphExec) |call| { call.process.execs.remove(exec, INVALID_VALUE).map(|_| ()) }
    fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) twin cuGraphUpload_ptsz |call| {
        call.stream(stream)?;
        call.exec(exec).map(|_| ())
    }
    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) twin cuGraphLaunch_ptsz null {} |call| { launch(call, exec, stream) }
    fn cuGraphExecUpdate(exec: CUgraphExec, graph: CUgraph, node: Out<CUgraphNode>, result: Out<u32>) |call| {
        let (answer, info) = update(call, exec, graph).map_or_else(|(error, info)| (Err(error), info), |()| (Ok(()), UPDATED));
        node.set_if(info.error_node);
        result.set_if(info.result);
        answer
    }
    fn cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, result: Out<UpdateResult>) |call| {
        let (answer, info) = update(call, exec, graph).map_or_else(|(error, info)| (Err(error), info), |()| (Ok(()), UPDATED));
        result.set_if(info);
        answer
    }
    fn cuGraphNodeSetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: u32) |call| {
        let exec = call.exec(exec)?;
        let mut steps = exec.steps.lock();
        // As documented: only kernels, sets and copies can be disabled.
        let step = steps.iter_mut().find(|step| step.node == node && step.kind <= 2).ok_or(INVALID_VALUE)?;
        step.is_enabled = enabled != 0;
        Ok(())
    }
    fn cuGraphNodeGetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: Out<u32>) |call| {
        let exec = call.exec(exec)?;
        let steps = exec.steps.lock();
        let step = steps.iter().find(|step| step.node == node).ok_or(INVALID_VALUE)?;
        enabled.set(u32::from(step.is_enabled))
    }
}
