//! Pages of device memory that small blocks share, known by the addresses that the driver returns. A page is
//! charged as long as it contains a block, or, if contexts keep empty pages, until its context is destroyed.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{KEEPS_PAGES, Kind};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::ledger::Entry;
use super::{ABSURD, Memory};

#[derive(Debug, Clone, Copy)]
struct Page {
    /// The charge, of the kind [`Kind::Rounding`].
    entry: Entry,
    nr_blocks: u32,
    /// Bytes of its blocks.
    taken: u64,
    /// Whether it is charged, and so moves with its device.
    is_charged: bool,
}

/// Pages that a block has opened, and that are still to be charged.
#[derive(Debug, Default)]
pub(crate) struct NewPages {
    pub(crate) bytes: u64,
    /// Their keys: a block of at most half a page lies in two.
    keys: [Option<u64>; 2],
}

/// Shared pages by [`keys`].
#[derive(Debug, Default)]
pub(crate) struct Pages(Mutex<HashMap<u64, Page>>);

/// Exponent of the size of a page where the daemon has not said another: 2 MiB.
const SHIFT: u8 = 21;

/// Returns the keys of the pages that a small block lies in.
fn keys(address: u64, entry: &Entry) -> impl Iterator<Item = u64> {
    let (shift, last) = (entry.shift(), address.saturating_add(entry.size.max(1) - 1));
    // The exponent fits below the number, since shared pages are of `MIN_SHARED` and more.
    (address >> shift..=last >> shift).map(move |number| number << shift | u64::from(shift))
}

impl Memory {
    /// Returns the exponent of the size of a page of device memory.
    #[inline]
    pub(crate) fn page_shift(&self) -> u8 {
        match self.control().device_page.load(Relaxed) {
            0 => SHIFT,
            page => u8::try_from((page & !KEEPS_PAGES).trailing_zeros()).unwrap_or(SHIFT),
        }
    }

    /// Returns whether contexts keep empty pages.
    fn keeps_pages(&self) -> bool {
        self.control().device_page.load(Relaxed) & KEEPS_PAGES != 0
    }

    /// Returns whether a page that is opened for a block stays even if the block is freed again: the block
    /// shares pages, none of its context has room for it, and empty ones are kept.
    pub(crate) fn must_keep_page_of(&self, block: &Entry) -> bool {
        let has_room = |page: &Page| {
            let room = page.entry.size.saturating_sub(page.taken);
            page.entry.owner == block.owner && room >= block.size
        };
        block.is_small() && self.keeps_pages() && !self.pages.0.lock().values().any(has_room)
    }

    /// Enters a block that the driver has made at `address` in the pages that it shares. Returns those that
    /// had none, which the caller charges on the block's device, and then calls
    /// [`charged_pages`](Self::charged_pages).
    #[inline]
    pub(crate) fn enter_pages(&self, address: u64, block: &Entry) -> NewPages {
        let mut opened = NewPages::default();
        if !block.is_small() {
            return opened;
        }
        for (key, place) in keys(address, block).zip(&mut opened.keys) {
            let mut table = self.pages.0.lock();
            let page = table.entry(key).or_insert_with(|| {
                let entry = block.page();
                self.page_counter.show(&entry);
                opened.bytes += entry.size;
                *place = Some(key);
                Page {
                    entry,
                    nr_blocks: 0,
                    taken: 0,
                    is_charged: false,
                }
            });
            page.nr_blocks += 1;
            page.taken += block.size;
        }
        opened
    }

    /// Moves pages that have been charged to the current slot of their device.
    #[inline]
    pub(crate) fn charged_pages(&self, opened: &NewPages) {
        for key in opened.keys.iter().flatten() {
            if let Some(page) = self.pages.0.lock().get_mut(key) {
                page.is_charged = true;
                self.follow(&mut page.entry);
            }
        }
    }

    /// Removes a block from the pages that it shares. Returns the bytes of those that are empty now, which
    /// the caller uncharges.
    #[inline]
    pub(super) fn leave_pages(&self, address: u64, block: &Entry) -> u64 {
        if !block.is_small() {
            return 0;
        }
        let mut bytes = 0;
        for key in keys(address, block) {
            let mut table = self.pages.0.lock();
            let Some(page) = table.get_mut(&key) else {
                continue;
            };
            page.nr_blocks -= 1;
            page.taken -= block.size;
            if page.nr_blocks == 0 && !self.keeps_pages() {
                bytes += page.entry.size;
                self.page_counter.hide(&page.entry);
                table.remove(&key);
            }
        }
        bytes
    }

    /// Uncharges the empty pages that a destroyed context has kept.
    pub(super) fn leave_kept_pages(&self, context: u32) {
        let is_gone = |page: &Page| page.entry.owner == context && page.nr_blocks == 0;
        let gone: Vec<_> = self.pages.0.lock().extract_if(|_, page| is_gone(page)).collect();
        for (_, page) in gone {
            self.page_counter.hide(&page.entry);
            self.uncharge(page.entry.index(), page.entry.size);
        }
    }

    pub(super) fn renumber_pages(&self) {
        let mut table = self.pages.0.lock();
        let charged = table.values_mut().filter(|page| page.is_charged);
        charged.for_each(|page| self.follow(&mut page.entry));
    }
}

/// Exponent of the size of the smallest page that blocks share.
const MIN_SHARED: u8 = 12;

impl Entry {
    /// Has the block take pages of the device, with that exponent of their size.
    #[inline]
    pub(crate) fn in_pages(mut self, shift: u8) -> Self {
        if self.size < ABSURD && shift < 56 {
            self.set_shift(shift);
        }
        self
    }

    /// Has a block whose address is not known take pages of the device; a small one is charged by its bytes.
    pub(crate) fn in_unknown_pages(self, shift: u8) -> Self {
        let entry = self.in_pages(shift);
        if entry.is_small() { self } else { entry }
    }

    /// Returns whether the block shares pages with others: those of at most half a page do.
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        self.shift() >= MIN_SHARED && self.size <= (1 << self.shift()) / 2
    }

    /// Returns the bytes that are charged for the block alone beyond its size: up to a multiple of a page; of
    /// a small block nothing is charged, so that this is negative.
    #[inline]
    pub(super) fn padding(&self) -> u64 {
        if self.shift() == 0 {
            0
        } else if self.is_small() {
            self.size.wrapping_neg()
        } else {
            self.size.wrapping_neg() & ((1 << self.shift()) - 1)
        }
    }

    /// Returns the bytes that are charged for the block alone.
    #[inline]
    pub(crate) fn charged(&self) -> u64 {
        self.size.wrapping_add(self.padding())
    }

    /// Returns the bytes that are likely charged for the block with the pages that it opens, and the least.
    pub(crate) fn likely(&self) -> [u64; 2] {
        if self.is_small() {
            [1 << self.shift(), 0]
        } else {
            [self.charged(); 2]
        }
    }

    /// Returns the entry of a page of the block.
    fn page(&self) -> Self {
        Self::new(
            Kind::Rounding,
            1 << self.shift(),
            self.local,
            self.index(),
            self.owner,
        )
    }
}
