//! Assignment of slots to threads: a thread counts its submissions to a device in a slot of the usage block
//! while there is room.
//!
//! The part of a slot that others read is in the usage block (`Thread`); the part that leads a submission
//! into the driver is in memory private to the process (`Entrance`), where no other process can change it.
//!
//! A slot belongs to the thread whose id it carries until that thread has ended. Threads beyond the block's
//! room get a slot on the heap. Its gate is always closed, so each of their submissions passes `gate::admit`,
//! which adds their counts to the device's shared ones.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use gcgroup_abi::{Entrance, MAX_THREADS, Submission, Thread, Usage};
use parking_lot::Mutex;

use super::entry_snapshot::EntrySnapshot;
use super::slot::{Bound, HeapSlot, SlotState, point};
use crate::driver::thread;
use crate::shared::counters::Counts;
use crate::shared::session::Session;
use crate::sys::mapping::Mapping;

mod bind;
#[cfg(test)]
mod tests;

#[derive(Debug)]
pub(crate) struct Slots {
    /// [`MAX_THREADS`] of [`Entrance`], initially zero; untouched pages take no memory.
    entrances: Mapping,
    /// Made on the heap, because 96 KiB exceed the stack of some threads.
    states: Box<[SlotState; MAX_THREADS]>,
    /// Number of slots of the block that have ever been taken. The block has a copy, which is not read here.
    nr_used: AtomicU32,
    /// Held while a slot is taken. Holds the heap slots.
    heap_slots: Mutex<Vec<&'static HeapSlot>>,
    /// Whether every submission must take the slow path, which examines its destination.
    are_watched: AtomicBool,
    /// Devices, one bit each, to which the next submission must take the slow path.
    armed: AtomicU64,
}

impl Slots {
    pub(crate) fn new() -> io::Result<Self> {
        let states: Box<[SlotState]> = (0..MAX_THREADS).map(|_| SlotState::default()).collect();
        Ok(Self {
            entrances: Mapping::anonymous(MAX_THREADS * size_of::<Entrance>())?,
            states: states.try_into().map_err(|_| io::ErrorKind::OutOfMemory)?,
            nr_used: AtomicU32::new(0),
            heap_slots: Mutex::new(Vec::new()),
            are_watched: AtomicBool::new(false),
            armed: AtomicU64::new(0),
        })
    }

    /// Returns the entrances of the block's slots.
    #[inline]
    fn entrances(&self) -> &[Entrance; MAX_THREADS] {
        // SAFETY: a page-aligned mapping of that size, which lives as long as `self`; atomics alone, which
        // may be zero.
        unsafe { &*self.entrances.address().cast() }
    }

    /// Returns the number of the calling thread's slot, if it is in the block.
    #[inline]
    fn number(&self) -> Option<usize> {
        // Only slots of the block have their entrance in this mapping.
        let offset = thread::slot()
            .addr()
            .wrapping_sub(self.entrances.address().addr());
        let number = offset / size_of::<Entrance>();
        (number < MAX_THREADS).then_some(number)
    }

