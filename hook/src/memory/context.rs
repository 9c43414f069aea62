//! Charges of contexts. Nothing tells beforehand what a context takes, so its size is estimated and charged
//! before the driver is called, and measured by the daemon before the program has the context.
//!
//! Only where a limit is in force; otherwise contexts are measured later, with modules (`accounting.md`).

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::{CONTEXT_CHANGED, CONTEXT_UNKNOWN, ContextKind, MAX_DEVICES, OTHER_DEVICE, UsageDevice};
use parking_lot::{Mutex, MutexGuard};

use super::charge::Charge;
use super::grant::reaches;
use super::page_counter::{Sums, Unsettled, limit_on};
use super::{ABSURD, Memory};
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::exit;
use crate::driver::interpose::Next;
use crate::shared::device::LocalDevice;
use crate::{helper, sys};

/// Longest wait for a measurement, for a daemon that is stopped or being restarted; also for another thread
/// that makes a context on the device.
const PATIENCE: Duration = if cfg!(test) {
    Duration::from_millis(500)
} else {
    Duration::from_secs(5)
};
/// Room asked for a context of unknown size on a full device, bytes.
const LIKELY: u64 = 256 << 20;
/// How often a waiting thread rings again, since there may be a new daemon.
const RECHECK: Duration = Duration::from_millis(20);
/// Most measurements of one context, if other threads allocate on the device during each.
const MOST_TRIES: usize = 20;

/// Charge of a context.
#[derive(Debug, Clone, Copy)]
struct Charged {
    /// Number of the context.
    context: u32,
    local: LocalDevice,
    /// The device slot in which it is charged.
    index: usize,
    bytes: u64,
    is_estimated: bool,
}

#[derive(Debug)]
pub(crate) struct Contexts {
    /// Held while a context is made on a device, so that a measurement is of that context alone.
    making: [Mutex<()>; MAX_DEVICES],
    charged: Mutex<Vec<Charged>>,
    /// Set while a request is unanswered: until an answer comes or a daemon connects, no thread waits.
    is_silent: AtomicBool,
}

impl Contexts {
    pub(crate) fn new() -> Self {
        Self {
            making: [const { Mutex::new(()) }; MAX_DEVICES],
            charged: Mutex::new(Vec::new()),
            is_silent: AtomicBool::new(false),
        }
    }

    /// Allows waits again after a daemon connected.
    pub(super) fn begin_again(&self) {
        self.is_silent.store(false, Relaxed);
    }
}

/// The right to make a context on a device. No thread waits for it longer than [`PATIENCE`], since its holder
/// may have been interrupted for good by one of the program's signal handlers.
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
    kind: Option<ContextKind>,
    bytes: u64,
    charge: Option<(Charge<'a>, Sums)>,
    /// `None`: no limit is in force.
    unsettled: Option<Unsettled<'a>>,
    turn: Turn<'a>,
}

impl<'a> Turn<'a> {
    /// Charges the estimate for a context of these kinds at once, if a limit is in force.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if a limit or a grant does not allow it, `CUDA_ERROR_SYSTEM_NOT_READY` if a
    /// rule forbids CUDA to the process.
    pub(crate) fn charge(self, kinds: &[ContextKind]) -> Result<NewContext<'a>, CUerror> {
        let memory = self.memory;
        if memory.session.is_barred() {
            return Err(CUerror::SYSTEM_NOT_READY);
        }
        let (usage, control) = (memory.usage(), memory.control());
        let index = memory.session.devices.index(self.local);
        let mut made = NewContext {
            index,
            kind: <[ContextKind; 1]>::try_from(kinds).ok().map(|[kind]| kind),
            bytes: 0,
            charge: None,
            unsettled: None,
            turn: self,
        };
        if limit_on(usage, control, index).is_none() {
            return Ok(made);
        }
        made.unsettled = Some(Unsettled::on(usage, index));
        let bytes = memory.estimate(index, kinds);
        if bytes > 0 {
            let charge = memory.try_charge(index, bytes);
            made.charge = Some(charge.inspect_err(|_| memory.tell_refused(index, made.kind))?);
            made.bytes = bytes;
            memory.show_context(index, bytes, bytes);
        }
        Ok(made)
    }
}

impl NewContext<'_> {
    /// Calls the driver to make the context, and again when the device was full and others have made room.
    pub(crate) fn make(&self, kinds: &[ContextKind], call: Next<'_>) -> CUresult {
        let memory = self.turn.memory;
        let Some(control) = memory
            .control()
            .devices
            .get(self.index)
            .filter(|_| !kinds.is_empty())
        else {
            return call();
        };
        let unknown = LIKELY.min(control.memory_total.load(Relaxed) / 4);
        let size = match memory.estimate(self.index, kinds) {
            0 => unknown,
            size => size,
        };
        memory.pressing(self.index, size, call)
    }

    /// Keeps the charge for the context with that number, and corrects it to what the daemon measures.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if a limit or a grant does not allow what the context takes beyond the
    /// estimate. The caller destroys the context and calls [`Memory::context_uncharged`].
    pub(crate) fn settle(mut self, context: u32) -> Result<(), CUerror> {
        if self.unsettled.is_none() {
            return Ok(());
        }
        let memory = self.turn.memory;
        if let Some((charge, sums)) = self.charge.take() {
            charge.keep(sums);
        }
        let mut charged = Charged {
            context,
            local: self.turn.local,
            index: self.index,
            bytes: self.bytes,
            is_estimated: true,
        };
        let measured = memory.measure(self.index, ContextKind::asked(self.kind));
        let settled = measured.map_or(Ok(()), |missing| {
            let settled = memory.correct(&mut charged, missing);
            charged.is_estimated = settled.is_err();
            settled
        });
        if !charged.is_estimated {
            memory.show_context(self.index, 0, self.bytes.wrapping_neg());
        }
        memory.contexts.charged.lock().push(charged);
        settled
    }
}

