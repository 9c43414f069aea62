//! Usage blocks in which every word is forged.

use gcgroup_abi::{Kind, MAX_DEVICES, NO_LIMIT};

use super::super::claims::{Counts, device_total};
use super::super::device::Devices;
use super::super::fixture::{HOST, TOTAL, blocks, device, words};
use super::super::{Sums, all_counters};
use super::*;

/// Nine years in nanoseconds, rounded to a power of two.
const NINE_YEARS: u64 = 1 << 58;

/// A time (`CLOCK_MONOTONIC`, nanoseconds) of ten seconds after boot.
const NOW: u64 = 10_000_000_000;

/// Values of the words at even and odd places: as counts, as negative differences, as two halves of 32 bits.
const FORGED: [[u64; 2]; 8] = [
    [0, 0],
    [u64::MAX, u64::MAX],
    [0, u64::MAX],
    [u64::MAX, 0],
    [1 << 63, 1 << 63],
    [i64::MIN.cast_unsigned() + 1, i64::MAX.cast_unsigned()],
    [0xaaaa_aaaa_aaaa_aaaa, 0x5555_5555_5555_5555],
    [0x0000_0000_ffff_ffff, 0xffff_ffff_0000_0000],
];

const COUNTS: Counts = Counts {
    calls: 1000,
    kernels: 64_000,
    waited_usec: 5_000_000,
    moved: 1 << 40,
};

