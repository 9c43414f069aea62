//! Events: points in the order of a stream.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use simgpu::shield::Bell;
use simgpu::{Export, Quirk, Watch};

use crate::abi::{CUcontext, CUerror, CUevent, CUresult, CUstream, Out};
use crate::call::{Call, driver};
use crate::context::Context;
use crate::error::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::op::Op;
use crate::price::Price;
use crate::process::Process;
use crate::shared_event::SharedEvent;
use crate::{capture, pool};

pub(crate) const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// An event.
pub(crate) struct Event {
    pub(crate) context: CUcontext,
    flags: u32,
    state: Mutex<State>,
    reached: Bell,
    /// State of an interprocess event, used instead of `state`.
    shared: Option<SharedEvent>,
    /// Position of the event in a capture.
    pub(crate) captured: Mutex<Option<capture::Fork>>,
}

#[derive(Default)]
struct State {
    /// Number of recordings.
    begun: u64,
    /// Recordings not reached yet; those in different streams may be reached in any order.
    pending: Vec<u64>,
    /// Time of the last recording reached, in nanoseconds.
    at: u64,
    last_reached: u64,
}

impl State {
    fn is_complete(&self, turn: u64) -> bool {
        !self.pending.contains(&turn)
    }
}

impl Event {
    pub(crate) fn new(context: &Context, flags: u32, shared: Option<SharedEvent>) -> Event {
        let captured = Mutex::new(None);
        Event {
            context: context.base().handle,
            flags,
            state: Mutex::default(),
            reached: Bell::default(),
            shared,
            captured,
        }
    }

    /// Opens an event that another process has created.
    pub(crate) fn shared(
        process: &'static Process,
        context: &Context,
        export: Export,
    ) -> Result<Event, CUerror> {
        let shared = SharedEvent::of(process, export)?;
        Ok(Event::new(context, DISABLE_TIMING | INTERPROCESS, Some(shared)))
    }

    /// Returns the export by which other processes open the event, if it is interprocess.
    pub(crate) fn export(&self) -> Option<&Export> {
        self.shared.as_ref().map(SharedEvent::export)
    }

    /// Returns how a waiting stream learns that the event was reached.
    pub(crate) fn watch(&self) -> Watch {
        if self.shared.is_some() {
            Watch::Polled
        } else {
            Watch::Nudged
        }
    }

    /// Counts a recording and returns its number.
    pub(crate) fn begin(&self, _context: &Context) -> u64 {
        if let Some(shared) = &self.shared {
            return shared.begin();
        }
        let mut state = self.state.lock();
        state.begun += 1;
        let turn = state.begun;
        state.pending.push(turn);
        turn
    }

    /// Returns the number of the last recording; 0 if there was none.
    pub(crate) fn last(&self) -> u64 {
        if let Some(shared) = &self.shared {
            return shared.last();
        }
        self.state.lock().begun
    }

    /// Marks a recording as reached.
    pub(crate) fn complete(&self, turn: u64, at: u64) {
        if let Some(shared) = &self.shared {
            return shared.complete(turn);
        }
        let mut state = self.state.lock();
        state.pending.retain(|pending| *pending != turn);
        if turn > state.last_reached {
            (state.last_reached, state.at) = (turn, at);
        }
    }

    /// Wakes what waits for a recording that was reached.
    pub(crate) fn tell(&self, process: &Process) {
        if self.shared.is_some() {
            return;
        }
        self.reached.ring();
        if process.devices.len() > 1 {
            process.nudge_engines();
        }
    }

    /// Returns whether a recording was reached.
    pub(crate) fn is_complete(&self, turn: u64) -> bool {
        if let Some(shared) = &self.shared {
            return shared.is_complete(turn);
        }
        self.state.lock().is_complete(turn)
    }

