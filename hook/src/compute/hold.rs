//! A gate of the process's own: closed while something is done to a device's memory that no submission may see.
//!
//! While any device is held, every slot's gate leads to the cold path, so the path of a submission stays what it is.
//! Calls that use memory and are not submissions take a `Touch`.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};

use gcgroup_abi::MAX_DEVICES;

use crate::process::{self, Process};
use crate::{interpose, sys};

use super::gate::RECHECK;

#[derive(Debug)]
struct Hold {
    /// How many hold the device.
    word: AtomicU32,
    /// Calls under way that use memory.
    touching: AtomicU32,
}

/// By device.
#[derive(Debug)]
pub(crate) struct Holds([Hold; MAX_DEVICES]);

impl Holds {
    pub(crate) const fn new() -> Self {
        Self(
            [const {
                Hold {
                    word: AtomicU32::new(0),
                    touching: AtomicU32::new(0),
                }
            }; MAX_DEVICES],
        )
    }

    /// The word to wait on, if the device is held.
    pub(crate) fn word(&self, index: usize) -> Option<&AtomicU32> {
        let word = &self.0.get(index)?.word;
        (word.load(SeqCst) != 0).then_some(word)
    }

    /// Whether any is.
    pub(super) fn is_any(&self) -> bool {
        (0..MAX_DEVICES).any(|index| self.word(index).is_some())
    }

    /// Waits while the device is held.
    pub(super) fn wait(&self, index: usize) {
        let held = || self.0.get(index).map_or(0, |hold| hold.word.load(SeqCst));
        while let (Some(word), holders @ 1..) = (self.word(index), held())
            && !process::is_exiting()
        {
            interpose::outside(|| sys::futex_wait(word, holders, RECHECK));
        }
    }

    /// Whether a call that uses memory is under way. Exact while the device is held.
    fn is_touched(&self, index: usize) -> bool {
        self.0
            .get(index)
            .is_some_and(|hold| hold.touching.load(SeqCst) != 0)
    }
}

impl Process {
    /// Has threads that submit to the device wait from now on. Those inside a submission are to be waited for.
    pub(crate) fn hold(&self, index: usize) {
        if let Some(hold) = self.holds.0.get(index) {
            hold.word.fetch_add(1, SeqCst);
            self.slots.watch(self, true);
            sys::barrier();
        }
    }

    /// Lets them go on. The helper has the slots look at their gates again when it next drains.
    pub(crate) fn release(&self, index: usize) {
        if let Some(hold) = self.holds.0.get(index) {
            hold.word.fetch_sub(1, SeqCst);
            sys::futex_wake(&hold.word);
        }
    }

    /// Whether nobody uses the memory of a device that is held, but for what is queued there.
    pub(crate) fn is_untouched(&self, index: usize) -> bool {
        !self.holds.is_touched(index)
    }

    /// Waits until the device is not held, and keeps it from being so until dropped. Not for submissions, which the
    /// gate stops.
    pub(crate) fn touch(&self, index: usize) -> Option<Touch<'_>> {
        let count = &self.holds.0.get(index)?.touching;
        loop {
            count.fetch_add(1, SeqCst);
            fence(SeqCst);
            if self.holds.word(index).is_none() || process::is_exiting() {
                return Some(Touch(count));
            }
            count.fetch_sub(1, SeqCst);
            self.holds.wait(index);
        }
    }
}

/// A call that uses memory.
#[derive(Debug)]
pub(crate) struct Touch<'a>(&'a AtomicU32);

impl Drop for Touch<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
