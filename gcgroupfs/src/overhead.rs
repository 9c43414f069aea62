//! What processes hold on the devices beyond their own ledgers (contexts, modules, what the driver keeps for them):
//! measured, since no call tells. The same looks tell whether processes use the devices as they claim (`evidence`).
//!
//! The hook charges before the driver is asked and uncharges after it has freed, so a ledger never has less than the
//! device. A sample counts only if the ledger stood still while it was taken; what it shows beyond the ledger then is
//! no allocation under way. Otherwise what was found before holds on. A sample may show too little, when much is charged
//! that the driver has not made yet; so the greater of two counts.

mod claims;
mod evidence;
mod newcomers;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use gcgroup_abi::{Allocations, Kind, OTHER_DEVICE, Stocks, Usage, UsageDevice};

use self::claims::{Claim, Unconfirmed};
use self::evidence::{Claims, Driver};
use self::newcomers::Newcomers;
use crate::audit::Audit;
use crate::tree::{Blocks, Device, Evidence, Listener, Notice, ProcessId, Sight, Tree};

/// How often everybody is looked at, while there is anybody.
const PERIOD: Duration = Duration::from_secs(1);
/// The time from one look to the next when something rang, and the least ever.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a device is looked at while somebody waits for room there.
const PRESSED_PAUSE: Duration = Duration::from_millis(10);

/// What is known of who holds how much on a device.
pub trait Source: Send {
    /// Bytes by pid (as the daemon sees pids), `None` where only that the process is there is known; nothing if the
    /// device cannot be asked, or what it says cannot be trusted.
    fn held(&self, device: usize) -> Option<HashMap<u32, Option<u64>>>;

    /// Whether `held` has everybody who is on a device, or nobody.
    fn sees_everybody(&self) -> bool {
        false
    }

    /// The pids of those that have done anything on a device since so long ago; nothing if it does not say.
    fn active(&self, _device: usize, _since: Duration) -> Option<HashSet<u32>> {
        None
    }

    /// Bytes that nobody holds; nothing if the device cannot be asked.
    fn free(&self, _device: usize) -> Option<u64> {
        None
    }

    /// Devices that have appeared since this was asked last, in the order in which they are numbered.
    fn new_devices(&mut self) -> Vec<Device> {
        Vec::new()
    }
}

/// Begins to measure, on a thread of its own that lasts as long as the daemon.
///
/// # Errors
/// No thread is to be had.
pub fn watch(tree: Arc<Tree>, mut source: impl Source + 'static) -> io::Result<()> {
    let (sender, receiver) = sync_channel(1);
    tree.listen(Arc::new(Ear(sender)));
    thread::Builder::new()
        .name("overhead".to_owned())
        .spawn(move || run(&tree, &mut source, &receiver))?;
    Ok(())
}

/// Hears when there may be something new to measure: a context that was made, a process that came with some, somebody who
/// wants to know.
#[derive(Debug)]
struct Ear(SyncSender<()>);

impl Listener for Ear {
    fn notice(&self, notice: &Notice) {
        if matches!(
            notice,
            Notice::Joined { .. } | Notice::Rung(_) | Notice::AuditAsked | Notice::DevicesAsked
        ) {
            // Full: it will look anyway.
            let _ = self.0.try_send(());
        }
    }
}

fn run(tree: &Tree, source: &mut impl Source, woken: &Receiver<()>) {
    let mut samples = Samples::default();
    let mut newcomers = Newcomers::default();
    loop {
        newcomers.look(tree, source);
        let next = samples.take(tree, source);
        if rest(tree, source) {
            continue;
        }
        // The other end lasts as long as the tree.
        match next {
            None => {
                let _ = woken.recv();
            }
            Some(next) => {
                let _ = woken.recv_timeout(next);
            }
        }
        relieve(tree, source);
    }
}

/// Waits until the next look, and while somebody waits for room on a device, up to a second. Whether somebody still does.
fn rest(tree: &Tree, source: &impl Source) -> bool {
    let began = Instant::now();
    while relieve(tree, source) {
        if began.elapsed() >= PERIOD {
            return true;
        }
        thread::sleep(PRESSED_PAUSE);
    }
    thread::sleep(PAUSE.saturating_sub(began.elapsed()));
    false
}

