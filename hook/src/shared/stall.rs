//! A thread that waits, counted on the process's stall clocks: `compute.pressure` and `memory.pressure`.

use gcgroup_abi::{Pressure, Stall, Usage};

use crate::sys;

/// Counts a thread as waiting while this lives. A thread that a signal handler takes away by a jump stays
/// counted.
#[derive(Debug)]
pub(crate) struct Stalled<'a>(Option<&'a Stall>);

impl<'a> Stalled<'a> {
    pub(crate) fn new(usage: &'a Usage, what: Pressure) -> Self {
        let stall = usage.stalls.get(what as usize);
        Self(stall.filter(|stall| stall.enter(sys::now())))
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        if let Some(stall) = self.0 {
            stall.leave(sys::now());
        }
    }
}
