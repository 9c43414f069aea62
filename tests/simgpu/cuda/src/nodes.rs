//! Functions that add nodes to a graph explicitly, and change them.

use std::sync::Arc;

use crate::abi::{
    CUDA_MEMCPY3D, CUcontext, CUdeviceptr, CUerror, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode,
    CUkernel, CUresult, In, Out, Raw,
};
use crate::bytes::Fill;
use crate::call::{Call, driver};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED};
use crate::graph::Task;
use crate::kernel::{self, Shape};
use crate::op::Op;
use crate::word::Batch;
use crate::{conditional, graph_memory};

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelParams {
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: Raw,
    extra: Raw,
}

/// Parameters of a kernel node, version 2, with two fields more than version 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelParamsV2 {
    first: KernelParams,
    kernel: CUkernel,
    context: CUcontext,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemsetParams {
    dst: CUdeviceptr,
    pitch: usize,
    value: u32,
    element_size: u32,
    width: usize,
    height: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HostParams {
    function: Option<extern "C" fn(Raw)>,
    argument: Raw,
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`, both versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BatchParams {
    context: CUcontext,
    count: u32,
    list: Raw,
    flags: u32,
}

/// Node types, by `CUgraphNodeType`, as in the general node structure.
const KERNEL: u32 = 0;
const MEMCPY: u32 = 1;
const MEMSET: u32 = 2;
const HOST: u32 = 3;
const GRAPH: u32 = 4;
const EMPTY: u32 = 5;
const WAIT_EVENT: u32 = 6;
const EVENT_RECORD: u32 = 7;
const MEM_ALLOC: u32 = 10;
const MEM_FREE: u32 = 11;
const BATCH_MEM_OP: u32 = 12;
const CONDITIONAL: u32 = 13;

/// Returns the context in which a function runs; a kernel runs in the given context, or else in the current
/// one.
fn home(call: Call, function: CUfunction, named: CUcontext) -> Result<CUcontext, CUerror> {
    if let Ok(function) = call.process.functions.get(function, INVALID_VALUE) {
        return Ok(function.context);
    }
    match named {
        0 => Ok(call.context()?.handle),
        named => Ok(call.context_of(named)?.handle),
    }
}

fn kernel_op(call: Call, p: KernelParams, kernel: CUkernel, context: CUcontext) -> Result<Op, CUerror> {
    let function = if p.function == 0 { kernel } else { p.function };
    let shape = Shape {
        grid: p.grid,
        block: p.block,
        shared: p.shared,
    };
    Ok(Op::Kernel(kernel::prepare(
        call,
        function,
        shape,
        p.params,
        p.extra,
        home(call, function, context)?,
    )?))
}

fn copy_op(call: Call, copy: In<CUDA_MEMCPY3D>) -> Result<Op, CUerror> {
    let copy = call.copy_3d(&copy.get()?)?;
    copy.check(call.process.space)?;
    Ok(Op::Copy(copy))
}

fn fill_op(call: Call, p: MemsetParams) -> Result<Op, CUerror> {
    if !matches!(p.element_size, 1 | 2 | 4) {
        return Err(INVALID_VALUE);
    }
    let (width, height) = (p.width as u64, p.height as u64);
    let fill = Fill {
        address: p.dst,
        pitch: p.pitch as u64,
        value: p.value,
        value_size: u64::from(p.element_size),
        width,
        height,
    };
    fill.check(call.process.space)?;
    Ok(Op::Fill(fill))
}

fn host_op(p: HostParams) -> Result<Op, CUerror> {
    Ok(Op::Host(p.function.ok_or(INVALID_VALUE)?, p.argument))
}

fn add(
    call: Call,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: In<CUgraphNode>,
    count: usize,
    op: Op,
) -> CUresult {
    out.set(
        call.graph(graph)?
            .add(call.process, Task::Op(op), after.list(count)?)?,
    )
}

/// Adds a child graph node with a copy of a graph.
fn add_graph(
    call: Call,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: &[CUgraphNode],
    child: CUgraph,
) -> CUresult {
    let copy = call.graph(child)?.copy(call.process)?;
    let task = Task::Graph(copy.handle());
    out.set(call.graph(graph)?.add(call.process, task, after.to_vec())?)
}

/// Returns the operation of a general node structure, which has the type first and then its parameters.
/// `None`: the node is not a single operation.
fn op_of(call: Call, node: Raw) -> Result<Option<Op>, CUerror> {
    let params = params_of(node);
    Ok(Some(match node.as_in::<u32>().get()? {
        KERNEL => {
            let params: KernelParamsV2 = params.as_in().get()?;
            kernel_op(call, params.first, params.kernel, params.context)?
        }
        MEMSET => fill_op(call, params.as_in().get()?)?,
        HOST => host_op(params.as_in().get()?)?,
        // Two words of flags precede the copy.
        MEMCPY => copy_op(call, Raw(params.0.wrapping_byte_add(16)).as_in())?,
        EMPTY => Op::Nothing,
        WAIT_EVENT => Op::Wait(call.event(params.as_in().get()?)?),
        EVENT_RECORD => Op::Record(call.event(params.as_in().get()?)?),
        MEM_FREE => graph_memory::free_op(call, params.as_in().get()?)?,
        BATCH_MEM_OP => batch_op(call, params.as_in())?,
        MEM_ALLOC | GRAPH | CONDITIONAL => return Ok(None),
        _ => return Err(NOT_SUPPORTED),
    }))
}

fn params_of(node: Raw) -> Raw {
    Raw(node.0.wrapping_byte_add(16))
}

fn batch_op(call: Call, params: In<BatchParams>) -> Result<Op, CUerror> {
    let params = params.get()?;
    Ok(Op::Batch(Batch::new(call, params.count, params.list)?))
}

/// Changes the operation of a node, whose type stays the same.
fn change(call: Call, node: CUgraphNode, op: Op) -> CUresult {
    let node = call.node(node)?;
    let mut task = node.task.lock();
    let new = Task::Op(op);
    if new.kind() != task.kind() {
        return Err(INVALID_VALUE);
    }
    *task = new;
    Ok(())
}

/// Adds a node described by a general node structure.
fn add_any(
    call: Call,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: In<CUgraphNode>,
    count: usize,
    node: Raw,
) -> CUresult {
    if let Some(op) = op_of(call, node)? {
        return add(call, out, graph, after, count, op);
    }
    let params = params_of(node);
    let after = after.list(count)?;
    match node.as_in::<u32>().get()? {
        MEM_ALLOC => graph_memory::add_allocation(call, out, graph, after, params.as_out()),
        CONDITIONAL => {
            let graph = call.graph(graph)?;
            let task = Task::Conditional(conditional::prepare(call, &graph, params.as_out())?);
            out.set(graph.add(call.process, task, after)?)
        }
        _ => add_graph(call, out, graph, &after, params.as_in().get()?),
    }
}

/// Returns the launch of a kernel node, and its context.
fn kernel_of(call: Call, node: CUgraphNode) -> Result<KernelParamsV2, CUerror> {
    let node = call.node(node)?;
    let Task::Op(Op::Kernel(launch)) = &*node.task.lock() else {
        return Err(INVALID_VALUE);
    };
    let is_function = call.process.functions.get(launch.function, INVALID_VALUE).is_ok();
    let (function, kernel) = if is_function {
        (launch.function, 0)
    } else {
        (0, launch.function)
    };
    let first = KernelParams {
        function,
        grid: launch.shape.grid,
        block: launch.shape.block,
        shared: launch.shape.shared,
        params: launch.params(),
        extra: Raw(std::ptr::null_mut()),
    };
    // As documented: ignored for a function.
    let context = if is_function { 0 } else { launch.context };
    Ok(KernelParamsV2 {
        first,
        kernel,
        context,
    })
}

/// Returns the parameters of a memset node.
fn fill_of(call: Call, node: CUgraphNode) -> Result<MemsetParams, CUerror> {
    let node = call.node(node)?;
    let Task::Op(Op::Fill(fill)) = *node.task.lock() else {
        return Err(INVALID_VALUE);
    };
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    Ok(MemsetParams {
        dst: fill.address,
        pitch: size(fill.pitch),
        value: fill.value,
        element_size: u32::try_from(fill.value_size).unwrap_or(0),
        width: size(fill.width),
        height: size(fill.height),
    })
}

/// Returns the parameters of a copy node; an array appears as its memory.
fn copy_of(call: Call, node: CUgraphNode) -> Result<CUDA_MEMCPY3D, CUerror> {
    let node = call.node(node)?;
    match &*node.task.lock() {
        Task::Op(Op::Copy(copy)) => Ok(copy.described()),
        _ => Err(INVALID_VALUE),
    }
}

/// Returns the handle of a node's event.
fn event_of(call: Call, node: CUgraphNode, kind: u32) -> Result<CUevent, CUerror> {
    let node = call.node(node)?;
    let task = node.task.lock().clone();
    let (Task::Op(Op::Record(event) | Op::Wait(event)), true) = (&task, task.kind() == kind) else {
        return Err(INVALID_VALUE);
    };
    let events = call.process.events.all();
    let found = events.into_iter().find(|(_, known)| Arc::ptr_eq(known, event));
    found.map(|(handle, _)| handle).ok_or(INVALID_VALUE)
}

driver! {
    fn cuGraphAddKernelNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<KernelParams>,
    ) |call| {
        add(call, out, graph, after, count, kernel_op(call, params.get()?, 0, 0)?)
    }
    fn cuGraphAddKernelNode_v2(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<KernelParamsV2>,
    ) |call| {
        let params = params.get()?;
        add(call, out, graph, after, count, kernel_op(call, params.first, params.kernel, params.context)?)
    }
    fn cuGraphAddMemcpyNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_MEMCPY3D>,
        _context: CUcontext,
    ) |call| {
        add(call, out, graph, after, count, copy_op(call, params)?)
    }
    fn cuGraphAddMemsetNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<MemsetParams>,
        _context: CUcontext,
    ) |call| {
        add(call, out, graph, after, count, fill_op(call, params.get()?)?)
    }
    fn cuGraphAddHostNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<HostParams>,
    ) |call| {
        add(call, out, graph, after, count, host_op(params.get()?)?)
    }
    fn cuGraphAddEmptyNode(out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize) |call| {
        add(call, out, graph, after, count, Op::Nothing)
    }
    fn cuGraphAddEventRecordNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent,
    ) |call| {
        add(call, out, graph, after, count, Op::Record(call.event(event)?))
    }
    fn cuGraphAddEventWaitNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent,
    ) |call| {
        add(call, out, graph, after, count, Op::Wait(call.event(event)?))
    }
    fn cuGraphAddMemFreeNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, address: CUdeviceptr,
    ) |call| {
        add(call, out, graph, after, count, graph_memory::free_op(call, address)?)
    }
    fn cuGraphAddNode(out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: Raw) |call| {
        add_any(call, out, graph, after, count, params)
    }
    fn cuGraphAddNode_v2(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, _edges: Raw, count: usize, params: Raw,
    ) |call| {
        add_any(call, out, graph, after, count, params)
    }
    fn cuGraphAddNode_v3(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, _edges: Raw, count: usize, params: Raw,
    ) |call| {
        add_any(call, out, graph, after, count, params)
    }
    fn cuGraphAddChildGraphNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, child: CUgraph,
    ) |call| {
        add_graph(call, out, graph, &after.list(count)?, child)
    }
    fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: Out<KernelParams>) |call| {
        params.set(kernel_of(call, node)?.first)
    }
    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: Out<KernelParamsV2>) |call| {
        params.set(kernel_of(call, node)?)
    }
    fn cuGraphMemsetNodeGetParams(node: CUgraphNode, params: Out<MemsetParams>) |call| { params.set(fill_of(call, node)?) }
    fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEMCPY3D>) |call| { params.set(copy_of(call, node)?) }
    fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: Out<CUdeviceptr>) |call| {
        match *call.node(node)?.task.lock() {
            Task::Op(Op::GraphFree(at)) => address.set(at),
            _ => Err(INVALID_VALUE),
        }
    }
    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: Out<CUgraph>) |call| {
        match *call.node(node)?.task.lock() {
            Task::Graph(child) => graph.set(child),
            Task::Op(_) | Task::Conditional(_) => Err(INVALID_VALUE),
        }
    }
    fn cuGraphExecKernelNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: In<KernelParams>) |call| {
        call.exec(exec)?.set(node, kernel_op(call, params.get()?, 0, 0)?)
    }
    fn cuGraphExecKernelNodeSetParams_v2(exec: CUgraphExec, node: CUgraphNode, params: In<KernelParamsV2>) |call| {
        let params = params.get()?;
        call.exec(exec)?.set(node, kernel_op(call, params.first, params.kernel, params.context)?)
    }
    fn cuGraphExecMemcpyNodeSetParams(exec: CUgraphExec, node: CUgraphNode, copy: In<CUDA_MEMCPY3D>, _context: CUcontext) |call| {
        call.exec(exec)?.set(node, copy_op(call, copy)?)
    }
    fn cuGraphExecMemsetNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: In<MemsetParams>, _context: CUcontext) |call| {
        call.exec(exec)?.set(node, fill_op(call, params.get()?)?)
    }
    fn cuGraphExecHostNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: In<HostParams>) |call| {
        call.exec(exec)?.set(node, host_op(params.get()?)?)
    }
    fn cuGraphAddBatchMemOpNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<BatchParams>,
    ) |call| {
        add(call, out, graph, after, count, batch_op(call, params)?)
    }
    fn cuGraphBatchMemOpNodeGetParams(node: CUgraphNode, params: Out<BatchParams>) |call| {
        let node = call.node(node)?;
        let Task::Op(Op::Batch(batch)) = &*node.task.lock() else {
            return Err(INVALID_VALUE);
        };
        let (count, list) = batch.list();
        params.set(BatchParams { context: call.context().map_or(0, |context| context.handle), count, list, flags: 0 })
    }
    fn cuGraphBatchMemOpNodeSetParams(node: CUgraphNode, params: In<BatchParams>) |call| {
        change(call, node, batch_op(call, params)?)
    }
    fn cuGraphExecBatchMemOpNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: In<BatchParams>) |call| {
        call.exec(exec)?.set(node, batch_op(call, params)?)
    }
    fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: In<KernelParams>) |call| {
        change(call, node, kernel_op(call, params.get()?, 0, 0)?)
    }
    fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: In<KernelParamsV2>) |call| {
        let params = params.get()?;
        change(call, node, kernel_op(call, params.first, params.kernel, params.context)?)
    }
    fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, copy: In<CUDA_MEMCPY3D>) |call| {
        change(call, node, copy_op(call, copy)?)
    }
    fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: In<MemsetParams>) |call| {
        change(call, node, fill_op(call, params.get()?)?)
    }
    fn cuGraphHostNodeSetParams(node: CUgraphNode, params: In<HostParams>) |call| { change(call, node, host_op(params.get()?)?) }
    fn cuGraphNodeSetParams(node: CUgraphNode, params: Raw) |call| {
        change(call, node, op_of(call, params)?.ok_or(NOT_SUPPORTED)?)
    }
    fn cuGraphNodeSetParams_v2(node: CUgraphNode, params: Raw) |call| {
        change(call, node, op_of(call, params)?.ok_or(NOT_SUPPORTED)?)
    }
    fn cuGraphExecNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: Raw) |call| {
        call.exec(exec)?.set(node, op_of(call, params)?.ok_or(NOT_SUPPORTED)?)
    }
    fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) |call| {
        event.set(event_of(call, node, EVENT_RECORD)?)
    }
    fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) |call| {
        change(call, node, Op::Record(call.event(event)?))
    }
    fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) |call| {
        event.set(event_of(call, node, WAIT_EVENT)?)
    }
    fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) |call| {
        change(call, node, Op::Wait(call.event(event)?))
    }
    fn cuGraphExecEventRecordNodeSetEvent(exec: CUgraphExec, node: CUgraphNode, event: CUevent) |call| {
        call.exec(exec)?.set(node, Op::Record(call.event(event)?))
    }
    fn cuGraphExecEventWaitNodeSetEvent(exec: CUgraphExec, node: CUgraphNode, event: CUevent) |call| {
        call.exec(exec)?.set(node, Op::Wait(call.event(event)?))
    }
}
