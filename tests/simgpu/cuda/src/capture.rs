//! Stream capture: streams that put what they are told into a graph instead of doing it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use simgpu::StreamKind;

use crate::abi::{CUerror, CUgraph, CUgraphNode, CUresult, CUstream, In, Out};
use crate::call::{Call, driver};
use crate::error::{
    ILLEGAL_STATE, INVALID_VALUE, STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE,
    STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
};
use crate::event::Event;
use crate::graph::{Graph, Task};
use crate::op::Op;
use crate::stream::Stream;

/// What a capturing stream knows.
pub(crate) struct Capture {
    fork: Fork,
    /// Whether the capture began with this stream.
    is_origin: bool,
    /// What `cuStreamGetCaptureInfo` last gave out: it stays until the next operation.
    shown: Vec<CUgraphNode>,
}

/// A point in a capture: what is captured next depends on the nodes of `tail`.
#[derive(Clone)]
pub(crate) struct Fork {
    id: u64,
    graph: CUgraph,
    tail: Vec<CUgraphNode>,
    is_invalid: Arc<AtomicBool>,
}

const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

pub(crate) fn is_capturing(stream: &Stream) -> bool {
    stream.capture.lock().is_some()
}

/// Spoils a capture: its end will be an error.
pub(crate) fn invalidate(stream: &Stream) {
    if let Some(capture) = &*stream.capture.lock() {
        capture.fork.is_invalid.store(true, Relaxed);
    }
}

/// Captures an operation, if the stream is capturing.
pub(crate) fn intercept(call: &Call, stream: &Stream, op: &Op) -> Option<CUresult> {
    let mut capture = stream.capture.lock();
    let fork = &mut capture.as_mut()?.fork;
    if fork.is_invalid.load(Relaxed) {
        return Some(Err(STREAM_CAPTURE_INVALIDATED));
    }
    Some(fork.add(call, op))
}

/// Captures the operations of a graph, if the stream is capturing.
pub(crate) fn intercept_graph(call: Call, stream: &Stream, ops: &[Op]) -> Option<CUresult> {
    if !is_capturing(stream) {
        return None;
    }
    Some(
        ops.iter()
            .try_for_each(|op| intercept(&call, stream, op).unwrap_or(Err(ILLEGAL_STATE))),
    )
}

impl Fork {
    /// Adds a node behind the tail, and makes it the tail.
    fn add(&mut self, call: &Call, op: &Op) -> CUresult {
        let node = call
            .graph(self.graph)?
            .add(call.process, Task::Op(op.clone()), self.tail.clone())?;
        self.tail = vec![node];
        Ok(())
    }
}

/// Marks the point in a capture that a recorded event stands for. Whether the stream is capturing.
pub(crate) fn record(stream: &Stream, event: &Event) -> bool {
    let capture = stream.capture.lock();
    let Some(capture) = &*capture else { return false };
    *event.captured.lock() = Some(capture.fork.clone());
    true
}

/// Has a stream that waits for an event join the event's capture, if either is part of one.
pub(crate) fn wait(stream: &Stream, event: &Event) -> Option<CUresult> {
    let fork = event.captured.lock().clone();
    let mut capture = stream.capture.lock();
    match (fork, &mut *capture) {
        (None, None) => None,
        (None, Some(_)) => Some(Err(STREAM_CAPTURE_ISOLATION)),
        (Some(fork), none @ None) => {
            *none = Some(Capture {
                fork,
                is_origin: false,
                shown: Vec::new(),
            });
            Some(Ok(()))
        }
        (Some(fork), Some(capture)) if fork.id != capture.fork.id => Some(Err(STREAM_CAPTURE_MERGE)),
        (Some(fork), Some(capture)) => {
            for node in fork.tail {
                if !capture.fork.tail.contains(&node) {
                    capture.fork.tail.push(node);
                }
            }
            Some(Ok(()))
        }
    }
}

