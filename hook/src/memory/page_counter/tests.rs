use super::*;
use crate::memory::Memory;
use crate::shared::block;
use crate::shared::device::LocalDevice;
use gcgroup_abi::{Control, Kind, NO_LIMIT};
use std::sync::Barrier;
use std::thread;

fn governed() -> (PageCounter, &'static Usage, &'static Control) {
    let (control, file) = block::unlimited(0);
    let session = Session::of_test(NO_LIMIT);
    session.adopt(&file);
    (PageCounter::new(session), session.usage(), control)
}

fn current(page_counter: &PageCounter, usage: &Usage, index: usize) -> (u64, u64) {
    (
        usage.devices[index].memory_current.load(Relaxed),
        page_counter.sum(),
    )
}

#[test]
fn limits_hold_to_the_byte_and_refusals_charge_nothing() {
    let (page_counter, usage, control) = governed();
    control.devices[1].memory_limit.store(100, Relaxed);
    control.memory_limit.store(150, Relaxed);
    assert_eq!(page_counter.try_charge(1, 101), Err(Full::Device(1)));
    assert_eq!(page_counter.try_charge(1, 100), Ok(()));
    assert_eq!(page_counter.try_charge(0, 51), Err(Full::Process));
    assert_eq!(current(&page_counter, usage, 0), (0, 100));
    assert_eq!(page_counter.try_charge(0, 50), Ok(()));
    assert_eq!(page_counter.try_charge(2, 1), Err(Full::Process));
    page_counter.uncharge(1, 100);
    assert_eq!(current(&page_counter, usage, 1), (0, 50));
}

#[test]
fn overhead_of_contexts_lowers_the_limits() {
    let (page_counter, _, control) = governed();
    control.nr_devices.store(2, Relaxed);
    control.devices[0].memory_limit.store(100, Relaxed);
    control.devices[0].memory_overhead.store(30, Relaxed);
    assert_eq!(page_counter.try_charge(0, 71), Err(Full::Device(0)));
    assert_eq!(page_counter.try_charge(0, 70), Ok(()));
    control.devices[0].memory_overhead.store(200, Relaxed);
    assert_eq!(device_limit(control, 0), 0);
    control.memory_limit.store(250, Relaxed);
    assert_eq!(process_limit(control), 50);
}

/// Charges bytes one by one until the limit refuses; returns their number. Threads that charge on two devices
/// at once may refuse each other the last byte.
fn fill(page_counter: &PageCounter, index: usize) -> usize {
    let charge = || page_counter.try_charge(index, 1).ok();
    std::iter::from_fn(charge).count()
}

