//! One slot: what a thread counts in, and what the process alone knows of it.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

use gcgroup_abi::{Entrance, Gate, Kind, Stock, Submission, Thread, Usage, UsageDevice};

use parking_lot::Mutex;

use super::meter::Noted;
use super::window::Window;
use crate::device::LocalDevice;
use crate::memory::Kept;
use crate::process::Process;
use crate::sys;

/// What the process alone knows of a slot: whose it is, and which context that thread has current.
#[derive(Debug)]
pub(super) struct Side {
    /// That thread's id; zero: the slot is free.
    pub(super) tid: AtomicU32,
    pub(super) local: AtomicU32,
    pub(super) context: AtomicU32,
    /// Which owns what is allocated there.
    pub(super) owner: AtomicU32,
    pub(super) handle: AtomicUsize,
    /// Of the contexts, when the handle was seen.
    pub(super) epoch: AtomicU32,
    /// Submissions that may still pass a throttled gate.
    pub(super) credit: AtomicU32,
    /// Its own thread's; locked for as long as it takes to take it out or put it back.
    pub(super) window: Mutex<Option<Box<Window>>>,
    pub(super) noted: Noted,
    /// Submissions that are counted and became part of a graph instead, by sort.
    pub(super) captured: [AtomicU64; Submission::COUNT],
    /// Its own thread's.
    pub(super) kept: Kept,
}

impl Side {
    pub(super) const fn new() -> Self {
        Self {
            tid: AtomicU32::new(0),
            local: AtomicU32::new(0),
            context: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            handle: AtomicUsize::new(0),
            epoch: AtomicU32::new(0),
            credit: AtomicU32::new(0),
            window: Mutex::new(None),
            noted: Noted::new(),
            captured: [const { AtomicU64::new(0) }; Submission::COUNT],
            kept: Kept::new(),
        }
    }
}

/// A slot of the heap.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Extra {
    pub(super) entrance: Entrance,
    pub(super) thread: Thread,
    pub(super) side: Side,
    /// Exits that are already in the device's shared counters, by sort.
    folded: [AtomicU64; Submission::COUNT],
}

/// What the gate pointers of heap slots point to, and all while where each submission goes must be looked at.
static CLOSED: AtomicU32 = AtomicU32::new(Gate::Track as u32);

/// The slot of submissions that nothing governs. Its counters mean nothing.
static UNACCOUNTED: Entrance = Entrance {
    gate: AtomicPtr::new((&raw const CLOSED).cast_mut()),
    thread: AtomicPtr::new((&raw const UNACCOUNTED_EXITS).cast_mut()),
    entered: [const { AtomicU64::new(0) }; Submission::COUNT],
};

// SAFETY: atomics only, for which all zeroes are a value.
static UNACCOUNTED_EXITS: Thread = unsafe { MaybeUninit::zeroed().assume_init() };

/// The slot of submissions that nothing governs.
pub(super) fn unaccounted() -> *const Entrance {
    &raw const UNACCOUNTED
}

/// The slot of the calling thread, or of a thread that is being looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound<'a> {
    pub(super) entrance: &'a Entrance,
    pub(crate) thread: &'a Thread,
    pub(super) side: &'a Side,
    pub(super) extra: Option<&'a Extra>,
}

