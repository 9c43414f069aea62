//! Stocks: bytes that threads have uncharged and keep, while another thread closes the stocks.

use std::sync::Arc;

use crate::{check, needed, zeroed};
use gcgroup_abi::sync::Ordering::{Relaxed, SeqCst};
use gcgroup_abi::{Kept, NO_LIMIT, Stock, Stocks, Usage, UsageDevice, uncharge};
use loom::sync::Mutex;
use loom::thread;

/// Size of an allocation, bytes.
const BYTES: u64 = 10;

struct World {
    usage: Arc<Usage>,
    /// Held while stocks are opened or closed (`Doors` in `hook/src/memory/levels/stock.rs`).
    keys: Mutex<()>,
}

impl World {
    /// Creates one thread with `kept` of the `charged` bytes in its stock; the peak is `charged`.
    fn new(charged: u64, kept: u32) -> Arc<Self> {
        // SAFETY: atomics only.
        let usage: Arc<Usage> = unsafe { zeroed() };
        usage.nr_threads.store(1, Relaxed);
        let [device, ..] = &usage.devices;
        device.memory_current.store(charged, Relaxed);
        device.memory_peak.store(charged, Relaxed);
        usage.memory_peak.store(charged, Relaxed);
        usage.stocks.store(0, Relaxed);
        Stocks::open(&usage, 0);
        let [thread, ..] = &usage.threads;
        thread.stock.store(kept, Relaxed);
        Arc::new(Self {
            usage,
            keys: Mutex::new(()),
        })
    }

    fn device(&self) -> &UsageDevice {
        let [device, ..] = &self.usage.devices;
        device
    }

    fn stock(&self) -> Stock<'_> {
        let [thread, ..] = &self.usage.threads;
        Stock::of(thread)
    }

    /// Frees like `Levels::give`.
    fn free(&self, takes_out: bool) {
        if !Stocks::of(&self.usage).are_open() {
            return uncharge(&self.device().memory_current, BYTES);
        }
        match self.stock().keep(&self.usage, BYTES) {
            Kept::Kept => {}
            Kept::Full => uncharge(&self.device().memory_current, BYTES),
            Kept::Closed if !takes_out => {}
            Kept::Closed => {
                let _keys = self.keys.lock().unwrap();
                if !Stocks::of(&self.usage).are_open() {
                    uncharge(&self.device().memory_current, self.stock().empty());
                }
            }
        }
    }

    /// Returns the charged bytes after all threads have ended and stocks are closed.
    fn charged(&self) -> u64 {
        assert!(Stocks::of(&self.usage).are_closed());
        assert_eq!(
            self.usage.threads[0].stock.load(Relaxed),
            0,
            "closed stocks are empty"
        );
        self.device().memory_current.load(Relaxed)
    }
}

/// A thread frees while another closes the stocks.
fn keep_and_close(
    close: impl Fn(&World) + Send + Sync + Copy + 'static,
    takes_out: bool,
) -> impl Fn() + Send + Sync {
    move || {
        let world = World::new(BYTES, 0);
        let freeing = world.clone();
        let thread = thread::spawn(move || freeing.free(takes_out));
        {
            let _keys = world.keys.lock().unwrap();
            close(&world);
        }
        thread.join().unwrap();
        assert_eq!(world.charged(), 0, "what was freed is charged no more");
    }
}

fn close(world: &World) {
    Stocks::close(&world.usage);
}

#[test]
fn closed_stocks_keep_nothing() {
    assert_eq!(
        needed(keep_and_close(close, true)),
        [
            "stock.rs: Self(usage.stocks.load(SeqCst))",
            "stock.rs: match self.0.load(SeqCst) {",
            "stock.rs: sum.is_some_and(|sum| self.0.compare_exchange(now, sum, SeqCst, Relaxed).is_ok())",
            "stock.rs: usage.stocks.fetch_add(STEP, SeqCst);",
        ]
    );
}

#[test]
#[should_panic(expected = "closed stocks are empty")]
fn thread_that_does_not_check_again_is_found() {
    check(keep_and_close(close, false));
}

#[test]
#[should_panic(expected = "closed stocks are empty")]
fn stocks_emptied_before_closing_are_found() {
    let late = |world: &World| {
        uncharge(&world.device().memory_current, world.stock().empty());
        world.usage.stocks.fetch_add(3 << 8, SeqCst);
    };
    check(keep_and_close(late, true));
}

/// Signature of `Stock::charge`, for variants that leave something out.
type Charge = fn(&World, Stocks) -> bool;

fn charge(world: &World, seen: Stocks) -> bool {
    world
        .stock()
        .charge(&world.usage, world.device(), seen, BYTES, NO_LIMIT)
}

/// A thread charges from its stock while another closes the stocks and resets the peak to what is charged
/// then.
fn charge_and_begin_peak(charge: Charge) -> impl Fn() + Send + Sync {
    move || {
        let kept = 2 * u32::try_from(BYTES).unwrap();
        let world = World::new(2 * BYTES, kept);
        let charging = world.clone();
        let thread = thread::spawn(move || {
            let seen = Stocks::of(&charging.usage);
            seen.are_open_for(0) && charge(&charging, seen)
        });
        {
            let _keys = world.keys.lock().unwrap();
            Stocks::close(&world.usage);
            let charged = world.device().memory_current.load(SeqCst);
            world.device().memory_peak.store(charged, Relaxed);
            world.usage.memory_peak.store(charged, Relaxed);
        }
        let is_charged = thread.join().unwrap();
        let charged = if is_charged { BYTES } else { 0 };
        assert_eq!(world.charged(), charged, "what is charged and nothing more");
        assert!(
            world.device().memory_peak.load(Relaxed) >= charged,
            "the peak has it"
        );
    }
}

#[test]
fn charge_from_a_stock_is_in_the_reset_peak() {
    // Holds for all orderings: a stock is taken from and emptied by read-modify-writes of one word.
    check(charge_and_begin_peak(charge));
}

/// Takes from the stock without a read-modify-write.
fn charge_in_two_steps(world: &World, _: Stocks) -> bool {
    let stock = &world.usage.threads[0].stock;
    let now = stock.load(Relaxed);
    if u64::from(now) < BYTES {
        return false;
    }
    stock.store(now - u32::try_from(BYTES).unwrap(), Relaxed);
    true
}

#[test]
#[should_panic(expected = "what is charged and nothing more")]
fn charge_from_a_stock_in_two_steps_is_found() {
    check(charge_and_begin_peak(charge_in_two_steps));
}
