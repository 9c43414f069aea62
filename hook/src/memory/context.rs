//! Charges of contexts. Nothing tells beforehand what a context takes, so its size is estimated and charged
//! before the driver is called. The daemon measures it afterwards, and the charge is corrected.

mod charged;
mod growth;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::{ContextKind, MAX_DEVICES};
use parking_lot::{Mutex, MutexGuard};

use self::charged::{Charged, spread};
use self::growth::Loaded;
use super::charge::Charge;
use super::page_counter::{Sums, Unsettled};
use super::room::Room;
use super::{ABSURD, Memory};
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::exit;
use crate::driver::interpose::Next;
use crate::shared::device::LocalDevice;
use crate::{helper, sys};

/// Longest wait of an allocation for the measurement of contexts.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest wait for the measurement of shared memory that was freed: none of it may be there any more.
const SHARED_PATIENCE: Duration = Duration::from_secs(2);
/// Age of a request that is repeated for a waiting thread, nanoseconds. The daemon hurries for twice as long.
const ASK_AGAIN: u64 = 50_000_000;
/// How long no allocation waits after a wait in vain, in waits. Where nothing tells what contexts take, waits
/// are a hundredth of the time. A program that allocates without pause is measured while it waits.
const IN_VAIN: u32 = 100;
/// How often a waiting thread rings again, since there may be a new daemon.
const RECHECK: Duration = Duration::from_millis(20);
/// Longest wait for another thread that makes a context on the device, or memory of unknown size.
const TURN: Duration = Duration::from_secs(5);
/// Most bytes that a context takes beyond its estimate. Where limits leave less, an allocation waits for a
/// measurement.
const MOST: u64 = 1 << 30;
/// Number, in place of a context's, of memory that was shared with other processes and freed by this one.
const SHARED: u32 = u32::MAX;
/// Most charges for one context, while other threads charge what was free.
const MOST_TRIES: usize = 8;

#[derive(Debug)]
pub(crate) struct Contexts {
    /// Held while a context is made on a device, so that a primary context is charged once.
    making: [Mutex<()>; MAX_DEVICES],
    /// Held while memory of unknown size is taken for a context, with the number of times.
    growing: Mutex<()>,
    nr_grown: AtomicU64,
    charged: Mutex<Vec<Charged>>,
    /// Bytes, [`MOST`] for each estimated charge, by which these may be wrong.
    doubt: AtomicU64,
    /// When allocations may wait again after a wait in vain, nanoseconds of the monotonic clock; 0 once the
    /// next context is made or a daemon connects.
    wait_again: AtomicU64,
    /// When a measurement was last requested, nanoseconds of the monotonic clock.
    asked: AtomicU64,
    /// Bytes by which measurements have lowered charges; written with `charged` locked.
    lowered: AtomicU64,
    pub(crate) loaded: Loaded,
}

impl Contexts {
    pub(crate) fn new() -> Self {
        Self {
            making: [const { Mutex::new(()) }; MAX_DEVICES],
            growing: Mutex::new(()),
            nr_grown: AtomicU64::new(0),
            charged: Mutex::new(Vec::new()),
            doubt: AtomicU64::new(0),
            wait_again: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            lowered: AtomicU64::new(0),
            loaded: Loaded::default(),
        }
    }

    /// Allows waits again after a daemon connected.
    pub(super) fn begin_again(&self) {
        self.doubt_all(&self.charged.lock());
    }

    fn doubt_all(&self, all: &[Charged]) {
        self.doubt(all);
        self.wait_again.store(0, Relaxed);
    }

    /// Returns how long an allocation may wait for the measurements that are requested.
    fn patience(&self) -> Duration {
        let all = self.charged.lock();
        match all.iter().any(|charged| charged.is_asked && charged.is_shared()) {
            true => SHARED_PATIENCE,
            false => PATIENCE,
        }
    }

    fn doubt(&self, all: &[Charged]) {
        let asked = all.iter().filter(|charged| charged.is_asked);
        // No more than the charge of shared memory was held.
        let doubt = |charged: &Charged| if charged.is_shared() { 1 } else { MOST };
        self.doubt.store(asked.map(doubt).sum(), Relaxed);
    }
}

/// The right to make a context on a device. No thread waits for it longer than [`TURN`], since its holder may
/// have been interrupted for good by one of the program's signal handlers.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    memory: &'a Memory,
    local: LocalDevice,
    _turn: Option<MutexGuard<'a, ()>>,
}

