//! What is charged for an allocation before it is made.

use super::levels::{Sums, Unsettled};
use crate::cuda::CUerror;
use crate::process::Process;

/// Bytes that are charged for an allocation that the driver has not yet made. Given back when dropped. What is charged with
/// them is not part of it: what can be dropped lies in memory.
#[derive(Debug)]
pub(crate) struct Charge<'a> {
    pub(super) process: &'a Process,
    pub(super) index: usize,
    pub(super) bytes: u64,
}

impl Charge<'_> {
    /// The allocation was made: the charge is now the ledger's.
    #[inline(always)]
    pub(super) fn keep(self, sums: Sums) {
        let (process, index) = (self.process, self.index);
        std::mem::forget(self);
        let (usage, control) = (process.usage(), process.control());
        process.memory.levels.raise_peaks(usage, control, index, sums);
    }

    /// What the allocation turned out to take; what is charged with it.
    #[inline]
    pub(super) fn fit(&mut self, sums: Sums, bytes: u64) -> Result<Sums, CUerror> {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => self.grow(bytes, more)?,
            None => return Ok(self.lessen(sums, bytes)),
        }
        Ok(sums)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: u64, more: u64) -> Result<(), CUerror> {
        let (charge, sums) = self.process.try_charge(self.index, more)?;
        charge.keep(sums);
        self.bytes = bytes;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn lessen(&mut self, sums: Sums, bytes: u64) -> Sums {
        let usage = self.process.usage();
        // Before anything is uncharged.
        let _unsettled = Unsettled::on(usage, self.index);
        let excess = self.bytes - bytes;
        self.process.memory.levels.uncharge(usage, self.index, excess);
        self.bytes = bytes;
        sums.less(excess)
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.process
            .memory
            .levels
            .uncharge(self.process.usage(), self.index, self.bytes);
    }
}