#[test]
fn racing_threads_fill_two_limits_exactly() {
    let (page_counter, usage, control) = governed();
    control.devices[0].memory_limit.store(700, Relaxed);
    control.devices[1].memory_limit.store(700, Relaxed);
    control.memory_limit.store(1000, Relaxed);
    let racing: usize = thread::scope(|scope| {
        let page_counter = &page_counter;
        let threads: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn(move || {
                    let mut granted = 0;
                    for round in 0..2000 {
                        let index = (number + round) % 2;
                        if page_counter.try_charge(index, 1).is_ok() {
                            granted += 1;
                        }
                        assert!(usage.devices[index].memory_current.load(Relaxed) <= 700);
                    }
                    granted
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let rest = fill(&page_counter, 0) + fill(&page_counter, 1);
    assert_eq!(racing + rest, 1000, "every byte within the limit was charged");
    assert_eq!(page_counter.sum(), 1000);
}

#[test]
fn first_charge_on_second_device_keeps_limit_and_peak_exact() {
    let (page_counter, usage, control) = governed();
    control.memory_limit.store(100, Relaxed);
    for round in 0..200 {
        usage.memory_peak.store(0, Relaxed);
        page_counter.try_charge(0, 1).unwrap();
        let charged = thread::scope(|scope| {
            let charge = |index: usize| {
                let page_counter = &page_counter;
                move || {
                    (0..80)
                        .filter(|_| page_counter.try_charge(index, 1).is_ok())
                        .count()
                }
            };
            let threads = [0, 1].map(|index| scope.spawn(charge(index)));
            threads.map(|thread| thread.join().unwrap())
        });
        let [mut home, other] = charged;
        home += fill(&page_counter, 0);
        assert_eq!(
            current(&page_counter, usage, 0),
            (home as u64 + 1, 100),
            "round {round}"
        );
        assert_eq!(
            current(&page_counter, usage, 1),
            (other as u64, 100),
            "round {round}"
        );
        assert_eq!(usage.memory_peak.load(Relaxed), 100, "round {round}");
        page_counter.uncharge(0, home as u64 + 1);
        page_counter.uncharge(1, other as u64);
        assert_eq!(page_counter.sum(), 0);
    }
}

#[test]
fn transfer_between_devices_keeps_the_process_total() {
    let (page_counter, usage, _) = governed();
    page_counter.try_charge(3, 50).unwrap();
    for (from, to) in [(3, 1), (1, 2), (2, 3)] {
        page_counter.transfer_bytes(from, to, 50);
        assert_eq!(current(&page_counter, usage, from), (0, 50));
        assert_eq!(current(&page_counter, usage, to), (50, 50));
    }
    page_counter.uncharge(3, 50);
    assert_eq!(page_counter.sum(), 0);
    assert_eq!(usage.memory_peak.load(Relaxed), 50);
}

#[test]
fn grants_hold_to_the_byte_and_own_limits_come_first() {
    let (page_counter, usage, control) = governed();
    usage.devices[1].memory_granted.store(100, Relaxed);
    assert_eq!(page_counter.try_charge(1, 101), Err(Full::Group(1)));
    assert_eq!(page_counter.try_charge(0, 101), Ok(()));
    assert_eq!(page_counter.try_charge(1, 100), Ok(()));
    control.memory_limit.store(250, Relaxed);
    assert_eq!(page_counter.try_charge(1, 50), Err(Full::Process));
    assert_eq!(page_counter.try_charge(1, 49), Err(Full::Group(1)));
    control.devices[1].memory_limit.store(100, Relaxed);
    assert_eq!(page_counter.try_charge(1, 49), Err(Full::Device(1)));
    assert_eq!(
        current(&page_counter, usage, 1),
        (100, 201),
        "refusals charge nothing"
    );
    control.devices[1].group_room.store(7, Relaxed);
    page_counter.uncharge(1, 30);
    assert_eq!(group_room(usage, control, 1), 37);
    assert_eq!(group_room(usage, control, 0), NO_LIMIT);
}

#[test]
fn unsettled_call_is_visible_during_and_after() {
    let usage = block::of_test(NO_LIMIT).usage();
    let word = &usage.devices[2].unsettled;
    let one = Unsettled::on(usage, 2);
    let other = Unsettled::on(usage, 2);
    drop(one);
    assert_eq!(word.load(Relaxed), (2 << 32) + 1);
    drop(other);
    assert_eq!(word.load(Relaxed), 2 << 32);
}

#[test]
fn unsettled_call_in_a_threads_own_word_is_visible() {
    let memory = Memory::of_test(NO_LIMIT);
    let (usage, local) = (memory.usage(), LocalDevice::of(0).unwrap());
    let own = Counts::of(
        usage,
        memory.program.slots.of_test(memory.session, local, 2).thread,
        2,
    );
    let shown = || {
        let counts = usage.allocations(2);
        (counts.nr_unsettled, counts.unsettled_threads)
    };
    let mark = || Unsettled::of_thread(usage, own, 2);
    let one = mark();
    assert_eq!(shown(), (1, 1));
    drop(one);
    assert_eq!(shown(), (2, 0));
    std::mem::forget(mark());
    let after = mark();
    assert_eq!(shown(), (5, 1), "one that was never ended does not block");
    drop(after);
    assert_eq!(shown(), (6, 0));
    assert_eq!(usage.devices[2].unsettled.load(Relaxed), 0);
}

#[test]
fn undone_charge_raises_no_peak() {
    let (page_counter, usage, _) = governed();
    let sums = page_counter.try_reserve(0, 50).unwrap();
    // Another thread finds that a context was estimated exactly.
    page_counter.charge(0, 0);
    assert_eq!(usage.memory_peak.load(Relaxed), 0);
    page_counter.uncharge(0, 50);
    page_counter.try_charge(0, 20).unwrap();
    assert_eq!(usage.memory_peak.load(Relaxed), 20);
    page_counter.raise_peaks(0, sums);
    assert_eq!(usage.memory_peak.load(Relaxed), 50);
    assert_eq!(usage.devices[0].memory_peak.load(Relaxed), 50);
}

#[test]
fn reset_peak_restarts_from_current() {
    let (page_counter, usage, control) = governed();
    page_counter.try_charge(0, 50).unwrap();
    page_counter.uncharge(0, 40);
    assert_eq!(usage.devices[0].memory_peak.load(Relaxed), 50);
    control.devices[0].peak_generation.store(1, Relaxed);
    page_counter.try_charge(0, 5).unwrap();
    assert_eq!(usage.devices[0].memory_peak.load(Relaxed), 15);
    assert_eq!(usage.devices[0].peak_generation.load(Relaxed), 1);
    assert_eq!(
        usage.memory_peak.load(Relaxed),
        50,
        "the process's peak was not reset"
    );
}

#[test]
fn allocations_are_summed_over_threads() {
    let memory = Memory::of_test(NO_LIMIT);
    let local = LocalDevice::of(0).unwrap();
    let entry = |index| Entry::new(Kind::Linear, 100, local, index, 0);
    let sums = |index| {
        let sums = memory.usage().allocations(index);
        (sums.nr_alloc, sums.nr_free, sums.kinds[Kind::Linear as usize])
    };
    let count = |bound: crate::program::slot::Bound<'_>, index, times| {
        for _ in 0..times {
            let own = Counts::of(memory.usage(), bound.thread, index);
            memory.page_counter.enter(own, &entry(index));
        }
    };
    let shared = &memory.usage().devices[1];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| count(memory.program.slots.of_test(memory.session, local, 1), 1, 1000));
        }
    });
    assert_eq!(sums(1), (4000, 0, 400_000));
    assert_eq!(shared.nr_alloc.load(Relaxed), 0, "shared words are untouched");

    let mine = memory.program.slots.of_test(memory.session, local, 1);
    count(mine, 1, 1);
    for _ in 0..2 {
        // Frees of other threads' blocks make the thread's own counter negative.
        let own = Counts::of(memory.usage(), mine.thread, 1);
        memory.page_counter.leave(own, &entry(1));
    }
    assert_eq!(sums(1), (4001, 2, 399_900));
    count(mine, 2, 3);
    assert_eq!(sums(2), (3, 0, 300), "on a device that is not the slot's");
    assert_eq!(memory.usage().devices[2].nr_alloc.load(Relaxed), 3);
}

