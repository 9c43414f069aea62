//! Names of the words of a usage block, and parsing of the values to store.

use std::error::Error;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::Duration;

use gcgroup_abi::Usage;

/// A word of a usage block.
pub(crate) enum Word<'a> {
    Long(&'a AtomicU64),
    Short(&'a AtomicU32),
}

impl<'a> From<&'a AtomicU64> for Word<'a> {
    fn from(word: &'a AtomicU64) -> Self {
        Self::Long(word)
    }
}

impl<'a> From<&'a AtomicU32> for Word<'a> {
    fn from(word: &'a AtomicU32) -> Self {
        Self::Short(word)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a liar's number, cut to the word's size"
)]
impl Word<'_> {
    pub(crate) fn load(&self) -> u64 {
        match self {
            Self::Long(word) => word.load(Acquire),
            Self::Short(word) => word.load(Acquire).into(),
        }
    }

    pub(crate) fn store(&self, value: u64) {
        match self {
            Self::Long(word) => word.store(value, Release),
            Self::Short(word) => word.store(value as u32, Release),
        }
    }
}

/// Returns the word with this name, if it is in this list and this part of the block.
macro_rules! named {
    ($name:expr, $part:expr, $($field:ident)*) => {
        match $name {
            $(stringify!($field) => Some(Word::from(&$part.$field)),)*
            _ => None,
        }
    };
}

/// Finds a word of the block by name: of a device, of a thread (`thread.NAME`), of a device's array
/// (`kinds.3`), or of the process (`process.NAME`). The index is that of the device or thread.
pub(crate) fn word<'a>(block: &'a Usage, name: &str, index: &str) -> Result<Word<'a>, Box<dyn Error>> {
    let index: usize = index.parse()?;
    let device = block.devices.get(index);
    let found = match name.split_once('.') {
        None => device.and_then(|device| {
            named!(name, device,
                memory_current memory_peak peak_generation drained_generation nr_alloc nr_free nr_alloc_fail nr_max
                nr_oom nr_ended nr_frozen frozen_usec graph_kernels unsettled swap_pool nr_contexts nr_waiting
                busy_sequence busy_since busy_nsec usage_nsec_before nr_throttled throttled_usec gate_timeouts
                swap_current swap_out_bytes swap_in_bytes nr_swap_out nr_swap_in nr_swap_fail swappable
                reclaim_generation memory_granted grant_wanted grant_request pressure_request pressure_wanted
                memory_overhead_before swap_charged swap_granted swap_wanted swap_request submitted_nsec queued_until pressure_size
                context_request context_kind context_charged context_estimated nr_group_max movable)
        }),
        Some(("process", name)) => named!(name, block,
            nr_threads memory_peak peak_generation progress_generation nr_max nr_oom
            nr_unknown_symbols can_swap),
        Some(("thread", name)) => block.threads.get(index).and_then(|thread| {
            named!(name, thread, device nr_alloc nr_free counted_device unsettled)
        }),
        Some(("exited", what)) => array(device.map(|device| &device.shared_exited[..]), what),
        Some(("kinds", kind)) => array(device.map(|device| &device.kinds[..]), kind),
        Some(_) => None,
    };
    found.ok_or_else(|| format!("no word {name} {index}").into())
}

fn array<'a>(words: Option<&'a [AtomicU64]>, at: &str) -> Option<Word<'a>> {
    Some(words?.get(at.parse::<usize>().ok()?)?.into())
}

/// Parses a number: decimal, `max`, `now` (`CLOCK_MONOTONIC`, nanoseconds), or a power of two (`2^40`).
pub(crate) fn number(text: &str) -> Result<u64, Box<dyn Error>> {
    match text.split_once('^') {
        Some(("2", power)) => Ok(1 << power.parse::<u32>()?.min(63)),
        _ if text == "max" => Ok(u64::MAX),
        _ if text == "now" => Ok(now()),
        _ => Ok(text.parse()?),
    }
}

pub(crate) fn now() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}
