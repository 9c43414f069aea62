//! Peaks: the most that was charged since the last reset.

use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

use gcgroup_abi::{Usage, UsageDevice};

use super::{PageCounter, Sums};

impl PageCounter {
    /// Raises the peaks to what is charged now.
    pub(crate) fn raise_to_current(&self, index: usize) {
        let sums = Sums {
            in_device: self.session.usage().memory_current(index),
            in_process: self.sum(),
        };
        self.raise_peaks(index, sums);
    }

    /// Raises the peaks to those sums.
    #[inline]
    pub(crate) fn raise_peaks(&self, index: usize, sums: Sums) {
        let (usage, control) = (self.session.usage(), self.session.control());
        if let Some((used, set)) = self.session.device(index) {
            if used.peak_generation.load(Acquire) != set.peak_generation.load(Relaxed) {
                self.begin_device_peak(used, &set.peak_generation);
            }
            raise(&used.memory_peak, sums.in_device);
        }
        if usage.peak_generation.load(Acquire) != control.peak_generation.load(Relaxed) {
            self.begin_peak(usage, &control.peak_generation);
        }
        raise(&usage.memory_peak, sums.in_process);
    }

    /// Restarts a device's peak. Under the lock, so that no thread that has seen the reset stores a peak that
    /// is then overwritten.
    #[cold]
    #[inline(never)]
    fn begin_device_peak(&self, device: &UsageDevice, reset: &AtomicU32) {
        let _begin = self.peak.lock();
        let reset = reset.load(Relaxed);
        if device.peak_generation.load(Relaxed) != reset {
            let current = device.memory_current.load(SeqCst);
            device.memory_peak.store(current, Relaxed);
            device.peak_generation.store(reset, Release);
        }
    }

    /// Restarts the process's peak, as [`begin_device_peak`](Self::begin_device_peak) does a device's.
    #[cold]
    #[inline(never)]
    fn begin_peak(&self, usage: &Usage, reset: &AtomicU32) {
        let _begin = self.peak.lock();
        let reset = reset.load(Relaxed);
        if usage.peak_generation.load(Relaxed) != reset {
            usage.memory_peak.store(self.sum(), Relaxed);
            usage.peak_generation.store(reset, Release);
        }
    }
}

#[inline]
fn raise(peak: &AtomicU64, sum: u64) {
    if peak.load(Relaxed) < sum {
        peak.fetch_max(sum, Relaxed);
    }
}
