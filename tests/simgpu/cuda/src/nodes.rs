//! The nodes that a program adds to a graph itself, and changes.

use crate::abi::{
    CUDA_MEMCPY3D, CUcontext, CUdeviceptr, CUerror, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode,
    CUkernel, CUresult, In, Out, Raw,
};
use crate::bytes::Fill;
use crate::call::{Call, driver};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED};
use crate::graph::Task;
use crate::graph_memory;
use crate::kernel::{self, Shape};
use crate::op::Op;

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

/// With two fields that the first version has not.
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

/// The kinds of node, by `CUgraphNodeType`, and those of the general node structure.
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

fn kernel_op(call: Call, p: KernelParams, kernel: CUkernel) -> Result<Op, CUerror> {
    let function = if p.function == 0 { kernel } else { p.function };
    let shape = Shape {
        grid: p.grid,
        block: p.block,
        shared: p.shared,
    };
    Ok(Op::Kernel(kernel::prepare(
        call, function, shape, p.params, p.extra,
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

/// Adds a node that is a copy of a graph.
fn add_graph(
    call: Call,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: In<CUgraphNode>,
    count: usize,
    child: CUgraph,
) -> CUresult {
    let copy = call.graph(child)?.copy(call.process)?;
    out.set(
        call.graph(graph)?
            .add(call.process, Task::Graph(copy.handle()), after.list(count)?)?,
    )
}

/// Adds a node that a structure of the general form describes: the kind, then its parameters.
fn add_any(
    call: Call,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: In<CUgraphNode>,
    count: usize,
    node: Raw,
) -> CUresult {
    let params = Raw(node.0.wrapping_byte_add(16));
    let op = match node.as_in::<u32>().get()? {
        KERNEL => {
            let params: KernelParamsV2 = params.as_in().get()?;
            kernel_op(call, params.first, params.kernel)?
        }
        MEMSET => fill_op(call, params.as_in().get()?)?,
        HOST => host_op(params.as_in().get()?)?,
        // Two words of flags come before the copy itself.
        MEMCPY => copy_op(call, Raw(params.0.wrapping_byte_add(16)).as_in())?,
        EMPTY => Op::Nothing,
        WAIT_EVENT => Op::Wait(call.event(params.as_in().get()?)?),
        EVENT_RECORD => Op::Record(call.event(params.as_in().get()?)?),
        MEM_ALLOC => {
            return graph_memory::add_allocation(call, out, graph, after.list(count)?, params.as_out());
        }
        MEM_FREE => graph_memory::free_op(call, params.as_in().get()?)?,
        GRAPH => return add_graph(call, out, graph, after, count, params.as_in().get()?),
        _ => return Err(NOT_SUPPORTED),
    };
    add(call, out, graph, after, count, op)
}

driver! {
    fn cuGraphAddKernelNode(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<KernelParams>,
    ) |call| {
        add(call, out, graph, after, count, kernel_op(call, params.get()?, 0)?)
    }
    fn cuGraphAddKernelNode_v2(
        out: Out<CUgraphNode>, graph: CUgraph, after: In<CUgraphNode>, count: usize, params: In<KernelParamsV2>,
    ) |call| {
        let params = params.get()?;
        add(call, out, graph, after, count, kernel_op(call, params.first, params.kernel)?)
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
        add_graph(call, out, graph, after, count, child)
    }
    fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: Out<CUdeviceptr>) |call| {
        match *call.node(node)?.task.lock() {
            Task::Op(Op::GraphFree(at)) => address.set(at),
            _ => Err(INVALID_VALUE),
        }
    }
    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: Out<CUgraph>) |call| {
        match *call.node(node)?.task.lock() {
            Task::Graph(child) => graph.set(child),
            Task::Op(_) => Err(INVALID_VALUE),
        }
    }
    fn cuGraphExecKernelNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: In<KernelParams>) |call| {
        call.exec(exec)?.set(node, kernel_op(call, params.get()?, 0)?)
    }
    fn cuGraphExecKernelNodeSetParams_v2(exec: CUgraphExec, node: CUgraphNode, params: In<KernelParamsV2>) |call| {
        let params = params.get()?;
        call.exec(exec)?.set(node, kernel_op(call, params.first, params.kernel)?)
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
}