fn begin(call: Call, stream: CUstream, graph: Option<CUgraph>, tail: Vec<CUgraphNode>) -> CUresult {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let stream = call.stream(stream)?;
    if stream.kind == StreamKind::Legacy {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut capture = stream.capture.lock();
    if capture.is_some() {
        return Err(ILLEGAL_STATE);
    }
    let graph = match graph {
        Some(graph) => call.graph(graph)?.handle(),
        None => Graph::make(call.process).handle(),
    };
    let fork = Fork {
        id: NEXT.fetch_add(1, Relaxed),
        graph,
        tail,
        is_invalid: Arc::default(),
    };
    *capture = Some(Capture {
        fork,
        is_origin: true,
        shown: Vec::new(),
    });
    Ok(())
}

fn end(call: Call, stream: CUstream, out: Out<CUgraph>) -> CUresult {
    let stream = call.stream(stream)?;
    let Some(capture) = stream.capture.lock().take() else {
        return Err(ILLEGAL_STATE);
    };
    if !capture.is_origin {
        *stream.capture.lock() = Some(capture);
        return Err(STREAM_CAPTURE_UNMATCHED);
    }
    let graph = call.graph(capture.fork.graph)?;
    let reached = graph.ancestors(&capture.fork.tail);
    let mut is_joined = true;
    for (_, other) in call.process.streams.all() {
        let mut theirs = other.capture.lock();
        if theirs
            .as_ref()
            .is_some_and(|theirs| theirs.fork.id == capture.fork.id)
            && let Some(theirs) = theirs.take()
        {
            is_joined &= theirs.fork.tail.iter().all(|node| reached.contains(node));
        }
    }
    let failure = match () {
        () if capture.fork.is_invalid.load(Relaxed) => Some(STREAM_CAPTURE_INVALIDATED),
        () if !is_joined => Some(STREAM_CAPTURE_UNJOINED),
        () => None,
    };
    if let Some(error) = failure {
        out.set_if(0);
        graph.destroy(call.process);
        return Err(error);
    }
    out.set(capture.fork.graph)
}

fn status(stream: &Stream) -> u32 {
    match &*stream.capture.lock() {
        None => 0,
        Some(capture) if capture.fork.is_invalid.load(Relaxed) => INVALIDATED,
        Some(_) => ACTIVE,
    }
}

struct Info {
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<*const CUgraphNode>,
    count: Out<usize>,
}

fn info(call: Call, stream: CUstream, out: &Info) -> CUresult {
    let stream = call.stream(stream)?;
    out.status.set(status(&stream))?;
    if let Some(capture) = &mut *stream.capture.lock() {
        capture.shown.clone_from(&capture.fork.tail);
        out.id.set_if(capture.fork.id);
        out.graph.set_if(capture.fork.graph);
        out.dependencies.set_if(capture.shown.as_ptr());
        out.count.set_if(capture.shown.len());
    }
    Ok(())
}

fn update(call: Call, stream: CUstream, nodes: In<CUgraphNode>, count: usize, flags: u32) -> CUresult {
    const SET: u32 = 1;
    let stream = call.stream(stream)?;
    let nodes = nodes.list(count)?;
    let mut capture = stream.capture.lock();
    let tail = &mut capture.as_mut().ok_or(ILLEGAL_STATE)?.fork.tail;
    if flags == SET {
        tail.clear();
    }
    tail.extend(nodes);
    Ok(())
}

/// A place that the program has not asked to be filled.
fn nowhere<T>() -> Out<T> {
    crate::abi::Raw(std::ptr::null_mut()).as_out()
}

/// Exchanges the calling thread's capture mode. It is kept but changes nothing: no call is refused for
/// a capture that another thread has begun.
fn exchange_mode(mode: Out<u32>) -> Result<(), CUerror> {
    thread_local! {
        static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let wanted = mode.get()?;
    if wanted > 2 {
        return Err(INVALID_VALUE);
    }
    mode.set(MODE.replace(wanted))
}

driver! {
    fn cuStreamBeginCapture(stream: CUstream) twin cuStreamBeginCapture_ptsz |call| { begin(call, stream, None, Vec::new()) }
    fn cuStreamBeginCapture_v2(stream: CUstream, _mode: u32) twin cuStreamBeginCapture_v2_ptsz |call| {
        begin(call, stream, None, Vec::new())
    }
    fn cuStreamBeginCaptureToGraph(
        stream: CUstream, graph: CUgraph, dependencies: In<CUgraphNode>, _edges: usize, count: usize, _mode: u32,
    ) twin cuStreamBeginCaptureToGraph_ptsz |call| {
        begin(call, stream, Some(graph), dependencies.list(count)?)
    }
    fn cuStreamEndCapture(stream: CUstream, graph: Out<CUgraph>) twin cuStreamEndCapture_ptsz |call| { end(call, stream, graph) }
    fn cuStreamIsCapturing(stream: CUstream, out: Out<u32>) twin cuStreamIsCapturing_ptsz null { out.set_if(0); } |call| {
        out.set(status(&*call.stream(stream)?))
    }
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) |_| { exchange_mode(mode) }
    fn cuStreamGetCaptureInfo(stream: CUstream, status: Out<u32>, id: Out<u64>) twin cuStreamGetCaptureInfo_ptsz |call| {
        info(call, stream, &Info { status, id, graph: nowhere(), dependencies: nowhere(), count: nowhere() })
    }
    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream, status: Out<u32>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>,
        count: Out<usize>,
    ) twin cuStreamGetCaptureInfo_v2_ptsz |call| {
        info(call, stream, &Info { status, id, graph, dependencies, count })
    }
    fn cuStreamGetCaptureInfo_v3(
        stream: CUstream, status: Out<u32>, id: Out<u64>, graph: Out<CUgraph>, dependencies: Out<*const CUgraphNode>,
        edges: Out<usize>, count: Out<usize>,
    ) twin cuStreamGetCaptureInfo_v3_ptsz |call| {
        edges.set_if(0);
        info(call, stream, &Info { status, id, graph, dependencies, count })
    }
    fn cuStreamUpdateCaptureDependencies(stream: CUstream, nodes: In<CUgraphNode>, count: usize, flags: u32) twin cuStreamUpdateCaptureDependencies_ptsz |call| {
        update(call, stream, nodes, count, flags)
    }
    fn cuStreamUpdateCaptureDependencies_v2(
        stream: CUstream, nodes: In<CUgraphNode>, _edges: usize, count: usize, flags: u32,
    ) twin cuStreamUpdateCaptureDependencies_v2_ptsz |call| {
        update(call, stream, nodes, count, flags)
    }
}