fn charge(page_counter: &PageCounter, bytes: u64) -> Result<(), Full> {
    page_counter.try_charge(0, bytes)
}

#[test]
fn limit_lowered_below_the_charge_refuses_until_enough_is_freed() {
    let (page_counter, usage, control) = governed();
    for _ in 0..2 {
        charge(&page_counter, 50).unwrap();
    }
    page_counter.uncharge(0, 30);
    control.devices[0].memory_limit.store(80, Relaxed);
    assert_eq!(charge(&page_counter, 11), Err(Full::Device(0)));
    assert_eq!(charge(&page_counter, 10), Ok(()));
    assert_eq!(current(&page_counter, usage, 0), (80, 80));
    assert_eq!(usage.memory_peak.load(Relaxed), 100);
}

/// Random charges and frees by several threads: at each moment the charged bytes are within the limit and the
/// peak, and the reported peak was reached.
#[test]
fn racing_threads_keep_the_limit_and_an_exact_peak() {
    const LIMIT: u64 = 300;
    let nr_refused = AtomicU64::new(0);
    for round in 0..12 {
        let (page_counter, usage, control) = governed();
        let limit = if round % 3 == 0 { NO_LIMIT } else { LIMIT };
        let nr_devices = 1 + round % 2;
        control.memory_limit.store(limit, Relaxed);
        // Lower and upper bound of what is charged, and the highest value of each.
        let (least, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let peaks = [AtomicU64::new(0), AtomicU64::new(0)];
        let raise = |at: usize, sum: u64| peaks[at].fetch_max(sum, SeqCst);
        let barrier = Barrier::new(4);
        let churn = |number: u64| {
            barrier.wait();
            let index = usize::from(number % nr_devices == 1);
            let mut random = number + 7 * round + 1;
            let mut held = Vec::new();
            let free = |bytes| {
                least.fetch_sub(bytes, SeqCst);
                page_counter.uncharge(index, bytes);
                most.fetch_sub(bytes, SeqCst);
            };
            for step in 0..6000_u64 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let bytes = (random >> 33) % 90 + 1;
                let is_full = held.len() > 3 || step % 3 == 2;
                if let Some(bytes) = held.pop_if(|_| is_full) {
                    free(bytes);
                    continue;
                }
                raise(1, most.fetch_add(bytes, SeqCst) + bytes);
                if page_counter.try_charge(index, bytes).is_ok() {
                    let now = least.fetch_add(bytes, SeqCst) + bytes;
                    raise(0, now);
                    assert!(now <= limit, "{now} are charged");
                    held.push(bytes);
                } else {
                    most.fetch_sub(bytes, SeqCst);
                    nr_refused.fetch_add(1, Relaxed);
                }
            }
            held.into_iter().for_each(free);
        };
        let churn = &churn;
        thread::scope(|scope| {
            let threads = [0, 1, 2, 3].map(|number| scope.spawn(move || churn(number)));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let [least, most] = peaks.each_ref().map(|peak| peak.load(Relaxed));
        let whole = usage.memory_peak.load(Relaxed);
        // On two devices the sums are of different moments.
        let most = if nr_devices == 1 { most.min(limit) } else { limit };
        assert!(least <= whole && whole <= most, "{least} {whole} {most}");
        if nr_devices == 1 {
            assert_eq!(usage.devices[0].memory_peak.load(Relaxed), whole);
        }
        assert_eq!(current(&page_counter, usage, 0), (0, 0), "everything was freed");
    }
    assert!(nr_refused.load(Relaxed) > 0, "no charge reached the limit");
}
