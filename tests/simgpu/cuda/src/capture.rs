//! Stream capture: operations are added to a graph instead of being executed.

use std::cell::Cell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use simgpu::StreamKind;

use crate::abi::{CUerror, CUgraph, CUgraphNode, CUresult, CUstream, In, Out};
use crate::call::{Call, driver};
use crate::context::{self, Context};
use crate::error::{
    CAPTURED_EVENT, ILLEGAL_STATE, INVALID_VALUE, STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_INVALIDATED,
    STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE, STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNMATCHED,
    STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_WRONG_THREAD,
};
use crate::event::Event;
use crate::graph::{Graph, Task};
use crate::op::Op;
use crate::stream::Stream;

/// Capture state of a stream.
pub(crate) struct Capture {
    fork: Fork,
    /// Whether the capture was started, and must be ended, on this stream.
    is_origin: bool,
    /// Nodes that `cuStreamGetCaptureInfo` last returned; valid until the next operation.
    shown: Vec<CUgraphNode>,
}

/// A point in a capture: the next captured operation depends on the nodes of `tail`.
#[derive(Clone)]
pub(crate) struct Fork {
    sequence: Arc<Sequence>,
    tail: Vec<CUgraphNode>,
}

/// A capture from beginning to end, with all participating streams.
struct Sequence {
    id: u64,
    graph: CUgraph,
    mode: u32,
    thread: u64,
    is_invalid: AtomicBool,
    is_over: AtomicBool,
    streams: Mutex<Vec<Weak<Stream>>>,
}

const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// Captures in progress; while there are none, checks cost one load.
static UNDER_WAY: Mutex<Vec<Arc<Sequence>>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The calling thread's capture mode, which determines which unsafe calls are refused.
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

impl Sequence {
    fn begin(graph: CUgraph, mode: u32, stream: &Arc<Stream>) -> Arc<Sequence> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let sequence = Arc::new(Sequence {
            id: NEXT.fetch_add(1, Relaxed),
            graph,
            mode,
            thread: context::thread(),
            is_invalid: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            streams: Mutex::new(vec![Arc::downgrade(stream)]),
        });
        UNDER_WAY.lock().push(Arc::clone(&sequence));
        COUNT.fetch_add(1, AcqRel);
        sequence
    }

    fn end(&self) {
        if self.is_over.swap(true, AcqRel) {
            return;
        }
        COUNT.fetch_sub(1, AcqRel);
        UNDER_WAY.lock().retain(|other| other.id != self.id);
    }

    fn invalidate(&self) {
        self.is_invalid.store(true, Release);
    }

    fn is_invalid(&self) -> bool {
        self.is_invalid.load(Acquire)
    }

    fn has(&self, wanted: impl Fn(&Stream) -> bool) -> bool {
        self.streams
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .any(|stream| wanted(&stream))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.is_origin {
            self.fork.sequence.end();
        }
    }
}

/// Returns the captures in progress that `wanted` accepts.
fn find(wanted: impl Fn(&Sequence) -> bool) -> Vec<Arc<Sequence>> {
    if COUNT.load(Relaxed) == 0 {
        return Vec::new();
    }
    let all = UNDER_WAY.lock().clone();
    all.into_iter().filter(|sequence| wanted(sequence)).collect()
}

/// Invalidates captures and returns `error` if there are any.
fn spoil(captures: &[Arc<Sequence>], error: CUerror) -> CUresult {
    captures.iter().for_each(|sequence| sequence.invalidate());
    if captures.is_empty() { Ok(()) } else { Err(error) }
}

/// Returns the captures that a use of the legacy stream would violate: those of blocking streams of its
/// context.
fn beside_legacy(stream: &Stream) -> Vec<Arc<Sequence>> {
    if stream.kind != StreamKind::Legacy {
        return Vec::new();
    }
    let is_blocking = |other: &Stream| other.kind == StreamKind::Blocking && other.context == stream.context;
    find(|sequence| sequence.has(is_blocking))
}

/// Refuses a use of the legacy stream that would have to wait for a capture, and invalidates the capture.
pub(crate) fn check_legacy(stream: &Stream) -> CUresult {
    spoil(&beside_legacy(stream), STREAM_CAPTURE_IMPLICIT)
}

