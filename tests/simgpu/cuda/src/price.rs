//! Time and memory that calls take on real drivers and not here: one row each, set by its name in
//! `SIMGPU_PRICES`, a list of `NAME=NUMBER` separated by commas. Each process reads it for itself; what is
//! not named costs nothing.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use simgpu::config::parse_bytes;

macro_rules! prices {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Price {
            $($(#[$doc])* $name,)*
        }

        const ROWS: &[(Price, &str)] = &[$((Price::$name, $text)),*];
    };
}

prices! {
    /// Microseconds of the host in the first launch of each function, which loads it.
    FirstLaunch = "first-launch-usec";
    /// Bytes of device memory that the first launch of each function takes, until the process ends.
    FirstLaunchMemory = "first-launch-bytes";
    /// Microseconds of the host in one launch of 64, at random.
    Stall = "stall-usec";
    /// Nanoseconds of the device for a word written by a stream with a memory barrier.
    Marker = "marker-nsec";
    /// Nanoseconds of the device for a word written by a stream without a memory barrier.
    BareMarker = "bare-marker-nsec";
    /// Microseconds of the host in `cuMemSetAccess` for each location.
    SetAccess = "set-access-usec";
    /// Microseconds of the host in the creation of a context.
    Context = "context-usec";
    /// Microseconds of the host in the load of a module, which may be compiled.
    Module = "module-usec";
    /// Nanoseconds of the host, with the driver's lock held: in each launch, each record of an event, each
    /// operation of a stream on memory, and each query of a pool.
    Launch = "launch-nsec";
    Record = "record-nsec";
    MemoryOperation = "memory-operation-nsec";
    PoolQuery = "pool-query-nsec";
    /// Nanoseconds of the host, with the driver's lock held, in each record of an event for a context, for
    /// each of its streams.
    RecordContext = "record-context-nsec";
}

/// The driver's lock.
static LOCK: Mutex<()> = Mutex::new(());

impl Price {
    /// Returns the number in this process; 0 by default.
    pub(crate) fn get(self) -> u64 {
        let found = prices().iter().find(|(price, _)| *price == self);
        found.map_or(0, |(_, number)| *number)
    }

    /// Has the calling thread work for `times` this price, which is in nanoseconds, with the driver's lock
    /// held. Without any price there is no lock.
    pub(crate) fn work(self, times: usize) {
        if prices().is_empty() {
            return;
        }
        let took = Duration::from_nanos(self.get().saturating_mul(times as u64));
        let _held = LOCK.lock();
        let began = Instant::now();
        while began.elapsed() < took {
            spin_loop();
        }
    }

    /// Lets the calling thread wait for `times` this price, which is in microseconds.
    pub(crate) fn wait(self, times: u64) {
        let usec = self.get().saturating_mul(times);
        if usec != 0 {
            std::thread::sleep(Duration::from_micros(usec));
        }
    }
}

fn prices() -> &'static [(Price, u64)] {
    static PRICES: OnceLock<Vec<(Price, u64)>> = OnceLock::new();
    PRICES.get_or_init(|| parse(&std::env::var("SIMGPU_PRICES").unwrap_or_default()))
}

/// Lets the calling thread wait in one call of 64. The calls are the same in each run.
pub(crate) fn stall() {
    static STATE: AtomicU64 = AtomicU64::new(1);
    if Price::Stall.get() != 0 {
        let next = |state: u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let state = STATE.fetch_update(Relaxed, Relaxed, |state| Some(next(state)));
        if state.is_ok_and(|state| state >> 58 == 0) {
            Price::Stall.wait(1);
        }
    }
}

/// Parses a list. Unknown names are reported on standard error and skipped.
fn parse(list: &str) -> Vec<(Price, u64)> {
    let rows = list.split(',').map(str::trim).filter(|row| !row.is_empty());
    let found = rows.filter_map(|text| {
        let (name, number) = text.split_once('=')?;
        let row = ROWS.iter().find(|(_, known)| *known == name);
        let parsed = row.zip(parse_bytes(number));
        if parsed.is_none() {
            eprintln!("simgpu: SIMGPU_PRICES: no price {text}");
        }
        parsed.map(|(row, number)| (row.0, number))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_found_and_unknown_ones_are_skipped() {
        assert_eq!(parse(""), []);
        assert_eq!(
            parse("marker-nsec=700, x=1,first-launch-bytes=2M,stall-usec"),
            [(Price::Marker, 700), (Price::FirstLaunchMemory, 2 << 20)]
        );
    }
}