/// Calls `check` with the wrapper of each forged block.
fn forge(check: impl Fn(Untrusted<'_>)) {
    for [even, odd] in FORGED {
        let blocks = blocks();
        for (at, word) in words(blocks.usage().raw()).iter().enumerate() {
            word.store(if at % 2 == 0 { even } else { odd }, Relaxed);
        }
        check(blocks.usage());
    }
}

fn is_within(sums: &Sums, most: Counts, devices: &Devices, device: Option<usize>) {
    let slots = match device {
        Some(device) => vec![device],
        None => (0..devices.len()).chain([OTHER_DEVICE]).collect(),
    };
    let total: u64 = slots.iter().map(|slot| device_total(*slot, devices)).sum();
    let nr = slots.len() as u64 + 1;
    let Sums {
        charged,
        overhead,
        kinds,
        submitted,
        usage_nsec,
        swap,
        nr_alloc,
        nr_free,
        ..
    } = *sums;
    assert!(charged <= total && swap.swappable <= total);
    for ((kind, _, is_charged), bytes) in Kind::ALL.iter().zip(kinds) {
        let most = if *is_charged {
            total
        } else {
            nr * total.max(HOST.memory)
        };
        assert!(bytes <= most, "{kind:?}: {bytes}");
    }
    assert!(swap.current <= nr * HOST.memory && swap.pool <= nr * HOST.memory);
    for counter in all_counters() {
        let count = *(counter.number)(&mut sums.clone());
        let is_read = counter.on_device.is_some() || counter.as_a_whole.is_some();
        assert!(!is_read || count <= nr * (counter.most)(most), "{counter:?}");
    }
    assert!(nr_alloc <= nr * most.calls && nr_free <= nr * most.calls);
    assert!(submitted.iter().all(|calls| *calls <= nr * most.calls));
    // The process does not count these.
    assert_eq!(
        [
            overhead,
            usage_nsec,
            sums.nr_high,
            sums.nr_oom_group_kill,
            sums.nr_over_limit,
            sums.nr_reclaim,
            sums.nr_idle,
            sums.nr_memory_turns
        ],
        [0; 8]
    );
}

#[test]
fn sums_of_forged_block_are_bounded() {
    let devices = Devices::new(vec![device(0), device(1)], HOST);
    forge(|usage| {
        for place in [
            None,
            Some(0),
            Some(1),
            Some(OTHER_DEVICE),
            Some(MAX_DEVICES),
            Some(usize::MAX),
        ] {
            is_within(&usage.sums(place, COUNTS, &devices), COUNTS, &devices, place);
        }
    });
}

#[test]
fn values_of_forged_block_are_bounded() {
    forge(|usage| {
        for slot in [0, 1, OTHER_DEVICE, MAX_DEVICES, usize::MAX] {
            assert!(usage.charged(slot, TOTAL) <= TOTAL && usage.charged(slot, NO_LIMIT) <= MOST);
            assert!(usage.movable(slot) <= 2 * MOST);
            assert!(usage.nr_contexts(slot) <= 2 * 4096);
            assert_eq!(usage.device(slot).is_some(), slot < MAX_DEVICES);
            let Some(device) = usage.device(slot) else {
                assert_eq!(usage.charged(slot, NO_LIMIT) + usage.movable(slot), 0);
                continue;
            };
            assert!(device.charged() <= MOST);
            assert!(device.memory_peak(TOTAL) <= TOTAL && device.memory_peak(NO_LIMIT) <= MOST);
            assert!(device.movable(TOTAL) <= TOTAL && device.movable(NO_LIMIT) <= MOST);
            assert!(device.swappable(TOTAL) <= TOTAL && device.swappable(NO_LIMIT) <= MOST);
            assert!(device.memory_overhead_before(0) == 0 && device.memory_overhead_before(NO_LIMIT) <= MOST);
            assert!(device.swapped(HOST.memory) <= HOST.memory);
            assert!(device.busy(NOW).0 <= NINE_YEARS && device.usage_nsec_before() <= NINE_YEARS);
            assert!(device.submitted_nsec() <= NINE_YEARS && device.queued_until() <= NINE_YEARS);
            assert!(device.nr_waiting() <= 4096 && device.nr_contexts() <= 4096);
            assert!(device.pressure_wanted() <= MOST && device.pressure_size() <= MOST);
            for (words, request) in [
                (device.memory_words(), device.memory_request()),
                (device.swap_words(), device.swap_request()),
            ] {
                assert!(words.charged() <= MOST && request.bytes <= MOST);
                assert!((10..=20).contains(&words.lower(20, 10)));
            }
        }
        assert!(usage.memory_peak(TOTAL) <= TOTAL && usage.memory_peak(NO_LIMIT) <= MOST);
        assert!(usage.host_claim(HOST.memory) <= HOST.memory);
        assert!(usage.swapped_in_all(HOST.memory) <= MAX_DEVICES as u64 * HOST.memory);
    });
}

#[test]
fn waiting_threads_beyond_the_bound_do_not_begin_again() {
    let blocks = blocks();
    let device = &blocks.usage().raw().devices[0];
    let begins = |seen| {
        blocks
            .usage()
            .device(0)
            .is_some_and(|device| device.has_begun(seen))
    };
    device.nr_waiting.store(5, Relaxed);
    assert!(begins(4) && !begins(5));
    device.nr_waiting.store(u32::MAX, Relaxed);
    let seen = blocks.usage().device(0).map_or(0, UntrustedDevice::nr_waiting);
    assert!(begins(seen - 1) && !begins(seen));
    device.busy_since.store(1, Relaxed);
    assert!(begins(seen));
}

#[test]
fn grant_is_stored_without_regard_to_what_the_process_wrote() {
    let blocks = blocks();
    let usage = &blocks.usage().raw().devices[0];
    let words = || blocks.usage().device(0).map(UntrustedDevice::memory_words);
    for forged in [0, 7, NO_LIMIT] {
        usage.memory_granted.store(forged, Relaxed);
        words().into_iter().for_each(GrantWords::lift);
        assert_eq!(usage.memory_granted.load(Relaxed), NO_LIMIT);
        usage.memory_granted.store(forged, Relaxed);
        words().into_iter().for_each(|words| words.grant(7));
        assert_eq!(usage.memory_granted.load(Relaxed), 7);
    }
    usage.memory_current.store(u64::MAX, Relaxed);
    assert_eq!(words().map(|words| words.lower(20, 10)), Some(20));
    assert_eq!(usage.memory_granted.load(Relaxed), 20);
}
