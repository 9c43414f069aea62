//! The arbiter's thread. It sleeps until it is notified, or until the time of the next tick.
//!
//! When work begins, the gates of other processes must close at once, because what passes them meanwhile
//! delays that work. So the thread that receives a ring runs the tick itself, and only timed ticks are left
//! to the arbiter's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::prctl;
use parking_lot::{Condvar, Mutex};
use tracing::{error, info};

use crate::host::now;
use gcgroupfs_model::arbiter::{Next, Settings, State, Time};
use gcgroupfs_model::tree::{Listener, Notice, Opened, ProcessId, Tree};
use gcgroupfs_sys::wake_all;

/// Nanoseconds until the next tick after a panic.
const PAUSE: u64 = 1_000_000_000;

/// Nanoseconds since the last tick within which a ring is left to the arbiter's thread. So processes that
/// ring often occupy the receiving thread for only part of its time.
const OFTEN: u64 = 200_000;

/// Notifications since the last tick.
#[derive(Debug, Default)]
struct Told {
    has_news: bool,
    watched: Vec<ProcessId>,
    settings: Option<Settings>,
    is_over: bool,
}

#[derive(Debug, Default)]
struct Slate {
    told: Told,
    /// Time of the next tick without notification. Written with the desk locked.
    next: Option<Time>,
}

/// State kept from tick to tick.
#[derive(Debug)]
struct Desk {
    state: State,
    last: Time,
}

/// Notifies the arbiter.
#[derive(Debug)]
pub struct Bell {
    tree: Weak<Tree>,
    /// `None` once the arbiter has stopped.
    desk: Mutex<Option<Desk>>,
    slate: Mutex<Slate>,
    rung: Condvar,
}

impl Bell {
    fn new(tree: &Arc<Tree>, settings: Settings) -> Self {
        let desk = Desk {
            state: State::new(settings),
            last: 0,
        };
        Self {
            tree: Arc::downgrade(tree),
            desk: Mutex::new(Some(desk)),
            slate: Mutex::default(),
            rung: Condvar::new(),
        }
    }

    /// Replaces the settings.
    pub fn set(&self, settings: Settings) {
        self.tell(|told| told.settings = Some(settings));
    }

    fn tell(&self, what: impl FnOnce(&mut Told)) {
        let mut slate = self.slate.lock();
        what(&mut slate.told);
        slate.told.has_news = true;
        drop(slate);
        self.rung.notify_one();
    }

    /// Waits for a notification, or until it is time for a tick.
    fn wait(&self) -> Told {
        let mut slate = self.slate.lock();
        while !slate.told.has_news {
            match slate.next.map(|next| next.saturating_sub(now())) {
                Some(0) => break,
                Some(left) => {
                    let deadline = Instant::now() + Duration::from_nanos(left);
                    self.rung.wait_until(&mut slate, deadline);
                }
                None => self.rung.wait(&mut slate),
            }
        }
        std::mem::take(&mut slate.told)
    }

    /// Ticks on this thread, or leaves the tick to the arbiter's thread if one is running or was [`OFTEN`]
    /// ago or less.
    fn tick_at_once(&self) {
        let Some(tree) = self.tree.upgrade() else { return };
        // The tick that is running may have missed this ring.
        let Some(mut desk) = self.desk.try_lock() else {
            return self.tell(|_| {});
        };
        match &mut *desk {
            Some(desk) if now().saturating_sub(desk.last) >= OFTEN => self.tick(&tree, desk),
            _ => self.tell(|_| {}),
        }
    }

    /// Runs one tick. The desk is locked by the caller.
    fn tick(&self, tree: &Tree, desk: &mut Desk) {
        desk.last = now();
        // A panic must not leave gates closed: threads that wait there could do nothing about it.
        let next = match catch_unwind(AssertUnwindSafe(|| tick(tree, &mut desk.state))) {
            Ok(next) => next,
            Err(_) => {
                error!("the arbiter panicked; it starts again with empty state");
                desk.state = State::new(*desk.state.settings());
                Some(now() + PAUSE)
            }
        };
        let before = std::mem::replace(&mut self.slate.lock().next, next);
        // Woken only if the new time is earlier; after waking too early it sleeps again.
        if next.is_some_and(|next| before.is_none_or(|before| next < before)) {
            self.rung.notify_one();
        }
    }
}

