//! The arbiter's thread: it sleeps until something is told, or until what it has decided is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::prctl;
use nix::time::{ClockId, clock_gettime};
use parking_lot::{Condvar, Mutex};
use tracing::error;

use super::Settings;
use super::policy::Time;
use super::state::{Next, State};
use crate::sys::wake_all;
use crate::tree::{Listener, Notice, Opened, ProcessId, Tree};

/// After a failure.
const PAUSE: u64 = 1_000_000_000;

/// What has been told since the last tick.
#[derive(Debug, Default)]
struct Told {
    has_news: bool,
    watched: Vec<ProcessId>,
    settings: Option<Settings>,
    is_over: bool,
}

/// How the thread is told of something. Never waits.
#[derive(Debug, Default)]
pub struct Bell {
    told: Mutex<Told>,
    rung: Condvar,
}

impl Bell {
    /// Other settings from now on.
    pub fn set(&self, settings: Settings) {
        self.tell(|told| told.settings = Some(settings));
    }

    fn tell(&self, what: impl FnOnce(&mut Told)) {
        let mut told = self.told.lock();
        what(&mut told);
        told.has_news = true;
        drop(told);
        self.rung.notify_one();
    }

    /// Waits for news, until `at` at most.
    fn wait(&self, at: Option<Time>) -> Told {
        let mut told = self.told.lock();
        let deadline = at.map(|at| Instant::now() + Duration::from_nanos(at.saturating_sub(now())));
        while !told.has_news {
            match deadline {
                Some(deadline) => {
                    if self.rung.wait_until(&mut told, deadline).timed_out() {
                        break;
                    }
                }
                None => self.rung.wait(&mut told),
            }
        }
        std::mem::take(&mut *told)
    }
}

impl Listener for Bell {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Joined { .. }
            | Notice::Left { .. }
            | Notice::SettingsChanged(_)
            | Notice::GroupChanged(_)
            | Notice::RootChanged
            | Notice::Rung(_) => self.tell(|_| {}),
            Notice::Watched(ids) => self.tell(|told| told.watched.extend(ids)),
            Notice::Ring(_)
            | Notice::Answered { .. }
            | Notice::Events(_)
            | Notice::GroupEvents(_)
            | Notice::Made { .. }
            | Notice::Removed { .. }
            | Notice::AuditAsked => {}
        }
    }
}

/// The running thread; ends when dropped.
#[derive(Debug)]
pub struct Thread {
    bell: Arc<Bell>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Thread {
    /// Begins to arbitrate.
    ///
    /// # Errors
    /// Out of threads.
    pub fn start(tree: Arc<Tree>, settings: Settings) -> anyhow::Result<Self> {
        let bell = Arc::new(Bell::default());
        tree.listen(bell.clone());
        let thread = {
            let bell = bell.clone();
            std::thread::Builder::new()
                .name("arbiter".to_owned())
                .spawn(move || run(&tree, &bell, settings))
                .context("cannot start the arbiter")?
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

fn run(tree: &Tree, bell: &Bell, settings: Settings) {
    // Turns are short beside the 50 microseconds by which the kernel may round a sleep up; a failure costs only that.
    let _ = prctl::set_timerslack(1000);
    let mut state = State::new(settings);
    let mut at = None;
    loop {
        let told = bell.wait(at);
        if told.is_over {
            break;
        }
        let now = now();
        if let Some(settings) = told.settings {
            state.set(settings);
        }
        told.watched.into_iter().for_each(|id| state.watch(now, id));
        // A fault of ours must not leave gates closed: whoever waits there can do nothing about it.
        at = match catch_unwind(AssertUnwindSafe(|| tick(tree, &mut state))) {
            Ok(at) => at,
            Err(_) => {
                error!("the arbiter has failed and begins anew");
                state = State::new(*state.settings());
                Some(now + PAUSE)
            }
        };
    }
    // Nobody is to wait for an arbiter that is no more; a new daemon begins anew.
    let ((), opened) = tree.arbitrate(|tree| tree.open_all());
    wake(&opened);
}

/// Ticks until nothing has begun meanwhile, or seems to for ever; returns when to tick again.
fn tick(tree: &Tree, state: &mut State) -> Option<Time> {
    const MOST: u32 = 8;
    for _ in 0..MOST {
        let (Next { at, again }, opened) = tree.arbitrate(|tree| state.tick(now(), tree));
        wake(&opened);
        if !again {
            return at;
        }
    }
    Some(now() + state.settings().tick())
}

/// Wakes whoever waits at gates that hold no more.
fn wake(opened: &Opened) {
    for (blocks, device) in opened {
        if let Some(device) = blocks.control().devices.get(*device) {
            wake_all(&device.gate);
        }
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds, as usage blocks have it.
fn now() -> Time {
    // It cannot fail for this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
