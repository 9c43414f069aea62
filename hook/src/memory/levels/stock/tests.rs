use super::*;
use crate::block;
use crate::device::LocalDevice;
use crate::memory::levels::{Full, Sums};
use crate::process::Process;
use gcgroup_abi::MOST_STOCK;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

/// A process with its own counters, and a daemon that knows of stocks.
struct World {
    process: &'static Process,
    control: &'static Control,
    levels: Levels,
}

impl World {
    fn new(limit: u64) -> Self {
        let (control, _file) = block::of_daemon();
        for device in &control.devices {
            device.memory_limit.store(NO_LIMIT, Relaxed);
        }
        control.memory_limit.store(limit, Relaxed);
        control.knows_stocks.store(1, Relaxed);
        Self {
            process: Process::of_test(NO_LIMIT),
            control,
            levels: Levels::default(),
        }
    }

    /// Returns a world whose home device has reached `peak` bytes and whose stocks are open.
    fn after(peak: u64, limit: u64) -> Self {
        let world = Self::new(limit);
        world.as_thread(|thread| {
            thread.charge(peak).unwrap();
            thread.free(peak);
        });
        world.open();
        world
    }

    fn usage(&self) -> &'static Usage {
        self.process.usage()
    }

    fn open(&self) -> bool {
        self.levels.open(self.usage(), self.control, 0);
        Stocks::of(self.usage()).are_open()
    }

    fn as_thread<T>(&self, body: impl FnOnce(Thread<'_>) -> T) -> T {
        let slots = &self.process.slots;
        let bound = slots.of_test(self.process, LocalDevice::of(0).unwrap(), 0);
        let own = Counts::of(self.usage(), bound.thread, 0).unwrap();
        body(Thread { world: self, own })
    }

    /// Returns the charged bytes with and without stocks.
    fn charged(&self) -> (u64, u64) {
        let usage = self.usage();
        let raw = usage.devices[0].memory_current.load(Relaxed);
        (raw, usage.memory_current(0))
    }

    fn peaks(&self) -> (u64, u64) {
        let usage = self.usage();
        let on_device = usage.devices[0].memory_peak.load(Relaxed);
        (on_device, usage.memory_peak.load(Relaxed))
    }
}

/// The calling thread.
#[derive(Clone, Copy)]
struct Thread<'a> {
    world: &'a World,
    own: Counts<'a>,
}

impl Thread<'_> {
    fn charge(self, bytes: u64) -> Result<(), Full> {
        let World { levels, control, .. } = self.world;
        let (usage, stock) = (self.world.usage(), Some(self.own.stock()));
        let sums = match levels.reserve_freely(usage, control, 0, stock, bytes) {
            Some(sum) => Sums::of_one(sum),
            None => levels.try_reserve_from(stock, usage, control, 0, bytes)?,
        };
        levels.raise_peaks(usage, control, 0, sums);
        Ok(())
    }

    fn free(self, bytes: u64) {
        let World { levels, control, .. } = self.world;
        self.own.count_free();
        levels.give(self.world.usage(), control, 0, Some(self.own), bytes);
    }
}

#[test]
fn freed_bytes_are_charged_again_and_do_not_count_as_used() {
    let world = World::after(100, NO_LIMIT);
    world.as_thread(|thread| {
        thread.charge(100).unwrap();
        thread.free(60);
        assert_eq!(world.charged(), (100, 40));
        assert_eq!(world.levels.sum(world.usage()), 40);
        thread.charge(25).unwrap();
        assert_eq!(world.charged(), (100, 65));
        thread.charge(35).unwrap();
        assert_eq!(world.charged(), (100, 100));
        thread.free(100);
    });
    assert_eq!(world.charged(), (100, 0));
    assert_eq!(world.peaks(), (100, 100));
    drop(world.levels.without_stocks(world.usage()));
    assert_eq!(world.charged(), (0, 0));
}

#[test]
fn stocks_of_others_serve_a_charge_at_the_limit_or_peak() {
    for limit in [100, NO_LIMIT] {
        let world = World::after(100, limit);
        world.as_thread(|thread| {
            thread.charge(100).unwrap();
            thread.free(60);
        });
        thread::scope(|scope| {
            let charging = || world.as_thread(|thread| (thread.charge(60), thread.charge(1)));
            let full = if limit == 100 { Err(Full::Process) } else { Ok(()) };
            assert_eq!(scope.spawn(charging).join().unwrap(), (Ok(()), full));
        });
        let now = 100 + u64::from(limit == NO_LIMIT);
        assert_eq!(world.charged(), (now, now));
        assert_eq!(world.peaks(), (now, now));
        assert!(Stocks::of(world.usage()).are_closed());
    }
}

