//! The helper thread: receives the daemon's doorbell, drains, publishes progress, moves memory and reconnects
//! to the daemon.
//!
//! The thread sleeps in poll(2) while there is nothing to do. It holds no lock while it calls the driver,
//! except a context's while it sets or queries a marker there (see `compute::contexts`).

use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use crate::driver::interpose;
use crate::shared::client::{self, Heard, Refusal};
use crate::shared::patience::Limit;
use crate::shared::session::Session;
use crate::sys;
use crate::sys::descriptor::Descriptor;

/// Result of one step of a kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Time until the next step, at the latest; `None`: when the daemon rings.
    pub(crate) wake: Option<Duration>,
    /// Whether the daemon should look at the usage block.
    pub(crate) has_news: bool,
}

impl Step {
    /// Nothing to tell the daemon; the next step follows after `wake`.
    pub(crate) const fn after(wake: Duration) -> Self {
        Self {
            wake: Some(wake),
            has_news: false,
        }
    }

    /// Returns the result of two steps together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            wake: self.wake.into_iter().chain(other.wake).min(),
            has_news: self.has_news || other.has_news,
        }
    }
}

/// Instruction to a kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Advance,
    /// End what is in progress, and hold nothing: no step follows until the process is resumed.
    Stop,
}

/// A kind of work that the helper does. Each call is one step, which does not wait.
pub(crate) type Work = Box<dyn FnMut(Order) -> Step>;

/// The process that a helper thread serves.
pub(crate) trait Duties: Copy {
    fn session(&self) -> &Session;

    /// Returns every kind of work, begun anew. What work of a helper that panicked held is released.
    fn work(&self) -> Vec<Work>;

    /// Registers with the daemon, which may take `patience` to answer.
    fn register(&self, limit: Limit) -> Result<Descriptor, Refusal>;

    /// Handles the daemon's doorbell: there may be new devices.
    fn look_for_devices(&self);

    /// Asks the driver which GPUs the process has: it can have been restored on others.
    fn identify_devices(&self);

    /// Returns whether the calling thread still belongs to the process.
    fn is_alive(&self) -> bool;
}

/// First pause between two attempts to reach the daemon. It doubles up to `RETRY_LOST` if there has been a
/// daemon or one may admit the process, else up to `RETRY_ABSENT`.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LOST: Duration = Duration::from_millis(500);
const RETRY_ABSENT: Duration = Duration::from_secs(2);
/// Time without a daemon after which all gates that are not frozen open, where frozen gates are to stay
/// closed: without a daemon there are no turns.
const GRACE_OF_TURNS: Duration = Duration::from_secs(5);
/// Pause between attempts while the program has no free descriptor.
const RETRY_DESCRIPTOR: Duration = Duration::from_millis(100);
/// Longest pause where the system refuses a call, which it hardly ever permits later.
const RETRY_FORBIDDEN: Duration = Duration::from_secs(10);
/// How long a listening daemon may take to answer the helper.
const PATIENCE: Duration = Duration::from_secs(1);

/// The helper's thread id.
static TID: AtomicU32 = AtomicU32::new(0);

/// Returns whether the caller is the helper thread, which must not wait for others.
pub(crate) fn is_caller() -> bool {
    TID.load(Relaxed) == sys::gettid()
}

/// Runs the helper loop, in the helper thread, once the process is made.
pub(crate) fn run<D: Duties>(duties: D) {
    TID.store(sys::gettid(), Relaxed);
    sys::sleep_precisely();
    // Its state is not dropped at exit, because that would call the driver.
    let mut helper = ManuallyDrop::new(Helper::new(duties));
    while helper.duties.is_alive() {
        helper.guarded(Helper::round);
    }
}

struct Helper<D> {
    duties: D,
    work: Vec<Work>,
    /// When the daemon was lost; `None` once it is back or the gates have been opened.
    lost: Option<Instant>,
    /// Whether there has ever been a daemon.
    had_daemon: bool,
    next_try: Instant,
    retry: Duration,
    /// How long until unfinished work must be continued.
    wake: Option<Duration>,
    /// Whether all work has stopped for a suspension.
    has_stopped: bool,
}

impl<D: Duties> Helper<D> {
    fn new(duties: D) -> Self {
        Self {
            work: duties.work(),
            has_stopped: duties.session().usage().suspend_generation.load(Relaxed) != 0,
            had_daemon: duties.session().connection.lock().is_some(),
            duties,
            lost: None,
            next_try: Instant::now(),
            retry: RETRY_FIRST,
            // A process may be frozen from its start.
            wake: Some(Duration::ZERO),
        }
    }

    /// Runs a round. After a panic the helper's state is made anew: holds for a move are released and the
    /// move is started again.
    fn guarded(&mut self, round: impl FnOnce(&mut Self)) {
        if interpose::guarded(|| round(self)).is_none() {
            *self = Self::new(self.duties);
            sys::poll([], Some(RETRY_LOST));
        }
    }