impl Drop for NewContext<'_> {
    fn drop(&mut self) {
        if self.charge.is_some() {
            let less = self.bytes.wrapping_neg();
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
            _turn: making.and_then(|making| making.try_lock_for(PATIENCE)),
        }
    }

    /// Uncharges a context that has been destroyed.
    pub(crate) fn context_uncharged(&self, context: u32) {
        let mut gone = Vec::new();
        self.contexts.charged.lock().retain(|charged| {
            let is_gone = charged.context == context;
            gone.extend(is_gone.then_some(*charged));
            !is_gone
        });
        for charged in gone {
            let _unsettled = Unsettled::on(self.usage(), charged.index);
            let estimated = if charged.is_estimated { charged.bytes } else { 0 };
            self.show_context(
                charged.index,
                charged.bytes.wrapping_neg(),
                estimated.wrapping_neg(),
            );
            self.uncharge(charged.index, charged.bytes);
        }
    }

    /// Moves the charges to the current slots of their devices.
    pub(super) fn renumber_contexts(&self) {
        for charged in self.contexts.charged.lock().iter_mut() {
            let index = self.session.devices.index(charged.local);
            if index != charged.index {
                let estimated = if charged.is_estimated { charged.bytes } else { 0 };
                let less = [charged.bytes, estimated].map(u64::wrapping_neg);
                self.show_context(charged.index, less[0], less[1]);
                self.page_counter.transfer_bytes(
                    self.usage(),
                    self.control(),
                    charged.index,
                    index,
                    charged.bytes,
                );
                self.show_context(index, charged.bytes, estimated);
                charged.index = index;
            }
        }
    }

    /// Returns the bytes that contexts of these kinds are expected to take together; 0 if unknown.
    fn estimate(&self, index: usize, kinds: &[ContextKind]) -> u64 {
        let Some(device) = self.control().devices.get(index) else {
            return 0;
        };
        let of_kind = |kind: &ContextKind| {
            let estimate = device.context_estimate.get(*kind as usize);
            estimate.map_or(0, |bytes| bytes.load(Relaxed))
        };
        let sum = kinds.iter().map(of_kind).fold(0, u64::saturating_add);
        if sum < ABSURD { sum } else { 0 }
    }

    /// Adds to the bytes charged for contexts, and to the estimated part of them.
    fn show_context(&self, index: usize, bytes: u64, estimated: u64) {
        if let Some(device) = self.usage().devices.get(index) {
            device.context_charged.fetch_add(bytes, Relaxed);
            device.context_estimated.fetch_add(estimated, Relaxed);
        }
    }

    /// Changes a charge by what was measured to be missing.
    fn correct(&self, charged: &mut Charged, missing: i64) -> Result<(), CUerror> {
        match u64::try_from(missing) {
            Ok(0) => {}
            Ok(missing) => {
                let (charge, sums) = self.try_charge(charged.index, missing)?;
                charge.keep(sums);
                self.show_context(charged.index, missing, 0);
                charged.bytes += missing;
            }
            Err(_) => {
                let excess = missing.unsigned_abs().min(charged.bytes);
                self.show_context(charged.index, excess.wrapping_neg(), 0);
                self.uncharge(charged.index, excess);
                charged.bytes -= excess;
            }
        }
        Ok(())
    }

    /// Tells the daemon that a context was refused for its estimate, which may be wrong.
    fn tell_refused(&self, index: usize, kind: Option<ContextKind>) {
        if let Some(device) = self.usage().devices.get(index) {
            put(device, ContextKind::refused(kind));
            self.session.ring();
        }
    }

    /// Has the daemon measure a context that was just made. Returns the bytes, perhaps negative, that are
    /// missing in the charge; `None`: not known.
    fn measure(&self, index: usize, word: u32) -> Option<i64> {
        let (usage, control) = (
            self.usage().devices.get(index)?,
            self.control().devices.get(index)?,
        );
        if self.control().measures_contexts.load(Relaxed) == 0 || index == OTHER_DEVICE {
            return None;
        }
        let silent = &self.contexts.is_silent;
        if reaches(
            control.context_answer.load(Acquire),
            usage.context_request.load(Relaxed),
        ) {
            silent.store(false, Relaxed);
        }
        let begun = Instant::now();
        for _ in 0..MOST_TRIES {
            let number = put(usage, word);
            loop {
                self.session.ring();
                let seen = control.context_answer.load(Acquire);
                if reaches(seen, number) {
                    break;
                }
                if silent.load(Relaxed) || exit::is_exiting() || helper::is_caller() {
                    return None;
                }
                if begun.elapsed() >= PATIENCE {
                    silent.store(true, Relaxed);
                    return None;
                }
                sys::futex_wait(&control.context_answer, seen, RECHECK);
                if reaches(control.context_answer.load(Acquire), number) {
                    break;
                }
            }
            match control.context_missing.load(Relaxed) {
                CONTEXT_CHANGED => {}
                CONTEXT_UNKNOWN => return None,
                missing => return Some(missing.cast_signed()),
            }
        }
        None
    }
}

/// Publishes a request; returns its number.
fn put(usage: &UsageDevice, word: u32) -> u32 {
    usage.context_kind.store(word, Relaxed);
    usage.context_request.fetch_add(1, Release).wrapping_add(1)
}
