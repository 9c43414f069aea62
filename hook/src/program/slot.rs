//! A slot: the counters of a thread, and process-private state of it.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

use gcgroup_abi::{Control, Entrance, Gate, Submission, Thread, Usage, UsageDevice};

use parking_lot::Mutex;

use super::context::Moment;
use super::last_stream::LastStream;
use super::window::{Shape, Window};
use crate::shared::counters::add;
use crate::shared::device::LocalDevice;
use crate::shared::target::Target;
use crate::sys;

/// Process-private state of a slot: its thread and that thread's current context.
#[derive(Debug, Default)]
pub(crate) struct SlotState {
    /// Thread id; 0 if the slot is free.
    pub(super) tid: AtomicU32,
    pub(super) local: AtomicU32,
    pub(super) context: AtomicU32,
    /// Number of the context that owns what the thread allocates.
    pub(super) owner: AtomicU32,
    pub(super) handle: AtomicUsize,
    /// Epoch of the contexts when `handle` was read.
    pub(super) epoch: AtomicU32,
    /// Number of submissions that may still pass a throttled gate.
    pub(crate) credit: AtomicU32,
    /// Used by the slot's thread only; locked just while it is taken out or put back.
    pub(crate) window: Mutex<Option<Box<Window>>>,
    pub(crate) last_stream: LastStream,
    /// The sample of the submission that the thread is making. Used by the slot's thread only.
    pub(crate) sample: Mutex<Option<Sample>>,
    /// Submissions in progress that become part of a graph, by kind.
    pub(super) captured: [AtomicU64; Submission::COUNT],
}

/// How the GPU time of a submission is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    /// At the looks of the helper.
    Looks,
    /// At its gate, as these nanoseconds, which it is known to cost.
    Known(u64),
    /// As these nanoseconds and [`UNKNOWN_COST`](gcgroup_abi::UNKNOWN_COST), which is corrected later.
    Unknown(u64),
}

/// A submission in progress whose GPU time is being sampled.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) start: Moment,
    pub(crate) shape: Shape,
    pub(crate) stream: usize,
    /// When the start moment had been submitted, and what that took, nanoseconds.
    pub(crate) submitted: u64,
    pub(crate) cost: u64,
    pub(crate) charge: Charge,
}

/// A slot on the heap, for threads that have none in the usage block.
#[repr(C)]
#[derive(Debug)]
pub(super) struct HeapSlot {
    pub(crate) entrance: Entrance,
    pub(super) thread: Thread,
    pub(crate) state: SlotState,
    /// Exits already added to the device's shared counters, by kind.
    folded: [AtomicU64; Submission::COUNT],
}

/// Target of the gate pointers of heap slots, and of all slots while each submission must be examined.
static CLOSED: AtomicU32 = AtomicU32::new(Gate::Track as u32);

/// Slot of submissions that are not governed. Its counters have no meaning.
static UNACCOUNTED: Entrance = Entrance {
    gate: AtomicPtr::new((&raw const CLOSED).cast_mut()),
    thread: AtomicPtr::new((&raw const UNACCOUNTED_EXITS).cast_mut()),
    entered: [const { AtomicU64::new(0) }; Submission::COUNT],
};

// SAFETY: consists of atomics, for which all zeroes is a valid value.
static UNACCOUNTED_EXITS: Thread = unsafe { MaybeUninit::zeroed().assume_init() };

/// Returns the slot of submissions that are not governed.
pub(crate) fn unaccounted() -> *const Entrance {
    &raw const UNACCOUNTED
}

/// Slot of the calling thread, or of a thread that is being examined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound<'a> {
    pub(crate) entrance: &'a Entrance,
    pub(crate) thread: &'a Thread,
    pub(crate) state: &'a SlotState,
    pub(super) heap_slot: Option<&'a HeapSlot>,
}

