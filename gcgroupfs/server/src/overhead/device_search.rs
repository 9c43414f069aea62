//! Devices that appear after the daemon's start, such as new MIG instances.

use std::collections::HashMap;
use std::time::Instant;

use gcgroup_abi::OTHER_DEVICE;

use super::{PERIOD, Source};
use gcgroupfs_model::tree::{ProcessId, Tree};

/// Searches for new devices when asked, and when a process has a context on an unknown device.
#[derive(Debug, Default)]
pub(super) struct DeviceSearch {
    /// Number of requests at the time of the last search.
    asked: u64,
    /// Time of the last search, and the number of contexts that each process had on unknown devices then.
    looked: Option<Instant>,
    elsewhere: HashMap<ProcessId, u32>,
}

impl DeviceSearch {
    pub(super) fn run(&mut self, tree: &Tree, source: &mut impl Source) {
        let asked = tree.nr_devices_asked();
        if asked == self.asked && self.looked.is_some_and(|when| when.elapsed() < PERIOD) {
            return;
        }
        let elsewhere: HashMap<ProcessId, u32> = tree
            .ledgers()
            .into_iter()
            .filter_map(|(id, _, blocks)| Some((id, blocks.usage().device(OTHER_DEVICE)?.nr_contexts())))
            .filter(|(_, nr_contexts)| *nr_contexts > 0)
            .collect();
        // A device that is still unknown after a search is not one of the daemon's.
        let is_new = |(id, nr_contexts): (&ProcessId, &u32)| self.elsewhere.get(id) != Some(nr_contexts);
        if asked != self.asked || elsewhere.iter().any(is_new) {
            tree.add_devices(source.new_devices());
            self.looked = Some(Instant::now());
            self.asked = asked;
        }
        self.elsewhere = elsewhere;
    }
}