/// A context that is being made. Uncharged when dropped before [`settle`](Self::settle).
#[derive(Debug)]
pub(crate) struct NewContext<'a> {
    index: usize,
    /// `None`: several kinds at once.
    kind: Option<ContextKind>,
    /// The size that is expected, of which less is charged if limits leave less.
    expected: u64,
    /// `None`: no context is made.
    charge: Option<(Charge<'a>, Sums)>,
    unsettled: Option<Unsettled<'a>>,
    begun: Instant,
    turn: Turn<'a>,
}

impl<'a> Turn<'a> {
    /// Charges the estimate for a context of these kinds, or what limits leave if that is less.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if limits leave nothing, `CUDA_ERROR_SYSTEM_NOT_READY` if a rule forbids
    /// CUDA to the process.
    pub(crate) fn charge(self, kinds: &[ContextKind]) -> Result<NewContext<'a>, CUerror> {
        let memory = self.memory;
        if memory.session.is_barred() {
            return Err(CUerror::SYSTEM_NOT_READY);
        }
        let index = memory.session.devices.index(self.local);
        let mut made = NewContext {
            index,
            kind: <[ContextKind; 1]>::try_from(kinds).ok().map(|[kind]| kind),
            expected: memory.estimate(index, kinds),
            charge: None,
            unsettled: None,
            begun: Instant::now(),
            turn: self,
        };
        if !kinds.is_empty() {
            let (charge, sums) = memory.charge_at_most(index, made.expected)?;
            // Until the driver has made it; a wait for a measurement must have ended.
            made.unsettled = Some(Unsettled::on(memory.usage(), index));
            memory.show_context(index, charge.bytes, charge.bytes);
            made.charge = Some((charge, sums));
        }
        Ok(made)
    }
}

impl NewContext<'_> {
    /// Calls the driver to make the context, and again when the device was full and others have made room.
    pub(crate) fn make(&self, call: Next<'_>) -> CUresult {
        match self.charge {
            Some(_) => self.turn.memory.pressing(self.index, self.expected, call),
            None => call(),
        }
    }

    /// Keeps the charge for the context with that number, and requests its measurement. Waits for that only
    /// if limits had less room than the estimate.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the context was measured and is larger than what limits leave. Then
    /// `undo` destroys it and calls [`Memory::context_uncharged`].
    pub(crate) fn settle(mut self, context: u32, undo: impl FnOnce()) -> Result<(), CUerror> {
        let (memory, index) = (self.turn.memory, self.index);
        let Some((charge, sums)) = self.charge.take() else {
            return Ok(());
        };
        let bytes = charge.bytes;
        charge.keep(sums);
        let mut all = memory.contexts.charged.lock();
        let is_other = all.iter().any(|other| other.index == index && other.is_asked);
        all.push(Charged {
            context,
            local: self.turn.local,
            index,
            bytes,
            estimated: bytes,
            is_asked: true,
        });
        memory.contexts.doubt_all(&all);
        memory.ask_size(index, self.kind.filter(|_| !is_other));
        drop(all);
        drop(self.unsettled.take());
        memory.session.ring();
        if bytes == self.expected {
            return Ok(());
        }
        memory.await_sizes();
        // Nothing more is charged; refused if the limit is exceeded now.
        memory
            .try_charge(index, 0)
            .map(|(charge, sums)| charge.keep(sums))
            .inspect_err(|_| {
                undo();
                growth::rest(self.begun);
            })
    }
}

impl Drop for NewContext<'_> {
    fn drop(&mut self) {
        if let Some((charge, _)) = &self.charge {
            let less = charge.bytes.wrapping_neg();
            self.turn.memory.show_context(self.index, less, less);
        }
    }
}