impl Bound<'_> {
    /// The device's index in the blocks.
    pub(crate) fn index(&self) -> usize {
        self.thread.device.load(Relaxed) as usize
    }

    pub(crate) fn local(&self) -> Option<LocalDevice> {
        LocalDevice::of(self.side.local.load(Relaxed).cast_signed())
    }

    /// The number of the context that is current to the thread.
    pub(crate) fn context(&self) -> u32 {
        self.side.context.load(Relaxed)
    }

    /// The number of the context that owns what the thread allocates.
    pub(crate) fn owner(&self) -> u32 {
        self.side.owner.load(Relaxed)
    }

    pub(crate) fn enter(&self, what: Submission) {
        self.entrance.enter(what);
        self.tell_entry(what, 1);
    }

    /// Takes an [`Self::enter`] back.
    pub(crate) fn uncount(&self, what: Submission) {
        self.entrance.withdraw(what);
        self.tell_entry(what, u64::MAX);
    }

    /// For the daemon alone, which takes it for evidence of work while the driver has the thread.
    fn tell_entry(&self, what: Submission, amount: u64) {
        if let Some([begun, _]) = self.thread.submissions.get(what as usize) {
            add(begun, amount);
        }
    }

    /// The counters of exits, by sort.
    pub(super) fn exits(&self) -> impl Iterator<Item = &AtomicU64> {
        self.thread.submissions.iter().map(|[_, exited]| exited)
    }

    /// Whether the thread is in a submitting call.
    pub(super) fn is_inside(&self) -> bool {
        self.entrance.is_inside(self.thread)
    }

    /// What was entered becomes part of a graph: it is taken off when it has been exited.
    pub(super) fn count_captured(&self, what: Submission) {
        if let Some(count) = self.side.captured.get(what as usize) {
            add(count, 1);
        }
    }

    /// Takes off what became part of graphs. For the slot's own thread, or for who takes it over.
    pub(super) fn discount(&self) {
        let counts = self.entrance.entered.iter().zip(self.exits());
        for ((entered, exited), captured) in counts.zip(&self.side.captured) {
            let captured = captured.swap(0, Relaxed);
            if captured != 0 {
                add(entered, captured.wrapping_neg());
                add(exited, captured.wrapping_neg());
            }
        }
    }

    /// Has the thread's exits counted in the slot's own counters. A pointer for the assembly alone.
    pub(super) fn lead(&self) {
        let thread = ptr::from_ref(self.thread).cast_mut();
        self.entrance.thread.store(thread, Relaxed);
    }

    /// The driver has returned.
    pub(crate) fn exit(&self, what: Submission) {
        self.thread.exit(what);
    }

    /// Its thread's id.
    pub(crate) fn tid(&self) -> u32 {
        self.side.tid.load(Relaxed)
    }

    /// Whether its thread is gone, or it has none.
    pub(super) fn is_dead(&self) -> bool {
        let tid = self.side.tid.load(Acquire);
        tid == 0 || (tid != u32::MAX && !sys::is_thread_alive(tid))
    }

    /// Brings a heap slot's counts to where the daemon sees them.
    pub(crate) fn fold(&self, process: &Process) {
        if let (Some(extra), Some(device)) = (self.extra, process.usage().devices.get(self.index())) {
            extra.fold(device);
        }
    }
}

/// The calling thread's own counts, which nobody else writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts<'a>(&'a Thread);

impl<'a> Counts<'a> {
    /// Those of the slot of the block that the calling thread has, for a device that it is on.
    #[inline]
    pub(super) fn of(usage: &'a Usage, slot: &'a Thread, index: usize) -> Option<Self> {
        if slot.counted_device.load(Relaxed) as usize == index {
            return Some(Self(slot));
        }
        Self::begin(usage, slot, index)
    }

    /// Leaves what was counted for another device with that one.
    #[cold]
    #[inline(never)]
    fn begin(usage: &Usage, slot: &'a Thread, index: usize) -> Option<Self> {
        if slot.device.load(Relaxed) as usize != index {
            return None;
        }
        let before = slot.counted_device.load(Relaxed) as usize;
        if let Some(device) = usage.devices.get(before) {
            let kinds = Kind::ALL.iter().zip(&device.kinds);
            let kinds = kinds.filter_map(|((kind, ..), shared)| Some((slot.kind(*kind)?, shared)));
            let counts = [
                (&slot.nr_alloc, &device.nr_alloc),
                (&slot.nr_free, &device.nr_free),
            ];
            for (own, shared) in counts.into_iter().chain(kinds) {
                shared.fetch_add(own.load(Relaxed), Relaxed);
                own.store(0, Release);
            }
        }
        slot.counted_device
            .store(u32::try_from(index).unwrap_or(0), Release);
        Some(Self(slot))
    }

