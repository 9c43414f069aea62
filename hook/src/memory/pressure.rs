//! Allocation while the device is out of memory: the daemon is asked to have processes of lower priority make
//! room, and for what cannot be moved those of equal priority too, and the driver is called again.
//!
//! For any allocating thread of a governed process. It waits for at most 10 s and holds no lock.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::Pressure;

use super::Memory;
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::{self, exit, thread};
use crate::shared::RECHECK;
use crate::shared::stall::Stalled;
use crate::sys;

/// Longest delay of an allocation.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often an allocation requests room: other processes may take what was made or freed.
#[derive(Debug, Clone, Copy)]
struct Rounds {
    granted: u32,
    denied: u32,
}

/// For what cannot be moved.
const FIXED: Rounds = Rounds {
    granted: u32::MAX,
    denied: 3,
};
/// For what can be made on the host instead.
const MOVABLE: Rounds = Rounds {
    granted: 3,
    denied: 1,
};

/// Size of a page of device memory, bytes.
const PAGE: u64 = 2 << 20;

impl Memory {
    /// Calls the driver for `bytes` that cannot be moved, and again when it was out of memory and others have
    /// made room.
    #[inline]
    pub(crate) fn pressing<T>(
        &self,
        index: usize,
        bytes: u64,
        mut call: impl FnMut() -> Result<T, CUerror>,
    ) -> Result<T, CUerror> {
        match call() {
            Err(CUerror::OUT_OF_MEMORY) => self.press_for_fixed(index, bytes, &mut call),
            made => made,
        }
    }

    #[cold]
    #[inline(never)]
    fn press_for_fixed<T>(
        &self,
        index: usize,
        bytes: u64,
        call: &mut dyn FnMut() -> Result<T, CUerror>,
    ) -> Result<T, CUerror> {
        let asking = &self.usage().nr_asking_fixed;
        asking.fetch_add(1, Relaxed);
        let made = self.press(index, bytes, call, FIXED);
        asking.fetch_sub(1, Relaxed);
        made
    }

    /// Calls the driver for `bytes` of a movable allocation, as [`pressing`](Self::pressing).
    pub(crate) fn pressing_movable<T>(
        &self,
        index: usize,
        bytes: u64,
        mut call: impl FnMut() -> Result<T, CUerror>,
    ) -> Result<T, CUerror> {
        match call() {
            Err(CUerror::OUT_OF_MEMORY) => self.press(index, bytes, &mut call, MOVABLE),
            made => made,
        }
    }

    #[cold]
    #[inline(never)]
    fn press<T>(
        &self,
        index: usize,
        bytes: u64,
        call: &mut dyn FnMut() -> Result<T, CUerror>,
        mut left: Rounds,
    ) -> Result<T, CUerror> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.make_others_give_way(index, bytes, until) {
                Some(()) => left.granted -= 1,
                None => left.denied -= 1,
            }
            // After a denial too: memory may have been freed meanwhile.
            let again = call();
            let is_over = left.granted == 0 || left.denied == 0;
            if is_over || !matches!(again, Err(CUerror::OUT_OF_MEMORY)) {
                return again;
            }
        }
    }

    /// Requests room and waits for the answer; `None` if no process can make room or no answer came.
    #[cold]
    fn make_others_give_way(&self, index: usize, bytes: u64, until: Instant) -> Option<()> {
        let (usage, control) = self.session.device(index)?;
        let total = control.memory_total.load(Relaxed);
        if bytes > total || self.session.connection.lock().is_none() {
            return None;
        }
        let is_behind = || control.pressure_answer.load(Acquire) != usage.pressure_request.load(Relaxed);
        let silent = &self.is_pressed_in_vain;
        if silent.load(Relaxed) && is_behind() {
            return None;
        }
        let _stalled = Stalled::new(self.usage(), Pressure::Memory);
        let wanted = self.missing(index, bytes);
        usage.pressure_wanted.fetch_add(wanted, Relaxed);
        usage.pressure_size.fetch_add(bytes, Relaxed);
        let number = usage.pressure_request.fetch_add(1, Release).wrapping_add(1);
        self.session.ring();
        // Wrapping comparison: the answer has reached the request.
        let has_come = |answer: u32| answer.wrapping_sub(number) < 1 << 31;
        let is_answered = loop {
            let answer = control.pressure_answer.load(Acquire);
            if has_come(answer) {
                break true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || exit::is_exiting() || self.session.connection.lock().is_none() {
                break false;
            }
            thread::outside(|| sys::futex_wait(&control.pressure_answer, answer, left.min(RECHECK)));
        };
        silent.store(!is_answered, Relaxed);
        usage.pressure_wanted.fetch_sub(wanted, Relaxed);
        usage.pressure_size.fetch_sub(bytes, Relaxed);
        let refused = control.pressure_refused.load(Relaxed);
        (is_answered && refused != number).then_some(())
    }

    /// Returns how many bytes the device lacks for an allocation of the calling thread; all of them if there
    /// is enough free memory (it is fragmented then) or that is unknown.
    fn missing(&self, index: usize, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(PAGE);
        let (mut free, mut total) = (0, 0);
        let is_here = self.program.bind().is_some_and(|bound| bound.index() == index);
        let known: CUresult = driver::cuMemGetInfo_v2(&mut free, &mut total);
        match (is_here, known) {
            (true, Ok(())) if (free as u64) < bytes => bytes - free as u64,
            _ => bytes,
        }
    }
}