impl Listener for Bell {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Joined { .. }
            | Notice::Left { .. }
            | Notice::SettingsChanged(_)
            | Notice::GroupChanged(_)
            | Notice::RootChanged => self.tell(|_| {}),
            Notice::Rung(_) => self.tick_at_once(),
            Notice::Watched(ids) => self.tell(|told| told.watched.extend(ids)),
            Notice::Ring(_)
            | Notice::Answered { .. }
            | Notice::Events(_)
            | Notice::GroupEvents(_)
            | Notice::RootEvents
            | Notice::Departed { .. }
            | Notice::JobEnded { .. }
            | Notice::Removed(_)
            | Notice::AuditAsked
            | Notice::DevicesAsked
            | Notice::ContextMade
            | Notice::PressureWatched
            | Notice::EndsAsked
            | Notice::KillAsked(..)
            | Notice::SuspendAsked => {}
        }
    }
}

/// Handle of the running thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Thread {
    bell: Arc<Bell>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Thread {
    /// Starts the arbiter.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(tree: Arc<Tree>, settings: Settings) -> anyhow::Result<Self> {
        let bell = Arc::new(Bell::new(&tree, settings));
        tree.listen(bell.clone());
        let thread = {
            let bell = bell.clone();
            std::thread::Builder::new()
                .name("arbiter".to_owned())
                .spawn(move || run(&tree, &bell))
                .context("cannot start the arbiter's thread")?
        };
        Ok(Self {
            bell,
            thread: Some(thread),
        })
    }

    pub fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.bell.tell(|told| told.is_over = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(tree: &Tree, bell: &Bell) {
    // A turn can be shorter than the 50 microseconds by which the kernel may round a sleep up. Failure only
    // loses precision.
    let _ = prctl::set_timerslack(1000);
    loop {
        let told = bell.wait();
        let mut desk = bell.desk.lock();
        if told.is_over {
            *desk = None;
            break;
        }
        let Some(desk) = desk.as_mut() else { break };
        if let Some(settings) = told.settings {
            desk.state.set(settings);
        }
        let now = now();
        told.watched.into_iter().for_each(|id| desk.state.watch(now, id));
        bell.tick(tree, desk);
    }
    // No thread may wait for a stopped arbiter; the next daemon decides again.
    let ((), opened) = tree.arbitrate(|tree| tree.open_all());
    wake(&opened);
}

/// Ticks until no work began meanwhile, 8 times at most. Returns when to tick again.
fn tick(tree: &Tree, state: &mut State) -> Option<Time> {
    const MOST: u32 = 8;
    for _ in 0..MOST {
        let (next, opened) = tree.arbitrate(|tree| state.tick(now(), tree));
        wake(&opened);
        let Next {
            at,
            again,
            memory_news,
        } = next;
        for (device, news) in memory_news {
            info!("GPU {device}: {news}");
        }
        if !again {
            return at;
        }
    }
    Some(now() + state.settings().tick())
}

/// Wakes threads that wait at gates that were opened.
fn wake(opened: &Opened) {
    for (blocks, device) in opened {
        if let Some(device) = blocks.control().devices.get(*device) {
            wake_all(&device.gate);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use gcgroup_abi::Gate;

    use super::*;
    use gcgroupfs_model::tree::fixture::{ROOT, World};

    /// Registers a process with a context on device 0.
    fn join(world: &World, pid: u32, priority: u32) -> ProcessId {
        let id = world.join(pid);
        let file = format!("{pid}/compute.priority");
        world.store(&file, ROOT, &priority.to_string()).unwrap();
        world.usage(id).devices[0].nr_contexts.store(1, Relaxed);
        world.tree.rung(id);
        id
    }

    /// No arbiter thread runs in this test.
    #[test]
    fn rung_sets_gates_before_it_returns() {
        let world = World::new(1);
        let (high, low) = (join(&world, 100, 2), join(&world, 101, 10));
        world.store("compute.policy", ROOT, "strict").unwrap();
        let bell = Arc::new(Bell::new(&world.tree, Settings::default()));
        world.tree.listen(bell.clone());
        for id in [low, high] {
            world.usage(id).devices[0].busy_since.store(now(), Relaxed);
        }
        world.tree.rung(high);
        let gate = world.control(low).devices[0].gate.load(Relaxed);
        assert_eq!(Gate::from_word(gate), Gate::Throttled);
        assert!(
            bell.slate.lock().next.is_some(),
            "the end of the work must be polled for"
        );
        assert!(!bell.slate.lock().told.has_news);
    }

    #[test]
    fn frequent_ring_is_left_to_the_thread() {
        let world = World::new(1);
        let id = join(&world, 100, 2);
        let bell = Arc::new(Bell::new(&world.tree, Settings::default()));
        world.tree.listen(bell.clone());
        // A fixed time instead of the clock, which a slow test could outrun.
        bell.desk.lock().as_mut().unwrap().last = Time::MAX;
        world.tree.rung(id);
        assert!(bell.slate.lock().told.has_news);
        *bell.desk.lock() = None;
        bell.slate.lock().told.has_news = false;
        world.tree.rung(id);
        assert!(bell.slate.lock().next.is_none(), "the arbiter has stopped");
    }
}