impl Memory {
    /// Waits until no other thread makes a context on the device.
    pub(crate) fn make_context(&self, local: LocalDevice) -> Turn<'_> {
        let making = self.contexts.making.get(usize::from(local.number()));
        Turn {
            memory: self,
            local,
            _turn: making.and_then(|making| making.try_lock_for(TURN)),
        }
    }

    /// Keeps the charge of shared memory that this process has freed, until the daemon finds that no other
    /// process and no descriptor holds it, or charges what they hold as overhead.
    #[cold]
    #[inline(never)]
    pub(super) fn keep_shared(&self, local: LocalDevice, index: usize, bytes: u64) {
        let Some(device) = self.usage().devices.get(index).filter(|_| bytes != 0) else {
            return;
        };
        device.shared_freed.fetch_add(bytes, Release);
        let mut all = self.contexts.charged.lock();
        let _unsettled = Unsettled::on(self.usage(), index);
        let mut freed = Charged {
            context: SHARED,
            local,
            index,
            bytes,
            estimated: bytes,
            is_asked: true,
        };
        all.extract_if(.., |charged| charged.is_shared() && charged.index == index)
            .for_each(|before| freed.add(&before));
        all.push(freed);
        self.show_context(index, bytes, bytes);
        self.contexts.doubt_all(&all);
        self.ask_size(index, None);
        drop(all);
        self.session.ring();
    }

    /// Uncharges a context that has been destroyed. Others on its device are measured anew, since the sizes
    /// of several that were measured together are not known one by one.
    pub(crate) fn context_uncharged(&self, context: u32) {
        let mut all = self.contexts.charged.lock();
        let Some(at) = all.iter().position(|charged| charged.context == context) else {
            return;
        };
        let gone = all.remove(at);
        let _unsettled = Unsettled::on(self.usage(), gone.index);
        let less = [gone.bytes, gone.estimated].map(u64::wrapping_neg);
        self.show_context(gone.index, less[0], less[1]);
        self.uncharge(gone.index, gone.bytes);
        let others = all
            .iter_mut()
            .filter(|other| other.index == gone.index && other.bytes != 0);
        others.for_each(|other| other.is_asked = true);
        self.contexts.doubt_all(&all);
        self.ask_size(gone.index, None);
    }

    /// Moves the charges to the current slots of their devices.
    pub(super) fn renumber_contexts(&self) {
        for charged in self.contexts.charged.lock().iter_mut() {
            let index = self.session.devices.index(charged.local);
            if index != charged.index {
                let less = [charged.bytes, charged.estimated].map(u64::wrapping_neg);
                self.show_context(charged.index, less[0], less[1]);
                self.page_counter
                    .transfer_bytes(charged.index, index, charged.bytes);
                self.show_context(index, charged.bytes, charged.estimated);
                charged.index = index;
                self.ask_size(index, None);
            }
        }
    }

    /// Corrects the charges of contexts that the daemon has measured. Returns whether none waits for that.
    pub(crate) fn settle_contexts(&self) -> bool {
        let mut all = self.contexts.charged.lock();
        let mut left: Vec<&mut Charged> = all.iter_mut().filter(|charged| charged.is_asked).collect();
        let of = |charged: &&mut Charged| Some((charged.index, self.answered(charged.index)?));
        while let Some((index, missing)) = left.iter().find_map(of) {
            let more = u64::try_from(missing).unwrap_or(0);
            self.page_counter.charge(index, more);
            let _unsettled = Unsettled::on(self.usage(), index);
            let mut measured: Vec<_> = left.extract_if(.., |charged| charged.index == index).collect();
            let less = spread(missing, &mut measured);
            self.contexts.lowered.fetch_add(less, Relaxed);
            let estimated: u64 = measured.iter_mut().map(|charged| charged.measured()).sum();
            self.show_context(index, more.wrapping_sub(less), estimated.wrapping_neg());
            self.uncharge(index, less);
            // The daemon compares what is charged with the limits of groups.
            self.session.ring();
        }
        let is_done = left.is_empty();
        if is_done {
            self.contexts.doubt.store(0, Relaxed);
        }
        is_done
    }

    /// Waits until contexts are measured, if limits leave less on the device than `bytes` and what is in
    /// doubt: the estimate must not decide.
    #[inline]
    pub(super) fn know_contexts(&self, index: usize, bytes: impl FnOnce() -> u64) {
        let doubt = self.contexts.doubt.load(Relaxed);
        if doubt == 0 && !self.has_freed(index) {
            return;
        }
        let bytes = bytes();
        let lacks = |more| {
            Room::on(self, index).free < bytes.saturating_add(more)
                && self.contexts.wait_again.load(Relaxed) <= sys::now()
        };
        if doubt > 0 && lacks(doubt) {
            self.await_sizes();
        }
        // What was found then may be gone by now.
        if self.has_freed(index) && lacks(0) {
            self.ask_freed(index);
            self.await_sizes();
        }
    }

    /// Returns whether the daemon may charge for memory that this process has shared and freed.
    #[inline]
    fn has_freed(&self, index: usize) -> bool {
        self.session.device(index).is_some_and(|(usage, control)| {
            usage.shared_freed.load(Relaxed) != 0 && control.memory_overhead.load(Relaxed) != 0
        })
    }

    /// Requests a measurement of shared memory that was freed, since nobody may hold it any more.
    fn ask_freed(&self, index: usize) {
        let mut all = self.contexts.charged.lock();
        let mut freed = all
            .iter_mut()
            .filter(|freed| freed.is_shared() && freed.index == index);
        if let Some(freed) = freed.find(|freed| !freed.is_asked) {
            freed.is_asked = true;
            self.contexts.doubt(&all);
            self.ask_size(index, None);
        }
    }

    /// Waits until contexts are measured, at most [`PATIENCE`], and freed memory that was shared.
    #[cold]
    #[inline(never)]
    fn await_sizes(&self) {
        let begun = Instant::now();
        if self.settle_contexts() || helper::is_caller() {
            return;
        }
        let asked = self.ask_sizes_again();
        let Some(control) = asked.and_then(|index| self.control().devices.get(index)) else {
            return;
        };
        loop {
            let seen = control.context_answer.load(Acquire);
            if self.settle_contexts() {
                return;
            }
            let patience = self.contexts.patience();
            let left = patience.saturating_sub(begun.elapsed());
            let may_wait = !exit::is_exiting() && self.session.connection.lock().is_some();
            if !may_wait {
                return;
            }
            if left.is_zero() {
                let pause = u64::try_from((patience * IN_VAIN).as_nanos()).unwrap_or(u64::MAX);
                let again = sys::now().saturating_add(pause);
                return self.contexts.wait_again.store(again, Relaxed);
            }
            self.session.ring();
            sys::futex_wait(&control.context_answer, seen, left.min(RECHECK));
        }
    }

    /// Repeats the requests for measurements that have no answer, unless that is recent: an answer to an
    /// earlier one is void. Returns the device of the last.
    fn ask_sizes_again(&self) -> Option<usize> {
        let all = self.contexts.charged.lock();
        let unknown = |charged: &&Charged| charged.is_asked && self.answered(charged.index).is_none();
        let mut unknown: Vec<usize> = all.iter().filter(unknown).map(|charged| charged.index).collect();
        unknown.dedup();
        let (now, asked) = (sys::now(), &self.contexts.asked);
        if now.saturating_sub(asked.load(Relaxed)) >= ASK_AGAIN {
            asked.store(now, Relaxed);
            for device in unknown
                .iter()
                .filter_map(|index| self.usage().devices.get(*index))
            {
                device.context_request.fetch_add(1, Release);
            }
        }
        unknown.pop()
    }

    /// Returns the bytes, perhaps negative, that the daemon has found to be missing in the charge of contexts
    /// on a device; `None`: the last request has no answer.
    fn answered(&self, index: usize) -> Option<i64> {
        let (usage, control) = self.session.device(index)?;
        let answer = control.context_answer.load(Acquire);
        let missing = control.context_missing.load(Relaxed).cast_signed();
        let is_answer = answer == usage.context_request.load(Relaxed) && missing.unsigned_abs() < ABSURD;
        is_answer.then_some(missing)
    }

    /// Returns the bytes that contexts of these kinds are expected to take together.
    fn estimate(&self, index: usize, kinds: &[ContextKind]) -> u64 {
        let of_kind = |kind: &ContextKind| {
            let device = self.control().devices.get(index)?;
            Some(device.context_estimate.get(*kind as usize)?.load(Relaxed))
        };
        let sum = kinds.iter().filter_map(of_kind).fold(0, u64::saturating_add);
        sum.min(ABSURD)
    }

    /// Charges `bytes` for a context, or what limits leave if that is less, since they are an estimate.
    fn charge_at_most(&self, index: usize, bytes: u64) -> Result<(Charge<'_>, Sums), CUerror> {
        self.know_contexts(index, || bytes);
        let free = || Room::on(self, index).free;
        if free() < bytes {
            self.release();
        }
        let mut most = bytes.min(free());
        for _ in 0..MOST_TRIES {
            if most == 0 && bytes != 0 {
                break;
            }
            if let Ok(sums) = self.charge(index, most) {
                return Ok((self.charged(index, most), sums));
            }
            most = free().min(most.saturating_sub(1));
        }
        self.try_charge(index, bytes.min(1))
    }

    /// Adds to the bytes charged for contexts, and to the estimated part of them.
    fn show_context(&self, index: usize, bytes: u64, estimated: u64) {
        if let Some(device) = self.usage().devices.get(index) {
            device.context_charged.fetch_add(bytes, Relaxed);
            device.context_estimated.fetch_add(estimated, Relaxed);
        }
    }

    /// Requests a measurement of the contexts on a device whose charge is estimated: one of that kind, or
    /// `None` for several.
    fn ask_size(&self, index: usize, kind: Option<ContextKind>) {
        if let Some(device) = self.usage().devices.get(index) {
            self.contexts.asked.store(sys::now(), Relaxed);
            device.context_kind.store(ContextKind::asked(kind), Relaxed);
            device.context_request.fetch_add(1, Release);
        }
    }
}
