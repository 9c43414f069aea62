//! Memory of other processes that the program has opened.

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::Memory;
use super::ledger::Entry;

/// Opened memory by address with the number of openings: the driver returns the same address for each.
#[derive(Debug, Default)]
pub(crate) struct Opened(Mutex<HashMap<u64, (Entry, u32)>>);

impl Opened {
    /// Counts an opening; returns the entry if it is the first.
    pub(crate) fn open(&self, address: u64, entry: impl FnOnce() -> Entry) -> Option<Entry> {
        let mut opened = self.0.lock();
        let (entry, count) = opened.entry(address).or_insert_with(|| (entry(), 0));
        *count += 1;
        (*count == 1).then_some(*entry)
    }

    /// Counts a closing; returns the entry if it was the last.
    pub(crate) fn close(&self, address: u64) -> Option<Entry> {
        let mut opened = self.0.lock();
        let (_, count) = opened.get_mut(&address)?;
        *count -= 1;
        (*count == 0)
            .then(|| opened.remove(&address))?
            .map(|(entry, _)| entry)
    }

    /// Removes and returns what a context had opened.
    pub(crate) fn context_gone(&self, context: u32) -> Vec<Entry> {
        let mut opened = self.0.lock();
        let gone = opened.extract_if(|_, (entry, _)| entry.owner == context);
        gone.map(|(_, (entry, _))| entry).collect()
    }

    pub(crate) fn renumber(&self, memory: &Memory) {
        for (entry, _) in self.0.lock().values_mut() {
            memory.follow(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::device::LocalDevice;
    use gcgroup_abi::Kind;

    #[test]
    fn memory_opened_twice_is_shown_once_until_closed_twice() {
        let opened = Opened::default();
        let entry = |context| Entry::new(Kind::Ipc, 10, LocalDevice::of(0).unwrap(), 0, context);
        assert_eq!(opened.open(7, || entry(1)), Some(entry(1)));
        assert_eq!(opened.open(7, || entry(1)), None);
        assert_eq!(opened.close(7), None);
        assert_eq!(opened.close(7), Some(entry(1)));
        assert_eq!(opened.close(7), None, "left to the driver");
        opened.open(8, || entry(1));
        opened.open(9, || entry(2));
        assert_eq!(opened.context_gone(1), [entry(1)]);
        assert_eq!(opened.close(9), Some(entry(2)));
    }
}