#[test]
fn lowered_limit_holds_for_charges_from_stocks() {
    let world = World::after(100, NO_LIMIT);
    world.as_thread(|thread| {
        thread.charge(100).unwrap();
        thread.free(30);
        world.control.devices[0].memory_limit.store(80, Relaxed);
        assert_eq!(thread.charge(11), Err(Full::Device(0)));
        assert_eq!(world.charged(), (70, 70));
        thread.charge(10).unwrap();
    });
    assert_eq!(world.peaks(), (100, 100));
}

#[test]
fn reset_peak_excludes_stocks() {
    let world = World::after(100, NO_LIMIT);
    world.as_thread(|thread| {
        thread.charge(100).unwrap();
        thread.free(60);
        world.control.devices[0].peak_generation.store(1, Relaxed);
        world.control.peak_generation.store(1, Relaxed);
        thread.charge(5).unwrap();
        assert_eq!(world.peaks(), (45, 45));
        thread.free(5);
        assert!(world.open());
        thread.charge(5).unwrap();
        thread.free(5);
        thread.charge(4).unwrap();
        thread.charge(2).unwrap();
    });
    assert_eq!(world.peaks(), (46, 46));
}

#[test]
fn frequent_frees_open_stocks_and_growth_closes_them() {
    let world = World::new(NO_LIMIT);
    world.as_thread(|thread| {
        thread.charge(10).unwrap();
        let nr_open = (0..4 * FREES).filter(|_| {
            thread.charge(1).unwrap();
            thread.free(1);
            Stocks::of(world.usage()).are_open()
        });
        assert!(nr_open.count() as u64 > 2 * FREES);
        thread.charge(2).unwrap();
        assert!(Stocks::of(world.usage()).are_closed());
    });
    assert_eq!(world.charged(), (12, 12));
    assert_eq!(world.peaks(), (12, 12));
}

#[test]
fn second_device_ends_stocks() {
    let world = World::after(100, 100);
    let usage = world.usage();
    world.as_thread(|thread| {
        thread.charge(100).unwrap();
        thread.free(60);
        assert_eq!(
            world.levels.try_charge(usage, world.control, 1, 61),
            Err(Full::Process)
        );
        assert_eq!(world.levels.try_charge(usage, world.control, 1, 60), Ok(()));
        assert_eq!(world.charged(), (40, 40));
        thread.free(40);
        assert_eq!(world.charged(), (0, 0));
        assert!(!world.open());
    });
    assert_eq!(world.levels.sum(usage), 60);
    assert_eq!(world.peaks(), (100, 100));
}

#[test]
fn granted_bytes_are_not_kept() {
    let world = World::after(100, NO_LIMIT);
    let granted = &world.usage().devices[0].memory_granted;
    world.as_thread(|thread| {
        thread.charge(100).unwrap();
        thread.free(30);
        granted.store(100, Relaxed);
        thread.free(20);
        assert_eq!(world.charged(), (80, 50));
        thread.charge(5).unwrap();
        assert_eq!(world.charged(), (55, 55));
        assert!(!world.open());
        granted.store(NO_LIMIT, Relaxed);
        assert!(world.open());
        thread.free(55);
        assert_eq!(world.charged(), (55, 0));
    });
    // A thread that makes no call is covered by the helper.
    world.levels.review_stocks(world.usage(), world.control);
    assert_eq!(world.charged(), (55, 0));
    granted.store(70, Relaxed);
    world.levels.review_stocks(world.usage(), world.control);
    assert_eq!(world.charged(), (0, 0));
}

#[test]
fn stocks_stay_closed_for_a_daemon_without_them() {
    let world = World::after(100, NO_LIMIT);
    world.as_thread(|thread| {
        thread.charge(100).unwrap();
        thread.free(60);
    });
    world.control.knows_stocks.store(0, Relaxed);
    world.levels.review_stocks(world.usage(), world.control);
    assert_eq!(world.charged(), (40, 40));
    assert!(!world.open());
}

#[test]
fn stock_of_an_ended_thread_passes_to_the_next_in_its_slot() {
    let world = World::after(100, NO_LIMIT);
    thread::scope(|scope| {
        let body = || {
            world.as_thread(|thread| {
                thread.charge(100).unwrap();
                thread.free(60);
            });
        };
        scope.spawn(body).join().unwrap();
    });
    assert_eq!(world.charged(), (100, 40));
    world.as_thread(|thread| thread.charge(60).unwrap());
    assert_eq!(world.charged(), (100, 100));
    assert_eq!(world.peaks(), (100, 100));
}