    /// Sleeps until there is something to do, and does it.
    fn round(&mut self) {
        let connected = self
            .duties
            .session()
            .connection
            .lock()
            .as_ref()
            .map(|connection| connection.get());
        let now = Instant::now();
        match connected {
            Some(Some(fd)) => {
                self.sleep(Some(fd), self.wake);
                self.listen();
            }
            // The program closed our socket, which the daemon sees as the end of the process.
            Some(None) => self.lose(),
            None => {
                let until = self.next_try.min(self.grace_ends().unwrap_or(self.next_try));
                let pause = until.saturating_duration_since(now);
                self.sleep(None, Some(self.wake.map_or(pause, |wake| wake.min(pause))));
                self.seek();
            }
        }
        self.work();
    }

    /// Sleeps until the daemon rings, a thread of the program wakes the helper, or `longest` has passed.
    fn sleep(&self, daemon: Option<RawFd>, longest: Option<Duration>) {
        let line = self.duties.session().line.near();
        let longest = match line {
            Some(_) => longest,
            // No thread can wake it.
            None => Some(longest.map_or(RETRY_DESCRIPTOR, |longest| longest.min(RETRY_DESCRIPTOR))),
        };
        if sys::poll([daemon, line], longest)[1]
            && let Some(line) = line
        {
            sys::hear(line);
        }
    }

    fn listen(&mut self) {
        loop {
            let heard = self
                .duties
                .session()
                .connection
                .lock()
                .as_ref()
                .map_or(Heard::Lost, client::listen);
            match heard {
                Heard::Nothing => return,
                // A locked driver does not return.
                Heard::Doorbell if self.suspension() != 0 => {}
                Heard::Doorbell => self.duties.look_for_devices(),
                Heard::Lost => return self.lose(),
            }
        }
    }

    /// Returns the number of the daemon's order to make no driver calls; 0: there is none.
    fn suspension(&self) -> u32 {
        self.duties.session().control().suspend_generation.load(Acquire)
    }

    fn lose(&mut self) {
        sys::log::line(|| "connection to the daemon lost".to_owned());
        drop(self.duties.session().connection.lock().take());
        let now = Instant::now();
        self.lost = Some(now);
        self.retry = RETRY_FIRST;
        self.next_try = now;
    }

    fn grace_ends(&self) -> Option<Instant> {
        let grace = match self.duties.session().control().grace_msec.load(Relaxed) {
            u32::MAX => GRACE_OF_TURNS,
            msec => Duration::from_millis(msec.into()),
        };
        self.lost.map(|lost| lost + grace)
    }

    fn seek(&mut self) {
        let now = Instant::now();
        if self.grace_ends().is_some_and(|end| end <= now) {
            self.lost = None;
            let keeps_frozen = self.duties.session().control().grace_msec.load(Relaxed) == u32::MAX;
            self.duties.session().open_gates(keeps_frozen);
        }
        if now < self.next_try {
            return;
        }
        let refusal = match self.duties.register(PATIENCE.into()) {
            Ok(connection) => {
                *self.duties.session().connection.lock() = Some(connection);
                // Requests made meanwhile have reached no daemon.
                self.duties.session().ring();
                self.had_daemon = true;
                self.lost = None;
                return;
            }
            Err(refusal) => refusal,
        };
        let seldom = match refusal {
            Refusal::NoDescriptor => RETRY_DESCRIPTOR,
            Refusal::Forbidden(_) => RETRY_FORBIDDEN,
            refusal if self.had_daemon || refusal.may_pass() => RETRY_LOST,
            _ => RETRY_ABSENT,
        };
        self.next_try = Instant::now() + self.retry;
        self.retry = (self.retry * 2).min(seldom);
    }

    /// Advances each kind of work by one step. While the process is suspended there is none: a driver call
    /// would wait until it is resumed, and nothing could reach this thread.
    fn work(&mut self) {
        let number = self.suspension();
        let order = match number {
            0 => Order::Advance,
            _ => Order::Stop,
        };
        let seen = self.duties.session().usage().suspend_generation.load(Relaxed);
        if order == Order::Advance && seen != 0 {
            // Before the daemon learns that the order has ended, and opens gates.
            self.duties.identify_devices();
        }
        let all = match (order, self.has_stopped) {
            (Order::Stop, true) => Step::default(),
            _ => {
                let steps = self.work.iter_mut().map(|step| step(order));
                steps.fold(Step::default(), Step::and)
            }
        };
        self.has_stopped = order == Order::Stop;
        let session = self.duties.session();
        let has_heard = session.usage().suspend_generation.swap(number, Release) == number;
        if all.has_news || !has_heard {
            session.ring();
        }
        self.wake = match order {
            Order::Advance => all.wake,
            Order::Stop => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::hold::Scope;
    use crate::hook::Hook;
    use gcgroup_abi::NO_LIMIT;

    #[test]
    fn helper_panic_releases_holds() {
        let hook = Hook::of_test(NO_LIMIT);
        let mut helper = Helper::new(hook);
        helper.guarded(|_| {
            hook.compute.hold(Scope::All);
            hook.compute.hold(Scope::Device(1));
            panic!("a fault of ours");
        });
        assert!((0..3).all(|index| hook.compute.holds.word(index).is_none()));
        assert!(hook.compute.holds.touch(hook.session, 1).is_some());
        helper.guarded(|_| hook.compute.hold(Scope::Device(1)));
        assert!(hook.compute.holds.word(1).is_some(), "held without a panic");
    }
}