    fn wait(&self) {
        if let Some(shared) = &self.shared {
            return shared.wait();
        }
        let mut state = self.state.lock();
        let turn = state.begun;
        while !state.is_complete(turn) {
            let seen = self.reached.count();
            MutexGuard::unlocked(&mut state, || self.reached.sleep(seen));
        }
    }

    /// Returns whether the event keeps the time at which it is reached.
    pub(crate) fn is_timed(&self) -> bool {
        self.flags & DISABLE_TIMING == 0
    }

    /// Returns when the event was reached; an error if it keeps no time or was never recorded.
    fn time(&self) -> Result<u64, CUerror> {
        let state = self.state.lock();
        if !self.is_timed() || state.begun == 0 {
            return Err(INVALID_HANDLE);
        }
        if state.is_complete(state.begun) {
            Ok(state.at)
        } else {
            Err(NOT_READY)
        }
    }
}

impl Call {
    pub(crate) fn event(&self, event: CUevent) -> Result<Arc<Event>, CUerror> {
        self.process.events.get(event, INVALID_HANDLE)
    }
}

fn record(call: Call, event: CUevent, stream: CUstream) -> CUresult {
    let event = call.event(event)?;
    let stream = call.stream(stream)?;
    if let Some(result) = capture::record(&stream, &event) {
        return result;
    }
    *event.captured.lock() = None;
    Price::Record.work(1);
    call.enqueue(&stream, Op::Record(event))
}

fn elapsed(call: Call, milliseconds: Out<f32>, start: CUevent, end: CUevent) -> CUresult {
    let (start, end) = (call.event(start)?.time()?, call.event(end)?.time()?);
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "the driver's own precision"
    )]
    milliseconds.set((end.cast_signed() - start.cast_signed()) as f32 / 1e6)
}

driver! {
    fn cuEventCreate(event: Out<CUevent>, flags: u32) |call| {
        let context = call.context()?;
        // Interprocess events keep no time.
        if event.is_null() || flags > 7 || flags & (INTERPROCESS | DISABLE_TIMING) == INTERPROCESS {
            return Err(INVALID_VALUE);
        }
        let shared = match flags & INTERPROCESS {
            0 => None,
            _ => Some(SharedEvent::new(call.process, context.index)?),
        };
        event.set(call.process.events.insert(Event::new(&context, flags, shared)))
    }
    fn cuEventDestroy(event: CUevent) |call| { call.process.events.remove(event, INVALID_HANDLE).map(|_| ()) }
    fn cuEventDestroy_v2(event: CUevent) |call| { call.process.events.remove(event, INVALID_HANDLE).map(|_| ()) }
    fn cuEventRecord(event: CUevent, stream: CUstream) twin cuEventRecord_ptsz null {} |call| { record(call, event, stream) }
    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, _flags: u32) twin cuEventRecordWithFlags_ptsz null {} |call| {
        record(call, event, stream)
    }
    fn cuEventQuery(event: CUevent) null {} |call| {
        capture::check_unsafe()?;
        let event = call.event(event)?;
        capture::check_event(&event)?;
        if event.is_complete(event.last()) { Ok(()) } else { Err(NOT_READY) }
    }
    fn cuEventSynchronize(event: CUevent) null {} |call| {
        let event = call.event(event)?;
        capture::check_event(&event)?;
        event.wait();
        pool::settle(call.process);
        Ok(())
    }
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: CUevent, end: CUevent) |call| {
        elapsed(call, milliseconds, start, end)
    }
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: CUevent, end: CUevent) |call| {
        elapsed(call, milliseconds, start, end)
    }
    fn cuCtxRecordEvent(context: CUcontext, event: CUevent) |call| {
        let context = call.context_of(context)?;
        if Quirk::RecordPrimary.is_on() && !context.is_primary() {
            return Err(INVALID_CONTEXT);
        }
        context.record(call, event)
    }
    fn cuCtxWaitEvent(context: CUcontext, event: CUevent) |call| {
        call.context_of(context)?.wait_event(call, event)
    }
}
