//! The driver has no memory left: the daemon is asked to have less important processes give way, and the driver is asked
//! once more.
//!
//! For whatever thread allocates, of any process that a daemon governs. It waits, but not for long, and holds nothing.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use crate::compute::wait::RECHECK;
use crate::cuda::{CUerror, CUresult};
use crate::process::{self, Process};
use crate::{driver, sys, thread};

/// How long an allocation may take for it, and how many times others are asked: somebody else may be given what they
/// have made room with.
const PATIENCE: Duration = Duration::from_secs(10);
const ROUNDS: u32 = 3;
/// What the driver makes device memory of.
const PAGE: u64 = 2 << 20;

impl Process {
    /// Calls the driver for that many bytes, again if it was out of memory and others have made room since.
    #[inline]
    pub(crate) fn pressing<T>(
        &self,
        index: usize,
        bytes: u64,
        mut call: impl FnMut() -> Result<T, CUerror>,
    ) -> Result<T, CUerror> {
        match call() {
            Ok(made) => Ok(made),
            Err(CUerror::OUT_OF_MEMORY) => self.press(index, bytes, &mut call, Err(CUerror::OUT_OF_MEMORY)),
            Err(error) => Err(error),
        }
    }

    #[cold]
    #[inline(never)]
    fn press<T>(
        &self,
        index: usize,
        bytes: u64,
        call: &mut dyn FnMut() -> Result<T, CUerror>,
        first: Result<T, CUerror>,
    ) -> Result<T, CUerror> {
        let until = Instant::now() + PATIENCE;
        for _ in 0..ROUNDS {
            if self.make_others_give_way(index, bytes, until).is_none() {
                break;
            }
            let again = call();
            if !matches!(again, Err(CUerror::OUT_OF_MEMORY)) {
                return again;
            }
        }
        first
    }

    /// `None` if nobody does.
    #[cold]
    fn make_others_give_way(&self, index: usize, bytes: u64, until: Instant) -> Option<()> {
        let (usage, control) = (
            self.usage().devices.get(index)?,
            self.control().devices.get(index)?,
        );
        let total = control.memory_total.load(Relaxed);
        if bytes > total || self.connection.lock().is_none() {
            return None;
        }
        let is_behind = || control.pressure_answer.load(Acquire) != usage.pressure_request.load(Relaxed);
        let silent = &self.memory.is_pressed_in_vain;
        if silent.load(Relaxed) && is_behind() {
            return None;
        }
        let wanted = self.missing(index, bytes);
        usage.pressure_wanted.fetch_add(wanted, Relaxed);
        usage.pressure_size.fetch_add(bytes, Relaxed);
        let number = usage.pressure_request.fetch_add(1, Release).wrapping_add(1);
        self.ring();
        // Not behind, that is: both count up and wrap.
        let has_come = |answer: u32| answer.wrapping_sub(number) < 1 << 31;
        let is_answered = loop {
            let answer = control.pressure_answer.load(Acquire);
            if has_come(answer) {
                break true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || process::is_exiting() || self.connection.lock().is_none() {
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

    /// What an allocation of the calling thread's lacks: all of it, if there would be room for it but in pieces.
    fn missing(&self, index: usize, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(PAGE);
        let (mut free, mut total) = (0, 0);
        let is_here = self.slots.bind(self).is_some_and(|bound| bound.index() == index);
        let known: CUresult = driver::cuMemGetInfo_v2(&mut free, &mut total);
        match (is_here, known) {
            (true, Ok(())) if (free as u64) < bytes => bytes - free as u64,
            _ => bytes,
        }
    }
}