/// Deals with requests for room by what the devices say now. Whether there are any.
fn relieve(tree: &Tree, source: &impl Source) -> bool {
    let devices = tree.pressed_devices();
    for device in &devices {
        let sight = Sight {
            free: source.free(*device),
            held: source.held(*device),
        };
        tree.relieve(*device, &sight, Instant::now());
    }
    !devices.is_empty()
}

#[derive(Debug, Default)]
struct Samples {
    /// What each process was last found to hold beyond its ledger, by device.
    last: HashMap<(ProcessId, usize), u64>,
    claims: Claims,
    unconfirmed: Unconfirmed,
    audit: Audit,
    /// How often an audit had been asked for when it was last looked.
    asked: u64,
    /// When counts were last written down.
    written: Option<Instant>,
}

impl Samples {
    /// Measures everybody once, and notes who uses a device past the hooks. When to look again,
    /// if not only when somebody rings.
    fn take(&mut self, tree: &Tree, source: &impl Source) -> Option<Duration> {
        let (processes, asked) = (tree.ledgers(), tree.nr_audits_asked());
        let there: HashSet<ProcessId> = processes.iter().map(|(id, ..)| *id).collect();
        self.last.retain(|(id, _), _| there.contains(id));
        self.claims.retain(|id| there.contains(&id));
        self.unconfirmed.retain(&there);
        if processes.is_empty() && asked == self.asked {
            return None;
        }
        let can_tell = self.audit.can_tell();
        for device in 0..tree.nr_devices() {
            let before: Vec<_> = processes
                .iter()
                .map(|(.., blocks)| {
                    (
                        Ledger::of(blocks.usage(), device),
                        Claim::of(blocks.usage(), device),
                    )
                })
                .collect();
            let claims: Vec<_> = processes
                .iter()
                .map(|(id, _, blocks)| evidence::Claim::of(tree, *id, blocks.as_ref(), device))
                .collect();
            let held = source.held(device);
            let (now, driver) = (Instant::now(), Driver::new(tree, source, device, held.as_ref()));
            for ((id, pid, _), claim) in processes.iter().zip(claims) {
                let Some(claim) = claim else { continue };
                let evidence = self.claims.judge(now, (*id, *pid), &claim, &driver);
                tree.set_evidence(*id, device, evidence);
                if evidence == Evidence::Refuted && claim.claims_now {
                    self.audit.claims_use(*pid, device, driver.bytes(*pid));
                }
            }
            let Some(held) = held else {
                continue;
            };
            let mut shown = Vec::new();
            for ((id, pid, blocks), (before, claimed)) in processes.iter().zip(before) {
                let there = held.get(pid).copied();
                if there == Some(None) {
                    continue;
                }
                let (there, claims) = (there.flatten(), [claimed, Claim::of(blocks.usage(), device)]);
                let beyond = self
                    .unconfirmed
                    .note((*id, device), claims, there, Instant::now());
                if let Some(beyond) = beyond {
                    self.audit.claims_more(*pid, device, beyond);
                }
                // Who is not there holds nothing.
                let held = there.unwrap_or(0);
                shown.push((*id, held));
                let found = self.settle(tree, *id, blocks.as_ref(), device, held, before);
                let contexts = nr_contexts(blocks.usage(), device);
                self.audit.beyond_ledger(*pid, device, found, contexts);
            }
            tree.show_held(device, &shown);
            // Looked for after the device was asked: a process registers before it uses one.
            let strangers = held.iter().filter(|(pid, _)| tree.find(**pid).is_none());
            for (pid, bytes) in strangers.filter(|_| can_tell) {
                self.audit.no_hook(*pid, device, *bytes);
            }
        }
        tree.look_at(processes.iter().map(|(id, ..)| *id));
        if self.written.is_none_or(|when| when.elapsed() >= PERIOD) {
            tree.write_some_counts();
            self.written = Some(Instant::now());
        }
        let found = self.audit.take();
        if !can_tell {
            return Some(PAUSE);
        }
        tree.set_unmanaged(found, asked);
        self.asked = asked;
        (!processes.is_empty()).then_some(PERIOD)
    }

