//! What is charged for an allocation before it is made.

use super::levels::{Sums, Unsettled};
use crate::cuda::CUerror;
use crate::process::Process;

/// Bytes that are charged for an allocation that the driver has not yet made. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Charge<'a> {
    pub(super) process: &'a Process,
    pub(super) index: usize,
    pub(super) bytes: u64,
    pub(super) sums: Sums,
}

impl Charge<'_> {
    /// The allocation was made: the charge is now the ledger's.
    #[inline]
    pub(super) fn keep(self) {
        let (usage, control) = (self.process.usage(), self.process.control());
        self.process
            .memory
            .levels
            .raise_peaks(usage, control, self.index, self.sums);
        std::mem::forget(self);
    }

    /// What the allocation turned out to take.
    #[inline]
    pub(super) fn fit(&mut self, bytes: u64) -> Result<(), CUerror> {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => self.grow(bytes, more)?,
            None => self.lessen(bytes),
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: u64, more: u64) -> Result<(), CUerror> {
        self.process.try_charge(self.index, more)?.keep();
        self.bytes = bytes;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn lessen(&mut self, bytes: u64) {
        let usage = self.process.usage();
        // Before anything is uncharged.
        let _unsettled = Unsettled::on(usage, self.index);
        let excess = self.bytes - bytes;
        self.process.memory.levels.uncharge(usage, self.index, excess);
        self.sums.lessen(excess);
        self.bytes = bytes;
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
