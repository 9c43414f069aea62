//! Stream operations, in a form that a graph can store and repeat.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use simgpu::{Cost, Route, Watch, Work};

use crate::abi::{CUerror, CUresult, Raw};
use crate::bytes::{Copy, Fill};
use crate::call::Call;
use crate::conditional::{Branches, Condition};
use crate::context::Context;
use crate::error::INVALID_CONTEXT;
use crate::event::Event;
use crate::graph_memory::{self, Memory};
use crate::kernel::Launch;
use crate::pool::Freed;
use crate::process::Process;
use crate::stream::Stream;
use crate::word::{Batch, Store, Until};
use crate::{capture, kernel, pool};

/// An operation of a stream.
#[derive(Clone)]
pub(crate) enum Op {
    Kernel(Launch),
    Copy(Copy),
    Fill(Fill),
    /// A host function of the program and its argument.
    Host(extern "C" fn(Raw), Raw),
    /// A callback of the older type: function, stream, argument.
    Callback(extern "C" fn(usize, u32, Raw), usize, Raw),
    Record(Arc<Event>),
    Wait(Arc<Event>),
    /// Writes a word of memory.
    Store(Store),
    /// Waits for a word of memory.
    Until(Until),
    /// Several stream memory operations.
    Batch(Arc<Batch>),
    /// Body graphs that run as a condition requires.
    Conditional(Arc<Branches>),
    /// Resets a condition at the start of a launch.
    Assign(Arc<Condition>),
    /// Frees a block of a pool or of cuMemAlloc.
    Free(Freed),
    /// Allocates and frees memory of a graph.
    GraphAllocate(Arc<Memory>),
    GraphFree(u64),
    Nothing,
}

/// Wraps work that runs in a context of another device while the stream waits.
fn elsewhere(process: &'static Process, home: Arc<Context>, work: Work) -> Work {
    let mut work = Some(work);
    Work::Expand(Box::new(move || {
        let Some(work) = work.take() else {
            return Vec::new();
        };
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let tell = Work::Do(Box::new(move |_| {
            done.store(true, Release);
            process.nudge_engines();
        }));
        let stream = home.of_nodes();
        stream.engine.submit(stream.id, [work, tell]);
        vec![Work::Wait(Box::new(move || is_done.load(Acquire)), Watch::Nudged)]
    }))
}

impl Op {
    /// Returns the work of executing the operation once in a context.
    pub(crate) fn work(&self, process: &'static Process, context: &Arc<Context>) -> Work {
        let or_fault = |run: Box<dyn FnOnce() -> CUresult + Send>| {
            let context = Arc::clone(context);
            move || {
                if let Err(error) = run() {
                    context.set_fault(error);
                }
            }
        };
        match self.clone() {
            Op::Kernel(launch) => {
                let home = (process.devices.len() > 1)
                    .then(|| process.contexts.get(launch.context, INVALID_CONTEXT).ok())
                    .flatten();
                let cost = launch.cost;
                let effect = or_fault(Box::new(move || kernel::run(process, &launch)));
                let kernel = Work::Kernel(cost, Box::new(effect));
                match home.filter(|home| !std::ptr::eq(home.engine, context.engine)) {
                    Some(home) => elsewhere(process, home, kernel),
                    None => kernel,
                }
            }
            Op::Copy(copy) => {
                let cost = copy.cost(process);
                let run = or_fault(Box::new(move || copy.run(process.space)));
                match cost {
                    Some((route, ns)) => Work::Copy(route, ns, Box::new(run)),
                    None => Work::Do(Box::new(move |_| run())),
                }
            }
            Op::Fill(fill) => {
                let ns = fill.cost(process);
                let run = or_fault(Box::new(move || fill.run(process.space)));
                match ns {
                    0 => Work::Do(Box::new(move |_| run())),
                    ns => Work::Copy(Route::OnDevice, ns, Box::new(run)),
                }
            }
            Op::Host(function, argument) => Work::Host(Box::new(move || {
                let argument = argument;
                function(argument);
            })),
            Op::Callback(function, stream, argument) => Work::Host(Box::new(move || {
                let argument = argument;
                function(stream, 0, argument);
            })),
            Op::Record(event) => {
                let turn = event.begin(context);
                let told = Arc::clone(&event);
                let is_timed = event.is_timed();
                let reach = Box::new(move |at| event.complete(turn, at));
                let tell = Box::new(move || told.tell(process));
                match is_timed {
                    true => Work::Timed(reach, tell),
                    false => Work::Mark(reach, tell),
                }
            }
            Op::Wait(event) => {
                let (turn, watch) = (event.last(), event.watch());
                Work::Wait(Box::new(move || event.is_complete(turn)), watch)
            }
            Op::Store(store) => {
                let run = or_fault(Box::new(move || store.run(process.space)));
                match store.cost() {
                    0 => Work::Do(Box::new(move |_| run())),
                    ns => Work::Kernel(Cost::Device(ns), Box::new(run)),
                }
            }
            Op::Until(condition) => {
                Work::Wait(Box::new(move || condition.is_met(process.space)), Watch::Polled)
            }
            Op::Batch(batch) => {
                let context = Arc::clone(context);
                let mut ops = batch.ops().to_vec().into_iter();
                Work::Expand(Box::new(move || {
                    ops.next()
                        .map(|op| op.work(process, &context))
                        .into_iter()
                        .collect()
                }))
            }
            Op::Conditional(branches) => {
                let context = Arc::clone(context);
                let mut turn = branches.begin();
                Work::Expand(Box::new(move || {
                    let ops = turn.next_ops();
                    ops.iter().map(|op| op.work(process, &context)).collect()
                }))
            }
            Op::Assign(condition) => Work::Do(Box::new(move |_| condition.assign())),
            Op::Free(freed) => Work::Do(Box::new(move |_| pool::free_in_order(process, &freed))),
            Op::GraphAllocate(memory) => {
                let run = or_fault(Box::new(move || memory.begin().map(|_| ())));
                Work::Do(Box::new(move |_| run()))
            }
            Op::GraphFree(address) => Work::Do(Box::new(move |_| {
                graph_memory::free(process, address);
            })),
            Op::Nothing => Work::Do(Box::new(|_| ())),
        }
    }
}

impl Call {
    /// Appends an operation to a stream, or to the graph that the stream captures to.
    pub(crate) fn enqueue(&self, stream: &Stream, op: Op) -> CUresult {
        if let Some(result) = capture::intercept(self, stream, &op) {
            return result;
        }
        let context = self
            .context_of(stream.context)
            .map_err(|_: CUerror| INVALID_CONTEXT)?;
        stream.engine.submit(stream.id, [op.work(self.process, &context)]);
        Ok(())
    }
}