#[test]
fn stock_never_exceeds_its_maximum() {
    let most = u64::from(MOST_STOCK);
    let world = World::after(4 * most, NO_LIMIT);
    world.as_thread(|thread| {
        thread.charge(4 * most).unwrap();
        thread.free(most - 1);
        thread.free(2);
        thread.free(most + 1);
        thread.free(u64::from(u32::MAX) + 2);
    });
    assert_eq!(world.usage().threads[0].stock.load(Relaxed), MOST_STOCK - 1);
}

/// Random charges and frees by several threads: at each moment the charged bytes are within the limit and the
/// peak, and the reported peak was reached.
#[test]
fn racing_threads_keep_the_limit_and_an_exact_peak() {
    const LIMIT: u64 = 300;
    let mut nr_refused = 0;
    for round in 0..12 {
        let limit = if round % 3 == 0 { NO_LIMIT } else { LIMIT };
        let world = World::new(limit);
        // Lower and upper bound of what is charged, and the highest value of each.
        let (least, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let peaks = [AtomicU64::new(0), AtomicU64::new(0)];
        let raise = |at: usize, sum: u64| peaks[at].fetch_max(sum, SeqCst);
        let (refused, barrier) = (AtomicU64::new(0), Barrier::new(4));
        let churn = |number: u64| {
            barrier.wait();
            world.as_thread(|thread| {
                let mut random = number + 7 * round + 1;
                let mut held = Vec::new();
                let free = |bytes| {
                    least.fetch_sub(bytes, SeqCst);
                    thread.free(bytes);
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
                    if thread.charge(bytes).is_ok() {
                        let now = least.fetch_add(bytes, SeqCst) + bytes;
                        raise(0, now);
                        assert!(now <= limit, "{now} are charged");
                        held.push(bytes);
                    } else {
                        most.fetch_sub(bytes, SeqCst);
                        refused.fetch_add(1, Relaxed);
                    }
                }
                held.into_iter().for_each(free);
            });
        };
        let churn = &churn;
        thread::scope(|scope| {
            let threads = [0, 1, 2, 3].map(|number| scope.spawn(move || churn(number)));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let [least, most] = peaks.each_ref().map(|peak| peak.load(Relaxed));
        let (on_device, whole) = world.peaks();
        assert_eq!(on_device, whole);
        assert!(
            least <= whole && whole <= most.min(limit),
            "{least} {whole} {most}"
        );
        assert_eq!(world.charged().1, 0, "everything was freed");
        nr_refused += refused.load(Relaxed);
        // One thread can use all of it.
        world.open();
        if limit == LIMIT {
            world.as_thread(|thread| {
                assert_eq!(thread.charge(LIMIT + 1), Err(Full::Process));
                thread.charge(LIMIT).unwrap();
            });
            assert_eq!(world.charged(), (LIMIT, LIMIT));
        }
    }
    assert!(nr_refused > 0, "no charge reached the limit");
}

/// Threads free and charge while stocks are opened and closed: no byte is lost or counted twice, and stocks
/// are empty after they were closed.
#[test]
fn bytes_kept_while_stocks_close_are_not_lost() {
    let world = World::after(200, NO_LIMIT);
    let (rounds, done, barrier) = (
        [const { AtomicU64::new(0) }; 2],
        AtomicBool::new(false),
        Barrier::new(3),
    );
    let kept = || -> u32 {
        let threads = world.usage().used_threads();
        threads.map(|thread| thread.stock.load(SeqCst)).sum()
    };
    thread::scope(|scope| {
        for round in &rounds {
            let (world, barrier, done) = (&world, &barrier, &done);
            scope.spawn(move || {
                world.as_thread(|thread| {
                    barrier.wait();
                    while !done.load(SeqCst) {
                        let bytes = round.fetch_add(1, SeqCst) % 100 + 1;
                        thread.charge(bytes).unwrap();
                        thread.free(bytes);
                    }
                });
            });
        }
        barrier.wait();
        let pass = |times: u64| {
            let seen = rounds.each_ref().map(|round| round.load(SeqCst));
            while rounds
                .iter()
                .zip(seen)
                .any(|(round, seen)| round.load(SeqCst) < seen + times)
            {
                thread::yield_now();
            }
        };
        let mut is_right = true;
        for _ in 0..60 {
            world.control.knows_stocks.store(1, Relaxed);
            world.open();
            pass(1);
            world.control.knows_stocks.store(0, Relaxed);
            world.levels.review_stocks(world.usage(), world.control);
            pass(2);
            is_right &= kept() == 0 && world.charged().1 <= 200;
        }
        // Before the assertion, or the other threads would never end.
        done.store(true, SeqCst);
        assert!(is_right);
    });
    assert_eq!((world.charged(), kept()), ((0, 0), 0));
}