    /// Has what the process holds beyond its ledger charged. Gives what it holds so for certain: the lesser of two samples.
    fn settle(
        &mut self,
        tree: &Tree,
        id: ProcessId,
        blocks: &dyn Blocks,
        device: usize,
        held: u64,
        before: Option<Ledger>,
    ) -> u64 {
        let last = self.last.get(&(id, device)).copied().unwrap_or(0);
        let after = Ledger::of(blocks.usage(), device);
        let (Some(ledger), Some(control)) = (
            before.filter(|before| before.is_settled() && Some(*before) == after),
            blocks.control().devices.get(device),
        ) else {
            return last;
        };
        let known = control.memory_overhead.load(Relaxed);
        let found = ledger.overhead(held, known);
        if found == 0 {
            self.last.remove(&(id, device));
        } else {
            self.last.insert((id, device), found);
        }
        let overhead = found.max(last);
        if overhead != known {
            tree.set_overhead(id, device, overhead);
        }
        found.min(last)
    }
}

/// Contexts that the process says it has on a device, with those on devices that it does not know by number.
fn nr_contexts(usage: &Usage, device: usize) -> u64 {
    [device, OTHER_DEVICE]
        .into_iter()
        .filter_map(|slot| usage.devices.get(slot))
        .map(|slot| u64::from(slot.nr_contexts.load(Relaxed)))
        .sum()
}

/// A process's own account of a device, by its own word: compared and subtracted, and nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ledger {
    charged: u64,
    /// Charged, but on the device only as far as it has been used there.
    managed: u64,
    /// Each moves before bytes are uncharged that the device does not hold any more, so a ledger that seems to have stood
    /// still has.
    counts: [u64; 4],
    unsettled: u64,
    unsettled_threads: u64,
    /// Whether threads keep what they uncharge. While that changes, it cannot be told what is charged.
    stocks: Option<Stocks>,
}

impl Ledger {
    /// With what the process has charged to devices that it does not know by number, before a daemon told it: it may be
    /// this one's.
    fn of(usage: &Usage, device: usize) -> Option<Self> {
        let slots = [usage.devices.get(device)?, usage.devices.get(OTHER_DEVICE)?];
        // Bytes move from the second to the first: read last, so that none is missed on its way.
        let sum = |word: fn(&UsageDevice) -> &AtomicU64| {
            let word = |slot: &&UsageDevice| word(slot).load(Acquire);
            slots.iter().rev().map(word).fold(0, u64::wrapping_add)
        };
        fence(SeqCst);
        let stocks = Stocks::of(usage);
        let charged = [OTHER_DEVICE, device]
            .map(|slot| usage.memory_current(slot))
            .into_iter()
            .fold(0, u64::wrapping_add);
        let [other, here] = [OTHER_DEVICE, device].map(|slot| usage.allocations(slot));
        let both = |of: fn(&Allocations) -> u64| of(&other).wrapping_add(of(&here));
        let ledger = Self {
            charged,
            managed: both(|counts| counts.kinds[Kind::Managed as usize]),
            counts: [
                both(|counts| counts.nr_alloc),
                both(|counts| counts.nr_free),
                both(|counts| counts.nr_unsettled),
                sum(|slot| &slot.nr_alloc_fail),
            ],
            unsettled: sum(|slot| &slot.unsettled),
            unsettled_threads: both(|counts| counts.unsettled_threads),
            stocks: Some(stocks).filter(|stocks| stocks.are_settled() && stocks.are_still(usage)),
        };
        fence(SeqCst);
        Some(ledger)
    }

    /// Whether no call is under way that may have made the device hold more than is charged.
    fn is_settled(&self) -> bool {
        self.unsettled & u64::from(u32::MAX) == 0 && self.unsettled_threads == 0 && self.stocks.is_some()
    }