    /// The thread's own mark for a call in which the device may come to hold more than is charged.
    #[inline]
    pub(crate) fn unsettled(&self) -> &'a AtomicU32 {
        &self.0.unsettled
    }

    /// What the thread has uncharged and keeps.
    #[inline]
    pub(crate) fn stock(&self) -> Stock<'a> {
        Stock::of(self.0)
    }

    /// Frees that were counted here.
    #[inline]
    pub(crate) fn nr_free(&self) -> u64 {
        self.0.nr_free.load(Relaxed)
    }

    #[inline]
    pub(crate) fn count_alloc(&self) {
        add(&self.0.nr_alloc, 1);
    }

    #[inline]
    pub(crate) fn count_free(&self) {
        add(&self.0.nr_free, 1);
    }

    /// Whether the kind is counted here.
    #[inline]
    pub(crate) fn add_kind(&self, kind: Kind, bytes: u64) -> bool {
        self.0.kind(kind).inspect(|count| add(count, bytes)).is_some()
    }
}

/// Only a slot's own thread counts in it.
#[inline]
pub(super) fn add(count: &AtomicU64, amount: u64) {
    count.store(count.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl Extra {
    pub(super) fn new() -> &'static Self {
        // SAFETY: atomics only, for which all zeroes are a value.
        let extra: &'static Self = Box::leak(unsafe { Box::new(MaybeUninit::zeroed().assume_init()) });
        extra.bound().lead();
        extra.entrance.gate.store((&raw const CLOSED).cast_mut(), Relaxed);
        extra
    }

    /// Two threads may do this at once: what the swaps return adds up to what is counted, in whatever order.
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
            side: &self.side,
            extra: Some(self),
        }
    }
}

/// A slot whose thread is gone is outside the driver, whatever it counted last.
pub(super) fn settle(bound: Bound<'_>) {
    for (entered, exited) in bound.entrance.entered.iter().zip(bound.exits()) {
        exited.store(entered.load(Relaxed), Relaxed);
    }
    let unsettled = &bound.thread.unsettled;
    let before = unsettled.load(Relaxed);
    unsettled.store(before.wrapping_add(before % 2), Relaxed);
}

/// The counts stay with the device when the slot goes to another.
pub(super) fn leave_behind(bound: Bound<'_>, device: &UsageDevice) {
    let counts = bound.entrance.entered.iter().zip(bound.exits());
    for ((entered, exited), shared) in counts.zip(&device.shared_exited) {
        entered.store(0, Relaxed);
        shared.fetch_add(exited.swap(0, Relaxed), Relaxed);
    }
}

pub(super) fn point(process: &Process, bound: Bound<'_>, index: usize) {
    let Some(device) = process.control().devices.get(index) else {
        return;
    };
    if bound.extra.is_none() {
        let gate = if process.slots.are_watched() {
            &CLOSED
        } else {
            &device.gate
        };
        bound.entrance.gate.store(ptr::from_ref(gate).cast_mut(), Release);
    }
    bound
        .thread
        .device
        .store(u32::try_from(index).unwrap_or(0), Release);
}

#[cfg(test)]
impl<'a> Counts<'a> {
    pub(crate) fn of_test(usage: &'a Usage, bound: Bound<'a>, index: usize) -> Option<Self> {
        Self::of(usage, bound.thread, index)
    }
}

#[cfg(test)]
impl Bound<'_> {
    /// As if that many submissions had come and gone.
    pub(crate) fn submit(&self, what: Submission, times: u64) {
        (0..times).for_each(|_| self.enter(what));
        add(self.thread.exited(what), times);
    }
}
