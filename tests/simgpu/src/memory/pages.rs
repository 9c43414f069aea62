//! Pages of device memory. Small blocks of one kind and one context share pages; others have pages of their
//! own.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::arena::Arena;
use super::block::Kind;
use super::ranges::Ranges;
use crate::config::parse_bytes;
use crate::quirks::Quirk;

/// Pages smaller than this are not shared.
const LEAST_SHARED: u64 = 4096;
/// Granularity of blocks in a shared page, bytes.
const UNIT: u64 = 512;

/// Returns the size of a page in bytes (`SIMGPU_PAGE`).
pub fn page() -> u64 {
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(|| {
        let page = std::env::var("SIMGPU_PAGE").ok();
        let page = page.as_deref().and_then(parse_bytes).unwrap_or(2 << 20);
        page.max(1).next_power_of_two()
    })
}

/// A page that small blocks share.
#[derive(Debug)]
struct Page {
    kind: Kind,
    context: u64,
    device: usize,
    free: Ranges,
    nr_blocks: u32,
}

/// The shared pages of a process, by first address.
#[derive(Debug, Default)]
pub(super) struct Pages(Mutex<BTreeMap<u64, Page>>);

/// Returns whether a block of so many bytes shares pages.
pub fn is_small(bytes: u64) -> bool {
    page() >= LEAST_SHARED && bytes <= page() / 2
}

impl Pages {
    /// Takes addresses for a small block from a shared page. A new page is taken if `charge` succeeds.
    pub(super) fn take<E>(
        &self,
        linear: &Arena,
        size: u64,
        (kind, device, context): (Kind, usize, u64),
        charge: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let mut pages = self.0.lock();
        let taken = size.next_multiple_of(UNIT);
        for page in pages.values_mut() {
            if (page.kind, page.context) == (kind, context)
                && let Some(base) = page.free.take(taken, UNIT)
            {
                page.nr_blocks += 1;
                return Ok(Some(base));
            }
        }
        charge()?;
        Ok(linear.take(page(), page()).inspect(|base| {
            let mut free = Ranges::new(*base, page());
            free.take_at(*base, taken);
            let page = Page {
                kind,
                context,
                device,
                free,
                nr_blocks: 1,
            };
            pages.insert(*base, page);
        }))
    }

    /// Frees the addresses of a block in a shared page; `None` if it is in none. Otherwise returns the bytes
    /// that the device regains.
    pub(super) fn give(&self, linear: &Arena, address: u64, size: u64) -> Option<u64> {
        let mut pages = self.0.lock();
        let (&base, shared) = pages.range_mut(..=address).next_back()?;
        if address - base >= page() {
            return None;
        }
        shared.free.give(address, size.next_multiple_of(UNIT));
        shared.nr_blocks -= 1;
        if shared.nr_blocks > 0 || Quirk::KeptPages.is_on() {
            return Some(0);
        }
        pages.remove(&base);
        linear.give(base, page());
        Some(page())
    }

    /// Frees the empty pages that a destroyed context has kept. Returns the kind and the device of each.
    pub(super) fn give_kept(&self, linear: &Arena, context: u64) -> Vec<(Kind, usize)> {
        let mut pages = self.0.lock();
        let gone = pages.extract_if(.., |_, page| page.context == context && page.nr_blocks == 0);
        gone.map(|(base, gone)| {
            linear.give(base, page());
            (gone.kind, gone.device)
        })
        .collect()
    }
}