    /// What is held beyond it, of `held` bytes in all. How much of its managed memory is there nobody says, so what was
    /// known is kept where it can still be so.
    fn overhead(&self, held: u64, known: u64) -> u64 {
        let least = held.saturating_sub(self.charged);
        let most = held.saturating_sub(self.charged.saturating_sub(self.managed));
        known.min(most).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fixture::World;
    use gcgroup_abi::Thread;

    /// Says that process 100 holds so much, after having it do something.
    struct Says<F>(Option<u64>, F);

    impl<F: Fn() + Send> Source for Says<F> {
        fn held(&self, _: usize) -> Option<HashMap<u32, Option<u64>>> {
            (self.1)();
            Some(HashMap::from([(100, self.0)]))
        }
    }

    const NOTHING: fn() = || ();

    /// What is shown after two samples.
    fn overhead(world: &World, source: &impl Source) -> String {
        let mut samples = Samples::default();
        samples.take(&world.tree, source).unwrap();
        samples.take(&world.tree, source).unwrap();
        let stat = world.show("100/0/memory.stat");
        let line = stat.lines().find(|line| line.starts_with("context "));
        line.unwrap_or_default().to_owned()
    }

    #[test]
    fn what_is_held_beyond_the_ledger_is_the_contexts() {
        let world = World::new(1);
        let id = world.join(100);
        let current = &world.usage(id).devices[0].memory_current;
        current.store(70, Relaxed);
        assert_eq!(overhead(&world, &Says(Some(100), NOTHING)), "context 30");
        assert_eq!(world.show("100/memory.current"), "100\n");
        assert_eq!(
            overhead(&world, &Says(None, NOTHING)),
            "context 30",
            "nobody can say"
        );
        current.store(170, Relaxed);
        assert_eq!(overhead(&world, &Says(Some(100), NOTHING)), "context 0");
        assert_eq!(world.show("100/memory.peak"), "200\n");
        assert_eq!(overhead(&world, &Says(Some(190), NOTHING)), "context 20");
        assert_eq!(
            overhead(&world, &Says(Some(0), NOTHING)),
            "context 0",
            "it has left the device"
        );
        assert_eq!(world.show("100/memory.peak"), "200\n", "a peak never falls");
    }

    #[test]
    fn a_sample_that_something_happened_during_counts_for_nothing() {
        let world = World::new(1);
        let id = world.join(100);
        let usage = world.usage(id);
        let device = &usage.devices[0];
        assert_eq!(overhead(&world, &Says(Some(30), NOTHING)), "context 30");
        type Word = fn(&gcgroup_abi::UsageDevice) -> &std::sync::atomic::AtomicU64;
        let moved: [Word; 5] = [
            |device| &device.memory_current,
            |device| &device.nr_alloc,
            |device| &device.nr_free,
            |device| &device.nr_alloc_fail,
            |device| &device.unsettled,
        ];
        for word in moved {
            let held = world.usage(id);
            let meanwhile = move || {
                word(&held.devices[0]).fetch_add(1 << 32, Relaxed);
            };
            assert_eq!(overhead(&world, &Says(Some(5 << 32), meanwhile)), "context 30");
        }
        usage.nr_threads.store(1, Relaxed);
        let own: [fn(&Thread) -> &AtomicU64; 2] = [|slot| &slot.nr_alloc, |slot| &slot.nr_free];
        for word in own {
            let held = world.usage(id);
            let meanwhile = move || {
                word(&held.threads[0]).fetch_add(1, Relaxed);
            };
            assert_eq!(overhead(&world, &Says(Some(6 << 32), meanwhile)), "context 30");
        }
        device.memory_current.store(8, Relaxed);
        device.unsettled.fetch_add((1 << 32) + 1, Relaxed);
        assert_eq!(
            overhead(&world, &Says(Some(5000), NOTHING)),
            "context 30",
            "a call is under way"
        );
        device.unsettled.fetch_sub(1, Relaxed);
        usage.threads[0].unsettled.store(1, Relaxed);
        assert_eq!(overhead(&world, &Says(Some(5000), NOTHING)), "context 30");
        let held = world.usage(id);
        let meanwhile = move || {
            held.threads[0].unsettled.fetch_add(2, Relaxed);
        };
        usage.threads[0].unsettled.store(2, Relaxed);
        assert_eq!(overhead(&world, &Says(Some(5000), meanwhile)), "context 30");
        assert_eq!(overhead(&world, &Says(Some(5000), NOTHING)), "context 4992");
    }

    #[test]
    fn what_threads_keep_is_not_charged_and_nothing_is_measured_while_that_changes() {
        let world = World::new(1);
        let id = world.join(100);
        let usage = world.usage(id);
        usage.nr_threads.store(1, Relaxed);
        usage.devices[0].memory_current.store(100, Relaxed);
        usage.threads[0].stock.store(60, Relaxed);
        Stocks::open(&usage, 0);
        assert_eq!(overhead(&world, &Says(Some(70), NOTHING)), "context 30");
        let held = world.usage(id);
        let close = move || Stocks::close(&held);
        let mut samples = Samples::default();
        samples.take(&world.tree, &Says(Some(500), close));
        assert_eq!(world.control(id).devices[0].memory_overhead.load(Relaxed), 30);
        assert_eq!(overhead(&world, &Says(Some(50), NOTHING)), "context 10");
    }

    #[test]
    fn what_was_charged_before_there_was_a_daemon_is_no_context() {
        let world = World::new(1);
        let id = world.join(100);
        let other = &world.usage(id).devices[OTHER_DEVICE];
        other.memory_current.store(70, Relaxed);
        assert_eq!(overhead(&world, &Says(Some(100), NOTHING)), "context 30");
    }

    #[test]
    fn the_greater_of_two_samples_counts() {
        let world = World::new(1);
        let id = world.join(100);
        let mut samples = Samples::default();
        for (held, shown) in [(30, 30), (20, 30), (20, 20), (50, 50), (0, 50), (0, 0)] {
            samples.take(&world.tree, &Says(Some(held), NOTHING));
            assert_eq!(world.control(id).devices[0].memory_overhead.load(Relaxed), shown);
        }
        world.tree.leave(id, 0);
        assert!(samples.take(&world.tree, &Says(Some(1), NOTHING)).is_none());
        assert!(samples.last.is_empty());
    }

    /// Lists these, and none but these.
    struct Lists<'a>(&'a [u32]);