/// Refuses to synchronize with or query a capturing stream.
pub(crate) fn check_wait(stream: &Stream) -> CUresult {
    if is_capturing(stream) {
        invalidate(stream);
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    check_legacy(stream)
}

/// Returns the captures of the streams of a context and its green contexts.
fn in_context(context: &Context) -> Vec<Arc<Sequence>> {
    let family = context.family();
    find(|sequence| sequence.has(|stream| family.contains(&stream.context)))
}

/// Refuses to synchronize with a context that has a capturing stream.
pub(crate) fn check_context(context: &Context) -> CUresult {
    spoil(&in_context(context), STREAM_CAPTURE_UNSUPPORTED)
}

/// Invalidates the captures of a context that is being destroyed.
pub(crate) fn spoil_context(context: &Context) {
    in_context(context)
        .iter()
        .for_each(|sequence| sequence.invalidate());
}

/// Refuses potentially unsafe calls during a capture, by the rules of `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn check_unsafe() -> CUresult {
    if COUNT.load(Relaxed) == 0 {
        return Ok(());
    }
    let (thread, mode) = (context::thread(), MODE.get());
    let captures = find(|sequence| match mode {
        RELAXED => false,
        GLOBAL if sequence.mode == GLOBAL => true,
        _ => sequence.thread == thread && sequence.mode != RELAXED,
    });
    spoil(&captures, STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses a query of an event that stands for a point in a capture.
pub(crate) fn check_event(event: &Event) -> CUresult {
    match &*event.captured.lock() {
        None => Ok(()),
        Some(fork) => {
            fork.sequence.invalidate();
            Err(CAPTURED_EVENT)
        }
    }
}

pub(crate) fn is_capturing(stream: &Stream) -> bool {
    stream.capture.lock().is_some()
}

/// Invalidates a capture: ending it returns an error.
pub(crate) fn invalidate(stream: &Stream) {
    if let Some(capture) = &*stream.capture.lock() {
        capture.fork.sequence.invalidate();
    }
}

/// Captures an operation if the stream is capturing.
pub(crate) fn intercept(call: &Call, stream: &Stream, op: &Op) -> Option<CUresult> {
    if let Err(error) = check_legacy(stream) {
        return Some(Err(error));
    }
    let mut capture = stream.capture.lock();
    let fork = &mut capture.as_mut()?.fork;
    if fork.sequence.is_invalid() {
        return Some(Err(STREAM_CAPTURE_INVALIDATED));
    }
    Some(fork.add(call, op))
}

/// Captures the operations of a graph if the stream is capturing.
pub(crate) fn intercept_graph(call: Call, stream: &Stream, ops: &[Op]) -> Option<CUresult> {
    if let Err(error) = check_legacy(stream) {
        return Some(Err(error));
    }
    if !is_capturing(stream) {
        return None;
    }
    Some(
        ops.iter()
            .try_for_each(|op| intercept(&call, stream, op).unwrap_or(Err(ILLEGAL_STATE))),
    )
}

impl Fork {
    /// Adds a node after the tail and makes it the tail.
    fn add(&mut self, call: &Call, op: &Op) -> CUresult {
        let graph = call.graph(self.sequence.graph)?;
        let node = graph.add(call.process, Task::Op(op.clone()), self.tail.clone())?;
        self.tail = vec![node];
        Ok(())
    }
}

/// If the stream is capturing: makes a recorded event stand for the current point in the capture.
pub(crate) fn record(stream: &Stream, event: &Event) -> Option<CUresult> {
    let capture = stream.capture.lock();
    let fork = &capture.as_ref()?.fork;
    if fork.sequence.is_invalid() {
        return Some(Err(STREAM_CAPTURE_INVALIDATED));
    }
    *event.captured.lock() = Some(fork.clone());
    Some(Ok(()))
}

/// Makes a stream that waits for a captured event join the event's capture. Returns the result of the wait,
/// or `None` if neither is part of a capture.
pub(crate) fn wait(stream: &Arc<Stream>, event: &Event) -> Option<CUresult> {
    let fork = event.captured.lock().clone();
    let mut capture = stream.capture.lock();
    match (fork, &mut *capture) {
        (None, None) => None,
        // An event that was never recorded requires no wait.
        (None, Some(_)) if event.last() == 0 => Some(Ok(())),
        (None, Some(capture)) => {
            capture.fork.sequence.invalidate();
            Some(Err(STREAM_CAPTURE_ISOLATION))
        }
        (Some(fork), _) if fork.sequence.is_over.load(Acquire) => Some(Err(CAPTURED_EVENT)),
        (Some(fork), None) if stream.kind == StreamKind::Legacy => {
            fork.sequence.invalidate();
            Some(Err(STREAM_CAPTURE_IMPLICIT))
        }
        (Some(fork), none @ None) => {
            fork.sequence.streams.lock().push(Arc::downgrade(stream));
            *none = Some(Capture {
                fork,
                is_origin: false,
                shown: Vec::new(),
            });
            Some(Ok(()))
        }
        (Some(fork), Some(capture)) if fork.sequence.id != capture.fork.sequence.id => {
            fork.sequence.invalidate();
            capture.fork.sequence.invalidate();
            Some(Err(STREAM_CAPTURE_MERGE))
        }
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

fn begin(
    call: Call,
    stream: CUstream,
    graph: Option<CUgraph>,
    tail: Vec<CUgraphNode>,
    mode: u32,
) -> CUresult {
    let stream = call.stream(stream)?;
    if mode > RELAXED {
        return Err(INVALID_VALUE);
    }
    if stream.kind == StreamKind::Legacy {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut capture = stream.capture.lock();
    if capture.is_some() {
        return Err(ILLEGAL_STATE);
    }
    let graph = match graph {
        Some(graph) => call.graph(graph)?,
        None => Graph::make(call.process),
    };
    let known = graph.handles();
    if !tail.iter().all(|node| known.contains(node)) {
        return Err(INVALID_VALUE);
    }
    let sequence = Sequence::begin(graph.handle(), mode, &stream);
    *capture = Some(Capture {
        fork: Fork { sequence, tail },
        is_origin: true,
        shown: Vec::new(),
    });
    Ok(())
}

fn end(call: Call, stream: CUstream, out: Out<CUgraph>) -> CUresult {
    let stream = call.stream(stream)?;
    let mut ours = stream.capture.lock();
    let sequence = match &*ours {
        None => return Err(ILLEGAL_STATE),
        Some(capture) if !capture.is_origin => return Err(STREAM_CAPTURE_UNMATCHED),
        Some(capture) => Arc::clone(&capture.fork.sequence),
    };
    if sequence.mode != RELAXED && sequence.thread != context::thread() {
        return Err(STREAM_CAPTURE_WRONG_THREAD);
    }
    let tail = ours.take().map(|capture| capture.fork.tail.clone());
    drop(ours);
    let graph = call.graph(sequence.graph)?;
    let reached = graph.ancestors(&tail.unwrap_or_default());
    let mut is_joined = true;
    let streams = std::mem::take(&mut *sequence.streams.lock());
    for other in streams.iter().filter_map(Weak::upgrade) {
        let mut theirs = other.capture.lock();
        let is_part = |theirs: &Capture| theirs.fork.sequence.id == sequence.id;
        if theirs.as_ref().is_some_and(is_part)
            && let Some(theirs) = theirs.take()
        {
            is_joined &= theirs.fork.tail.iter().all(|node| reached.contains(node));
        }
    }
    let failure = match () {
        () if sequence.is_invalid() => Some(STREAM_CAPTURE_INVALIDATED),
        () if !is_joined => Some(STREAM_CAPTURE_UNJOINED),
        () => None,
    };
    if let Some(error) = failure {
        out.set_if(0);
        graph.destroy(call.process);
        return Err(error);
    }
    out.set(sequence.graph)
}

/// Returns the capture status of a stream, without invalidating a capture.
fn status(stream: &Stream) -> Result<u32, CUerror> {
    if !beside_legacy(stream).is_empty() {
        return Err(STREAM_CAPTURE_IMPLICIT);
    }
    Ok(match &*stream.capture.lock() {
        None => 0,
        Some(capture) if capture.fork.sequence.is_invalid() => INVALIDATED,
        Some(_) => ACTIVE,
    })
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
    out.status.set(status(&stream)?)?;
    if let Some(capture) = &mut *stream.capture.lock() {
        capture.shown.clone_from(&capture.fork.tail);
        out.id.set_if(capture.fork.sequence.id);
        out.graph.set_if(capture.fork.sequence.graph);
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

/// Returns a null out-pointer.
fn nowhere<T>() -> Out<T> {
    crate::abi::Raw(std::ptr::null_mut()).as_out()
}

/// Exchanges the calling thread's capture mode.
fn exchange_mode(mode: Out<u32>) -> CUresult {
    let wanted = mode.get()?;
    if wanted > RELAXED {
        return Err(INVALID_VALUE);
    }
    mode.set(MODE.replace(wanted))
}

driver! {
    fn cuStreamBeginCapture(stream: CUstream) twin cuStreamBeginCapture_ptsz |call| { begin(call, stream, None, Vec::new(), GLOBAL) }
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: u32) twin cuStreamBeginCapture_v2_ptsz |call| {
        begin(call, stream, None, Vec::new(), mode)
    }
    fn cuStreamBeginCaptureToGraph(
        stream: CUstream, graph: CUgraph, dependencies: In<CUgraphNode>, _edges: usize, count: usize, mode: u32,
    ) twin cuStreamBeginCaptureToGraph_ptsz |call| {
        begin(call, stream, Some(graph), dependencies.list(count)?, mode)
    }
    fn cuStreamEndCapture(stream: CUstream, graph: Out<CUgraph>) twin cuStreamEndCapture_ptsz |call| { end(call, stream, graph) }
    fn cuStreamIsCapturing(stream: CUstream, out: Out<u32>) twin cuStreamIsCapturing_ptsz null { out.set_if(0); } |call| {
        out.set(status(&*call.stream(stream)?)?)
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
