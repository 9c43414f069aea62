//! Streams.

use parking_lot::Mutex;
use simgpu::{Engine, StreamId, StreamKind};

use crate::abi::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUresult, CUstream, Out, Raw};
use crate::call::{Call, driver};
use crate::capture::Capture;
use crate::context::Context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, STREAM_CAPTURE_UNSUPPORTED};
use crate::op::Op;
use crate::{capture, pool};

pub(crate) const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_PER_THREAD`.
pub(crate) const PER_THREAD: CUstream = 2;
/// The highest priority, as `cuCtxGetStreamPriorityRange` reports it.
const BEST: i32 = -5;

/// A stream of a context.
pub(crate) struct Stream {
    pub(crate) context: CUcontext,
    pub(crate) engine: &'static Engine,
    pub(crate) id: StreamId,
    pub(crate) kind: StreamKind,
    priority: i32,
    flags: u32,
    /// The capture in progress, if any.
    pub(crate) capture: Mutex<Option<Capture>>,
}

impl Stream {
    pub(crate) fn open(
        context: CUcontext,
        engine: &'static Engine,
        kind: StreamKind,
        priority: i32,
        flags: u32,
    ) -> Stream {
        let id = engine.open(context as u64, kind, priority);
        Stream {
            context,
            engine,
            id,
            kind,
            priority,
            flags,
            capture: Mutex::new(None),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.engine.close(self.id);
    }
}

fn create(call: Call, out: Out<CUstream>, flags: u32, priority: i32) -> CUresult {
    create_in(call, &*call.context()?, out, flags, priority)
}

/// Creates a stream of the given context, which need not be current.
pub(crate) fn create_in(
    call: Call,
    context: &Context,
    out: Out<CUstream>,
    flags: u32,
    priority: i32,
) -> CUresult {
    if out.is_null() || flags > NON_BLOCKING {
        return Err(INVALID_VALUE);
    }
    let kind = if flags & NON_BLOCKING != 0 {
        StreamKind::NonBlocking
    } else {
        StreamKind::Blocking
    };
    let priority = priority.clamp(BEST, 0);
    let stream = Stream::open(context.handle, context.engine, kind, priority, flags);
    out.set(call.process.streams.insert(stream))
}

fn synchronize(call: Call, stream: CUstream) -> CUresult {
    let stream = call.stream(stream)?;
    capture::check_wait(&stream)?;
    stream.engine.wait(stream.id);
    pool::settle(call.process);
    call.context_of(stream.context)?.check_fault()
}

fn query(call: Call, stream: CUstream) -> CUresult {
    let stream = call.stream(stream)?;
    capture::check_wait(&stream)?;
    call.context_of(stream.context)?.check_fault()?;
    if stream.engine.is_idle(stream.id) {
        Ok(())
    } else {
        Err(NOT_READY)
    }
}

fn wait_event(call: Call, stream: CUstream, event: CUevent) -> CUresult {
    let event = call.event(event)?;
    let stream = call.stream(stream)?;
    if let Some(result) = capture::wait(&stream, &event) {
        return result;
    }
    call.enqueue(&stream, Op::Wait(event))
}

fn host(call: Call, stream: CUstream, function: Option<extern "C" fn(Raw)>, argument: Raw) -> CUresult {
    let stream = call.stream(stream)?;
    call.enqueue(&stream, Op::Host(function.ok_or(INVALID_VALUE)?, argument))
}

/// Calls a host function at once, in null mode, where all earlier work of any stream is done.
fn at_once(function: Option<extern "C" fn(Raw)>, argument: Raw) {
    if let Some(function) = function {
        function(argument);
    }
}

fn get_context(call: Call, stream: CUstream, context: Out<CUcontext>) -> CUresult {
    context.set(call.stream(stream)?.context)
}

driver! {
    fn cuStreamCreate(stream: Out<CUstream>, flags: u32) |call| { create(call, stream, flags, 0) }
    fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: u32, priority: i32) |call| {
        create(call, stream, flags, priority)
    }
    fn cuStreamDestroy(stream: CUstream) |call| { call.process.streams.remove(stream, INVALID_HANDLE).map(|_| ()) }
    fn cuStreamDestroy_v2(stream: CUstream) |call| { call.process.streams.remove(stream, INVALID_HANDLE).map(|_| ()) }
    fn cuStreamSynchronize(stream: CUstream) twin cuStreamSynchronize_ptsz null {} |call| { synchronize(call, stream) }
    fn cuStreamQuery(stream: CUstream) twin cuStreamQuery_ptsz null {} |call| { query(call, stream) }
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _flags: u32) twin cuStreamWaitEvent_ptsz null {} |call| {
        wait_event(call, stream, event)
    }
    fn cuStreamGetPriority(stream: CUstream, priority: Out<i32>) twin cuStreamGetPriority_ptsz |call| {
        priority.set(call.stream(stream)?.priority)
    }
    fn cuStreamGetFlags(stream: CUstream, flags: Out<u32>) twin cuStreamGetFlags_ptsz |call| {
        flags.set(call.stream(stream)?.flags)
    }
    fn cuStreamGetId(stream: CUstream, id: Out<u64>) twin cuStreamGetId_ptsz |call| { id.set(call.stream(stream)?.id) }
    fn cuStreamGetDevice(stream: CUstream, device: Out<CUdevice>) twin cuStreamGetDevice_ptsz |call| {
        let stream = call.stream(stream)?;
        device.set(call.context_of(stream.context)?.device)
    }
    fn cuStreamGetCtx(stream: CUstream, context: Out<CUcontext>) twin cuStreamGetCtx_ptsz |call| {
        get_context(call, stream, context)
    }
    fn cuStreamAddCallback(
        stream: CUstream, function: Option<extern "C" fn(usize, u32, Raw)>, argument: Raw, flags: u32,
    ) twin cuStreamAddCallback_ptsz null {} |call| {
        let function = function.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
        let target = call.stream(stream)?;
        if capture::is_capturing(&target) {
            capture::invalidate(&target);
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        call.enqueue(&target, Op::Callback(function, stream, argument))
    }
    fn cuStreamAttachMemAsync(stream: CUstream, _address: CUdeviceptr, _length: usize, _flags: u32) twin cuStreamAttachMemAsync_ptsz null {} |call| {
        let stream = call.stream(stream)?;
        call.enqueue(&stream, Op::Nothing)
    }
    fn cuStreamCopyAttributes(dst: CUstream, src: CUstream) twin cuStreamCopyAttributes_ptsz |call| {
        call.stream(dst)?;
        call.stream(src).map(|_| ())
    }
    fn cuStreamSetAttribute(stream: CUstream, _attribute: u32, _value: Raw) twin cuStreamSetAttribute_ptsz |call| {
        call.stream(stream).map(|_| ())
    }
    fn cuLaunchHostFunc(stream: CUstream, function: Option<extern "C" fn(Raw)>, argument: Raw) twin cuLaunchHostFunc_ptsz null { at_once(function, argument); } |call| {
        host(call, stream, function, argument)
    }
    fn cuLaunchHostFunc_v2(
        stream: CUstream, function: Option<extern "C" fn(Raw)>, argument: Raw, _sync_mode: u32,
    ) twin cuLaunchHostFunc_v2_ptsz null { at_once(function, argument); } |call| {
        host(call, stream, function, argument)
    }
}