impl Bound<'_> {
    /// Returns the device's index in the blocks.
    pub(crate) fn index(&self) -> usize {
        self.thread.device.load(Relaxed) as usize
    }

    pub(crate) fn local(&self) -> Option<LocalDevice> {
        LocalDevice::of(self.state.local.load(Relaxed).cast_signed())
    }

    /// Returns where the thread allocates.
    #[inline]
    pub(crate) fn target(&self) -> Option<Target> {
        Some(Target {
            local: self.local()?,
            index: self.index(),
            context: self.owner(),
        })
    }

    /// Returns the number of the thread's current context.
    pub(crate) fn context(&self) -> u32 {
        self.state.context.load(Relaxed)
    }

    /// Returns the number of the context that owns what the thread allocates.
    pub(crate) fn owner(&self) -> u32 {
        self.state.owner.load(Relaxed)
    }

    pub(crate) fn enter(&self, what: Submission) {
        self.entrance.enter(what);
        self.tell_entry(what, 1);
    }

    /// Returns how many submissions of each kind have begun; wraps.
    pub(super) fn entered(&self) -> [u64; Submission::COUNT] {
        self.entrance.entered.each_ref().map(|count| count.load(Acquire))
    }

    /// Withdraws an [`Self::enter`].
    pub(crate) fn uncount(&self, what: Submission) {
        self.entrance.withdraw(what);
        self.tell_entry(what, u64::MAX);
    }

    /// Publishes an entry. Used only by the daemon, as evidence of work while the thread is in the driver.
    fn tell_entry(&self, what: Submission, amount: u64) {
        if let Some([begun, _]) = self.thread.submissions.get(what as usize) {
            add(begun, amount);
        }
    }

    /// Returns the exit counters, by kind.
    pub(super) fn exits(&self) -> impl Iterator<Item = &AtomicU64> {
        self.thread.submissions.iter().map(|[_, exited]| exited)
    }

    /// Returns whether the thread is in a submitting call.
    pub(crate) fn is_inside(&self) -> bool {
        self.entrance.is_inside(self.thread)
    }

    /// Notes that a submission becomes part of a graph, for [`Self::settle`].
    pub(crate) fn count_captured(&self, what: Submission) {
        if let Some(count) = self.state.captured.get(what as usize) {
            add(count, 1);
        }
    }

    /// Takes back a submission that became part of a graph or that the driver has refused. For the slot's own
    /// thread.
    pub(crate) fn settle(&self, what: Submission, is_refused: bool) {
        let (Some(captured), Some(entered)) = (
            self.state.captured.get(what as usize),
            self.entrance.entered.get(what as usize),
        ) else {
            return;
        };
        let count = captured.swap(0, Relaxed).max(is_refused.into());
        if count != 0 {
            // Atomically: a signal handler may submit in between.
            entered.fetch_sub(count, Relaxed);
            self.thread.exited(what).fetch_sub(count, Relaxed);
        }
    }

    /// Makes the assembly count the thread's exits in this slot's own counters.
    pub(super) fn lead(&self) {
        let thread = ptr::from_ref(self.thread).cast_mut();
        self.entrance.thread.store(thread, Relaxed);
    }

    /// Counts the exit of a submission whose driver call has returned.
    pub(crate) fn exit(&self, what: Submission) {
        self.thread.exit(what);
    }

    /// Returns the thread's id.
    pub(crate) fn tid(&self) -> u32 {
        self.state.tid.load(Relaxed)
    }

    /// Returns whether the slot has no thread or its thread is gone.
    pub(super) fn is_dead(&self) -> bool {
        let tid = self.state.tid.load(Acquire);
        tid == 0 || (tid != u32::MAX && !sys::is_thread_alive(tid))
    }

    /// Adds a heap slot's exits to the device's counters, which the daemon sees.
    pub(crate) fn fold(&self, usage: &Usage) {
        if let (Some(heap_slot), Some(device)) = (self.heap_slot, usage.devices.get(self.index())) {
            heap_slot.fold(device);
        }
    }
}

impl HeapSlot {
    pub(super) fn new() -> &'static Self {
        // SAFETY: consists of atomics, for which all zeroes is a valid value.
        let heap_slot: &'static Self = Box::leak(unsafe { Box::new(MaybeUninit::zeroed().assume_init()) });
        heap_slot.bound().lead();
        heap_slot
            .entrance
            .gate
            .store((&raw const CLOSED).cast_mut(), Relaxed);
        heap_slot
    }

    /// Adds new exits to the shared counters. Safe in two threads at once: the swaps' differences add up in
    /// any order.
    pub(super) fn fold(&self, device: &UsageDevice) {
        let counts = self.thread.submissions.iter().zip(&self.folded);
        for (([_, exited], folded), shared) in counts.zip(&device.shared_exited) {
            let now = exited.load(Acquire);
            shared.fetch_add(now.wrapping_sub(folded.swap(now, AcqRel)), Relaxed);
        }
    }

    pub(super) fn bound(&'static self) -> Bound<'static> {
        Bound {
            entrance: &self.entrance,
            thread: &self.thread,
            state: &self.state,
            heap_slot: Some(self),
        }
    }
}

/// Sets the exit counters of a dead thread's slot to its entry counters: it is outside the driver.
pub(super) fn settle(bound: Bound<'_>) {
    for (entered, exited) in bound.entrance.entered.iter().zip(bound.exits()) {
        exited.store(entered.load(Relaxed), Relaxed);
    }
    let unsettled = &bound.thread.unsettled;
    let before = unsettled.load(Relaxed);
    unsettled.store(before.wrapping_add(before % 2), Relaxed);
}

/// Moves the counts to the device's shared counters when the slot is bound to another device.
pub(super) fn leave_behind(bound: Bound<'_>, device: &UsageDevice) {
    let counts = bound.entrance.entered.iter().zip(bound.exits());
    for ((entered, exited), shared) in counts.zip(&device.shared_exited) {
        entered.store(0, Relaxed);
        shared.fetch_add(exited.swap(0, Relaxed), Relaxed);
    }
}

/// Points a slot at the gate of the device with that index; with `is_closed`, every submission takes the slow
/// path.
pub(super) fn point(control: &Control, bound: Bound<'_>, index: usize, is_closed: bool) {
    let Some(device) = control.devices.get(index) else {
        return;
    };
    if bound.heap_slot.is_none() {
        let gate = if is_closed { &CLOSED } else { &device.gate };
        bound.entrance.gate.store(ptr::from_ref(gate).cast_mut(), Release);
    }
    bound
        .thread
        .device
        .store(u32::try_from(index).unwrap_or(0), Release);
}

#[cfg(test)]
impl Bound<'_> {
    /// Counts submissions that have entered and exited.
    pub(crate) fn submit(&self, what: Submission, times: u64) {
        (0..times).for_each(|_| self.enter(what));
        add(self.thread.exited(what), times);
    }
}
