//! Devices that nobody knew when the daemon began: instances of GPUs are made at any time.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use gcgroup_abi::OTHER_DEVICE;

use super::{PERIOD, Source};
use crate::tree::{ProcessId, Tree};

/// Looks for new devices, when it is asked to and when a process has a context on one that nobody knows.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    /// How often it had been asked for when it was last looked.
    asked: u64,
    /// When it was last looked, and who had contexts where nobody knows then, and how many.
    looked: Option<Instant>,
    elsewhere: HashMap<ProcessId, u32>,
}

impl Newcomers {
    pub(super) fn look(&mut self, tree: &Tree, source: &mut impl Source) {
        let asked = tree.nr_devices_asked();
        if asked == self.asked && self.looked.is_some_and(|when| when.elapsed() < PERIOD) {
            return;
        }
        let elsewhere: HashMap<ProcessId, u32> = tree
            .ledgers()
            .into_iter()
            .map(|(id, _, blocks)| (id, blocks.usage().devices[OTHER_DEVICE].nr_contexts.load(Relaxed)))
            .filter(|(_, nr_contexts)| *nr_contexts > 0)
            .collect();
        // One that is still not known then is no device of ours.
        let is_new = |(id, nr_contexts): (&ProcessId, &u32)| self.elsewhere.get(id) != Some(nr_contexts);
        if asked != self.asked || elsewhere.iter().any(is_new) {
            tree.add_devices(source.new_devices());
            self.looked = Some(Instant::now());
            self.asked = asked;
        }
        self.elsewhere = elsewhere;
    }
}