    impl Source for Lists<'_> {
        fn held(&self, _: usize) -> Option<HashMap<u32, Option<u64>>> {
            Some(self.0.iter().map(|pid| (*pid, Some(5))).collect())
        }

        fn sees_everybody(&self) -> bool {
            true
        }
    }

    #[test]
    fn who_claims_to_use_a_device_and_is_not_listed_is_refuted_until_it_is() {
        let world = World::new(1);
        let (liar, idle) = (world.join(100), world.join(101));
        let claims = |nr_contexts| {
            world.usage(liar).devices[0]
                .nr_contexts
                .store(nr_contexts, Relaxed)
        };
        let mut samples = Samples::default();
        let mut look = |listed: &[u32]| {
            samples.take(&world.tree, &Lists(listed));
            [liar, idle].map(|id| world.tree.evidence(id, 0))
        };
        assert_eq!(look(&[101]), [Evidence::Unknown, Evidence::Confirmed]);
        claims(1);
        assert_eq!(look(&[]), [Evidence::Confirmed; 2], "an empty list says nothing");
        assert_eq!(look(&[7]), [Evidence::Confirmed; 2], "nor does one of strangers");
        assert_eq!(look(&[101]), [Evidence::Refuted, Evidence::Confirmed]);
        claims(0);
        assert_eq!(look(&[101])[0], Evidence::Refuted, "it may claim again at once");
        claims(1);
        assert_eq!(look(&[100, 101])[0], Evidence::Confirmed);
        claims(0);
        assert_eq!(look(&[101])[0], Evidence::Unknown, "its context has gone");
        world.submit(liar, 0, 1);
        world.usage(liar).devices[0].busy_since.store(1, Relaxed);
        assert_eq!(look(&[100])[0], Evidence::Confirmed);
    }

    #[test]
    fn a_short_claim_between_two_looks_is_refuted_too() {
        let world = World::new(1);
        let (liar, _) = (world.join(100), world.join(101));
        let waiting = &world.usage(liar).devices[0].nr_waiting;
        waiting.store(1, Relaxed);
        world.tree.arbitrate(|tree| tree.seen(5, 0, |_| false));
        waiting.store(0, Relaxed);
        let mut samples = Samples::default();
        samples.take(&world.tree, &Lists(&[101]));
        assert_eq!(world.tree.evidence(liar, 0), Evidence::Refuted);
    }

    #[test]
    fn managed_memory_that_is_not_on_the_device_does_not_hide_a_context() {
        let ledger = |charged, managed| Ledger {
            charged,
            managed,
            counts: [0; 4],
            unsettled: 0,
            unsettled_threads: 0,
            stocks: None,
        };
        assert_eq!(ledger(1000, 1000).overhead(64, 64), 64, "none of it is there");
        assert_eq!(ledger(1000, 1000).overhead(564, 64), 64, "a part");
        assert_eq!(ledger(1000, 1000).overhead(1064, 0), 64, "at least");
        assert_eq!(ledger(1000, 400).overhead(650, 64), 50, "at most");
        assert_eq!(ledger(u64::MAX, 0).overhead(650, 64), 0);
        assert_eq!(ledger(0, u64::MAX).overhead(650, 64), 650);
    }
}
