//! Green contexts: parts of a device's primary context with separate streams, on some of its multiprocessors.
//!
//! Kernels take as long there as elsewhere. The documentation does not specify what happens to work on a
//! green context's streams when it is destroyed; here the work completes.

use std::sync::Arc;

use simgpu::{Driver, StreamKind, Watch, Work};

use crate::abi::{CUcontext, CUdevice, CUerror, CUevent, CUgreenCtx, CUresult, CUstream, Out};
use crate::call::{Call, driver};
use crate::context::Context;
use crate::error::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE};
use crate::op::Op;
use crate::price::Price;
use crate::stream::Stream;
use crate::{capture, primary, stream};

/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const DEFAULT_STREAM: u32 = 1;
/// First driver that creates green contexts without a default stream.
const WITHOUT_DEFAULT: i32 = 13_000;

/// A green context.
pub(crate) struct Green {
    /// The context that other functions accept in place of the green context.
    pub(crate) context: Arc<Context>,
    pub(crate) device: CUdevice,
    /// Number of multiprocessors.
    pub(crate) count: u32,
}

impl Call {
    pub(crate) fn green(&self, green: CUgreenCtx) -> Result<Arc<Green>, CUerror> {
        let green = self.process.greens.get(green, INVALID_CONTEXT)?;
        if !green.context.is_alive() {
            return Err(CONTEXT_IS_DESTROYED);
        }
        Ok(green)
    }
}

/// Returns the green context of a context, and its handle.
fn find(call: Call, context: CUcontext) -> Option<(CUgreenCtx, Arc<Green>)> {
    let greens = call.process.greens.all();
    greens
        .into_iter()
        .find(|(_, green)| green.context.handle == context)
}

/// Returns the green context of a context.
pub(crate) fn of_context(call: Call, context: CUcontext) -> Option<Arc<Green>> {
    Some(find(call, context)?.1)
}

fn create(call: Call, out: Out<CUgreenCtx>, description: usize, device: CUdevice, flags: u32) -> CUresult {
    call.process.device(device)?;
    let description = call.process.resources.get(description, INVALID_VALUE)?;
    let needs_default = Driver::of_process().cuda_version < WITHOUT_DEFAULT;
    if out.is_null() || flags & !DEFAULT_STREAM != 0 || description.device != device {
        return Err(INVALID_VALUE);
    }
    if needs_default && flags & DEFAULT_STREAM == 0 {
        return Err(INVALID_VALUE);
    }
    let primary = primary::hold(call, device)?;
    let context = Context::make_part(call.process, &primary, flags & DEFAULT_STREAM != 0);
    let context = context.or_else(|error| {
        primary::release(call, device)?;
        Err(error)
    })?;
    out.set(call.process.greens.insert(Green {
        context,
        device,
        count: description.count,
    }))
}

fn destroy(call: Call, green: CUgreenCtx) -> CUresult {
    let green = call.process.greens.remove(green, INVALID_CONTEXT)?;
    if !green.context.is_alive() {
        return Err(CONTEXT_IS_DESTROYED);
    }
    capture::spoil_context(&green.context);
    green.context.end_part(call.process);
    primary::release(call, green.device)
}

/// Returns a stream's context and the handle of its green context; 0 for none.
fn of_stream(call: Call, stream: CUstream) -> Result<(CUcontext, CUgreenCtx), CUerror> {
    let context = call.context_of(call.stream(stream)?.context)?;
    match find(call, context.handle) {
        Some(_) if stream == stream::PER_THREAD => Err(INVALID_HANDLE),
        Some((green, _)) => Ok((context.base().handle, green)),
        None => Ok((context.handle, 0)),
    }
}

impl Context {
    /// Returns all its streams that are not ordered behind others: the targets of operations on a whole
    /// context.
    fn streams(&self, call: Call) -> Vec<Arc<Stream>> {
        let family = self.family();
        let contexts = family.iter().filter_map(|handle| call.context_of(*handle).ok());
        let mut streams: Vec<_> = contexts.map(|context| Arc::clone(&context.legacy)).collect();
        let is_own =
            |stream: &Stream| stream.kind == StreamKind::NonBlocking && family.contains(&stream.context);
        let all = call.process.streams.all().into_iter().map(|(_, stream)| stream);
        streams.extend(all.filter(|stream| is_own(stream)));
        streams
    }

    /// Records an event that is reached when all work submitted to the context so far has completed. Later
    /// work does not wait for it.
    pub(crate) fn record(&self, call: Call, event: CUevent) -> CUresult {
        let event = call.event(event)?;
        capture::check_context(self)?;
        if event.context != self.base().handle {
            return Err(INVALID_HANDLE);
        }
        Price::RecordContext.work(self.streams(call).len());
        let last = Stream::open(self.handle, self.engine, StreamKind::NonBlocking, 0, 0);
        let (engine, family) = (self.engine, self.family());
        let submitted = engine.submitted();
        let has_ended = move || {
            family
                .iter()
                .all(|context| engine.has_ended(*context as u64, submitted))
        };
        engine.submit(last.id, [Work::Wait(Box::new(has_ended), Watch::Nudged)]);
        call.enqueue(&last, Op::Record(event))
    }

    /// Makes all work submitted to the context from now on wait for an event.
    pub(crate) fn wait_event(&self, call: Call, event: CUevent) -> CUresult {
        let event = call.event(event)?;
        capture::check_context(self)?;
        capture::check_event(&event)?;
        let streams = self.streams(call);
        let wait = |stream: &Arc<Stream>| call.enqueue(stream, Op::Wait(Arc::clone(&event)));
        streams.iter().try_for_each(wait)
    }
}

driver! {
    fn cuGreenCtxCreate(green: Out<CUgreenCtx>, description: usize, device: CUdevice, flags: u32) |call| {
        create(call, green, description, device, flags)
    }
    fn cuGreenCtxDestroy(green: CUgreenCtx) |call| { destroy(call, green) }
    fn cuCtxFromGreenCtx(context: Out<CUcontext>, green: CUgreenCtx) |call| {
        context.set(call.green(green)?.context.handle)
    }
    fn cuGreenCtxGetId(green: CUgreenCtx, id: Out<u64>) |call| {
        let context = match green {
            0 => call.context()?,
            _ => Arc::clone(&call.green(green)?.context),
        };
        if !context.is_part() {
            return Err(INVALID_CONTEXT);
        }
        id.set(context.domain() >> 4 & 0xffff_ffff)
    }
    fn cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent) |call| { call.green(green)?.context.record(call, event) }
    fn cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent) |call| { call.green(green)?.context.wait_event(call, event) }
    fn cuGreenCtxStreamCreate(stream: Out<CUstream>, green: CUgreenCtx, flags: u32, priority: i32) |call| {
        if flags != stream::NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        stream::create_in(call, &call.green(green)?.context, stream, flags, priority)
    }
    fn cuStreamGetGreenCtx(stream: CUstream, green: Out<CUgreenCtx>) |call| {
        green.set(of_stream(call, stream)?.1)
    }
    fn cuStreamGetCtx_v2(stream: CUstream, context: Out<CUcontext>, green: Out<CUgreenCtx>) twin cuStreamGetCtx_v2_ptsz |call| {
        let found = of_stream(call, stream)?;
        green.set_if(found.1);
        context.set(found.0)
    }
}
