//! `cuMemAlloc` and its variants, and `cuMemFree`, which frees memory of any kind by its address.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::Kind;

use super::ledger::Entry;
use super::{Address, Out};
use crate::cuda::{CUdeviceptr, CUresult};
use crate::interpose::Next;
use crate::{driver, process, swap};

/// `cuMemAlloc`, `cuMemAllocManaged`: charged before the driver is called, so that a refusal costs nothing.
pub(crate) fn alloc<A: Address>(
    kind: Kind,
    address: *mut A,
    bytes: impl Into<u64>,
    next: Next<'_>,
) -> CUresult {
    alloc_at(kind, A::place(address), bytes.into(), next)
}

#[inline(never)]
fn alloc_at(kind: Kind, address: Out, bytes: u64, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    let Some(place) = process.place() else {
        return next();
    };
    if kind == Kind::Linear
        && let Some(result) = address
            .wide()
            .and_then(|wide| swap::alloc(process, place, wide, bytes))
    {
        return result;
    }
    let (charge, sums) = process.try_charge(place.index, bytes)?;
    let made = process.pressing(place.index, bytes, next);
    made.inspect_err(|_| process.count_failure(place.index))?;
    if let Some(address) = address.written() {
        charge.keep(sums);
        let entry = Entry::new(kind, bytes, place.local, place.index, place.context);
        process.remember(&process.memory.blocks, address, entry);
    }
    Ok(())
}

/// The row alignment that the driver has used, bytes.
#[derive(Debug, Default)]
pub(crate) struct Pitch(AtomicU64);

impl Pitch {
    /// Returns the expected pitch in bytes; the width itself if none has been observed.
    #[inline]
    fn foretold(&self, width: u64) -> u64 {
        let step = self.0.load(Relaxed).max(1);
        // A power of two.
        width.saturating_add(step - 1) & !(step - 1)
    }

    /// Learns from a pitch that the driver chose.
    #[inline]
    fn learn(&self, width: u64, pitch: u64) {
        if pitch != 0 && pitch != self.foretold(width) {
            let step = 1 << pitch.trailing_zeros().min(MOST_STEP);
            let known = self.0.load(Relaxed);
            self.0
                .store(if known == 0 { step } else { known.min(step) }, Relaxed);
        }
    }
}

/// Largest exponent of the assumed row alignment: 4096 bytes.
const MOST_STEP: u32 = 12;

/// `cuMemAllocPitch`: the driver chooses the pitch. The expected size is charged first, or the requested
/// bytes if that does not fit; the difference is settled after the call. If the actual size exceeds a limit,
/// the memory is freed again: the only refusal that reaches the driver.
pub(crate) fn alloc_pitched<A: Address>(
    address: *mut A,
    pitch: impl Into<Out>,
    width: impl Into<u64>,
    height: impl Into<u64>,
    next: Next<'_>,
) -> CUresult {
    alloc_rows(A::place(address), pitch.into(), width.into(), height.into(), next)
}

#[inline(never)]
fn alloc_rows(address: Out, pitch: Out, width: u64, height: u64, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    let Some(place) = process.place() else {
        return next();
    };
    let wanted = width.saturating_mul(height);
    let steps = &process.memory.pitch;
    let likely = steps.foretold(width).saturating_mul(height);
    let (mut charge, sums) = process.try_charge_likely(place.index, likely, wanted)?;
    let made = process.pressing(place.index, wanted, next);
    made.inspect_err(|_| process.count_failure(place.index))?;
    let pitch = pitch.written().unwrap_or(width);
    let Some(address) = address.written() else {
        return Ok(());
    };
    steps.learn(width, pitch);
    let bytes = pitch.max(width).saturating_mul(height);
    let sums = match charge.fit(sums, bytes) {
        Ok(sums) => sums,
        Err(refused) => {
            // If freeing failed, the memory would exist without a charge.
            driver::cuMemFree_v2(CUdeviceptr(address))?;
            return Err(refused);
        }
    };
    charge.keep(sums);
    let entry = Entry::new(Kind::Linear, bytes, place.local, place.index, place.context);
    process.remember(&process.memory.blocks, address, entry);
    Ok(())
}

/// `cuMemFree`: unknown addresses are left to the driver.
pub(crate) fn free(address: impl Address, next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    if let Some(result) = swap::free(process, address.key()) {
        return result;
    }
    let freed = process.free(&process.memory.blocks, address.key(), next);
    if freed.is_pools && freed.result.is_ok() {
        process.memory.reserves.settle_all(process);
    }
    freed.result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use gcgroup_abi::NO_LIMIT;

    #[test]
    fn pitch_is_predicted_from_the_smallest_observed_step() {
        let pitch = Pitch::default();
        assert_eq!(pitch.foretold(100), 100, "nothing observed yet");
        pitch.learn(1000, 1024);
        assert_eq!(pitch.foretold(100), 1024);
        pitch.learn(100, 512);
        assert_eq!((pitch.foretold(100), pitch.foretold(513)), (512, 1024));
        pitch.learn(600, 1024);
        assert_eq!(pitch.foretold(100), 512, "as expected");
        pitch.learn(100, 0);
        assert_eq!(pitch.foretold(0), 0);
        assert_eq!(pitch.foretold(u64::MAX), !511);
    }

    #[test]
    fn likely_size_is_charged_first_then_the_actual_size() {
        let process = Process::of_test(1000);
        let usage = process.usage();
        let current = || process.memory.levels.sum(usage);
        let (mut charge, sums) = process.try_charge_likely(0, 600, 500).unwrap();
        assert_eq!(current(), 600);
        let sums = charge.fit(sums, 550).unwrap();
        assert_eq!(current(), 550);
        charge.keep(sums);
        assert_eq!(
            usage.memory_peak.load(Relaxed),
            550,
            "the actual size, not the likely one"
        );

        let (charge, _) = process.try_charge_likely(0, 451, 450).unwrap();
        assert_eq!(current(), 1000, "no room for the likely size");
        drop(charge);
        assert_eq!(current(), 550);
        let (mut charge, sums) = process.try_charge_likely(0, 0, 400).unwrap();
        assert!(charge.fit(sums, 451).is_err());
        let sums = charge.fit(sums, 450).unwrap();
        assert_eq!(current(), 1000);
        charge.keep(sums);
        assert_eq!(usage.memory_peak.load(Relaxed), 1000);

        let (charge, _) = Process::of_test(NO_LIMIT)
            .try_charge_likely(0, u64::MAX, 7)
            .unwrap();
        assert_eq!(charge.bytes, 7, "sizes beyond any device are not used");
    }
}