    /// Returns the shared part of the calling thread's slot, if it is in the block.
    #[inline]
    fn own<'a>(&self, usage: &'a Usage) -> Option<&'a Thread> {
        usage.threads.get(self.number()?)
    }

    pub(crate) fn are_watched(&self) -> bool {
        self.are_watched.load(Relaxed)
    }

    /// Sends every submission through the slow path, or ends that.
    pub(crate) fn watch(&self, session: &Session, is_wanted: bool) {
        if self.are_watched() == is_wanted {
            return;
        }
        // A thread that takes a slot holds this lock, so it sees the word or its slot is seen below.
        let _heap_slots = self.heap_slots.lock();
        self.are_watched.store(is_wanted, Relaxed);
        self.point_all(session, |_| true);
    }

    pub(crate) fn is_armed(&self, index: usize) -> bool {
        self.armed.load(Relaxed) & 1_u64 << index != 0
    }

    /// Sends submissions to the device with that index through the slow path, or ends that.
    pub(crate) fn arm(&self, session: &Session, index: usize, is_wanted: bool) {
        // As in `watch`.
        let _heap_slots = self.heap_slots.lock();
        match is_wanted {
            true => self.armed.fetch_or(1_u64 << index, Relaxed),
            false => self.armed.fetch_and(!(1_u64 << index), Relaxed),
        };
        self.point_all(session, |bound| bound.index() == index);
    }

    fn point_all(&self, session: &Session, is_meant: impl Fn(&Bound<'_>) -> bool) {
        self.in_block(session)
            .filter(|bound| !matches!(bound.state.tid.load(Acquire), 0 | u32::MAX) && is_meant(bound))
            .for_each(|bound| self.point(session, bound, bound.index()));
    }

    /// Points a slot at the gate of the device with that index, or at one that is always closed.
    fn point(&self, session: &Session, bound: Bound<'_>, index: usize) {
        let is_closed = self.are_watched() || self.is_armed(index);
        point(session.control(), bound, index, is_closed);
    }

    /// Returns how many submissions to the device with that index have begun; wraps.
    pub(crate) fn nr_entered(&self, session: &Session, index: usize) -> u64 {
        self.entered(session, index)
            .into_iter()
            .fold(0, u64::wrapping_add)
    }

    /// Returns how many submissions of each kind to the device with that index have begun; wraps.
    pub(crate) fn entered(&self, session: &Session, index: usize) -> [u64; Submission::COUNT] {
        let heap_slots = self.heap_slots.lock();
        let bound = self
            .in_block(session)
            .chain(heap_slots.iter().map(|heap_slot| heap_slot.bound()));
        let entered = bound
            .filter(|bound| bound.index() == index)
            .map(|bound| bound.entered());
        let device = session.usage().devices.get(index);
        let before = device.map(|device| device.shared_exited.each_ref().map(|count| count.load(Relaxed)));
        entered.chain(before).fold([0; _], |sums: [u64; _], counts| {
            std::array::from_fn(|what| sums[what].wrapping_add(counts[what]))
        })
    }

    /// Returns the threads inside submissions to any device.
    pub(crate) fn inside(&self, session: &Session) -> Vec<EntrySnapshot> {
        let heap_slots = self.heap_slots.lock();
        self.in_block(session)
            .chain(heap_slots.iter().map(|heap_slot| heap_slot.bound()))
            .filter_map(EntrySnapshot::of)
            .collect()
    }

    /// Drops the threads that have left their submission from `inside`.
    pub(crate) fn retain_inside(&self, session: &Session, inside: &mut Vec<EntrySnapshot>) {
        let heap_slots = self.heap_slots.lock();
        inside.retain(|one| {
            self.in_block(session)
                .chain(heap_slots.iter().map(|heap_slot| heap_slot.bound()))
                .any(|bound| one.is_still(bound))
        });
    }

    /// Returns where the calling thread counts its allocations on a device; `None` means in the device's own
    /// counters.
    #[inline]
    pub(crate) fn counts<'a>(&self, usage: &'a Usage, index: usize) -> Option<Counts<'a>> {
        Counts::of(usage, self.own(usage)?, index)
    }

    /// Returns the calling thread's slot, if it is in the block.
    #[inline]
    pub(super) fn in_block_now<'a>(&'a self, session: &'a Session) -> Option<Bound<'a>> {
        self.numbered(session.usage(), self.number()?)
    }

    #[inline]
    fn numbered<'a>(&'a self, usage: &'a Usage, number: usize) -> Option<Bound<'a>> {
        Some(Bound {
            entrance: self.entrances().get(number)?,
            thread: usage.threads.get(number)?,
            state: self.states.get(number)?,
            heap_slot: None,
        })
    }

    /// Returns the calling thread's slot, if it has one on its current device.
    #[inline]
    pub(crate) fn current<'a>(&'a self, session: &'a Session) -> Option<Bound<'a>> {
        self.in_block_now(session).or_else(|| self.current_heap_slot())
    }

    /// Returns the calling thread's slot, if it is on the heap.
    #[cold]
    #[inline(never)]
    fn current_heap_slot<'a>(&self) -> Option<Bound<'a>> {
        let slot = thread::slot();
        if slot == thread::unbound() || slot.is_null() {
            return None;
        }
        // SAFETY: a slot that is neither the unbound one nor in the block is the first field of a `HeapSlot`,
        // which is never freed.
        let heap_slot: &'static HeapSlot = unsafe { &*slot.cast::<HeapSlot>() };
        Some(heap_slot.bound())
    }

    fn in_block<'a>(&'a self, session: &'a Session) -> impl Iterator<Item = Bound<'a>> {
        let usage = session.usage();
        let used = self.nr_used.load(Acquire) as usize;
        (0..used).filter_map(move |number| self.numbered(usage, number))
    }

    /// Points every slot at its device's gate in a new control block.
    pub(crate) fn renumber(&self, session: &Session) {
        let heap_slots = self.heap_slots.lock();
        for bound in self
            .in_block(session)
            .chain(heap_slots.iter().map(|heap_slot| heap_slot.bound()))
        {
            let Some(local) = bound.local() else { continue };
            let index = session.devices.index(local);
            if bound.index() != index && bound.state.tid.load(Acquire) != 0 {
                bound.fold(session.usage());
                self.point(session, bound, index);
            }
        }
    }

    /// Returns whether any thread is inside a submission to a device whose index `is_meant`. Exact if no
    /// thread can enter any more.
    pub(crate) fn is_any_inside(&self, session: &Session, is_meant: impl Fn(usize) -> bool) -> bool {
        let heap_slots = self.heap_slots.lock();
        self.in_block(session)
            .chain(heap_slots.iter().map(|heap_slot| heap_slot.bound()))
            .filter(|bound| is_meant(bound.index()))
            .any(|bound| {
                bound.fold(session.usage());
                // A thread that died inside the driver never leaves it.
                bound.is_inside() && !bound.is_dead()
            })
    }

    /// Adds the counts of heap slots to those that the daemon reads.
    pub(crate) fn fold(&self, session: &Session) {
        for heap_slot in self.heap_slots.lock().iter() {
            heap_slot.bound().fold(session.usage());
        }
    }
}
