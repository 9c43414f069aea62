//! The helper thread: receives the daemon's doorbell, drains, publishes progress, moves memory and reconnects
//! to the daemon.
//!
//! The thread sleeps in poll(2) while there is nothing to do. It holds no lock while it calls the driver,
//! except a context's while it sets or queries a marker there (see `compute::contexts`).

use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::client::{self, Heard, Refusal};
use crate::compute::drain::Drain;
use crate::compute::progress::Progress;
use crate::compute::watch::Watch;
use crate::descriptor::{self, Descriptor};
use crate::interpose;
use crate::memory::freeing::Settling;
use crate::process::{self, Process};
use crate::swap::mover::Mover;
use crate::sys;

/// Not 0 while the helper is in the driver.
static IN_DRIVER: AtomicU32 = AtomicU32::new(0);

/// Runs `body`, which calls the driver. Returns `None` without running it if the program exits, since the
/// driver is torn down then.
pub(crate) fn in_driver<T>(body: impl FnOnce() -> T) -> Option<T> {
    struct Visit;
    impl Drop for Visit {
        fn drop(&mut self) {
            IN_DRIVER.store(0, SeqCst);
            if process::is_exiting() {
                sys::futex_wake(&IN_DRIVER);
            }
        }
    }
    IN_DRIVER.store(1, SeqCst);
    let visit = Visit;
    let result = (!process::is_exiting()).then(body);
    drop(visit);
    result
}

/// Waits up to 100 ms for the helper to leave the driver, which is about to be torn down. The driver's exit
/// handlers run after ours, since it registered them before its `cuInit` returned.
pub(crate) fn leave_driver() {
    std::sync::atomic::fence(SeqCst);
    for _ in 0..10 {
        if IN_DRIVER.load(SeqCst) == 0 {
            return;
        }
        sys::futex_wait(&IN_DRIVER, 1, Duration::from_millis(10));
    }
}

/// A socket pair by which the program's threads wake the helper. Sockets have identities by which a reused
/// descriptor is detected; eventfds do not. A program that closes all of the hook's descriptors at once
/// (closefrom(3)) wakes the helper too, because the other end hangs up.
#[derive(Debug)]
pub(crate) struct Line {
    near: Mutex<Option<Descriptor>>,
    far: Mutex<Option<Descriptor>>,
}

impl Line {
    pub(crate) fn new() -> Self {
        let line = Self {
            near: Mutex::new(None),
            far: Mutex::new(None),
        };
        line.near();
        line
    }

    /// Returns the helper's end. Makes a new pair if the program closed one end; `None` where descriptors are
    /// short.
    fn near(&self) -> Option<RawFd> {
        let of = |end: &Mutex<Option<Descriptor>>| end.lock().as_ref().and_then(Descriptor::get);
        if let (Some(near), Some(_)) = (of(&self.near), of(&self.far)) {
            return Some(near);
        }
        let [near, far] = sys::line().ok()?.map(|end| Descriptor::new(end).ok());
        let fd = near.as_ref()?.get()?;
        *self.near.lock() = near;
        *self.far.lock() = far;
        Some(fd)
    }

    /// Closes both ends in a forked child.
    pub(crate) fn close_in_child(&self) {
        descriptor::close_in_child(&self.near);
        descriptor::close_in_child(&self.far);
    }

    /// Wakes the helper.
    pub(crate) fn wake(&self) {
        if let Some(far) = self.far.lock().as_ref().and_then(Descriptor::get) {
            sys::post(far);
        }
    }
}

/// Resets the helper's state in a forked child, which has no helper.
pub(crate) fn forget() {
    IN_DRIVER.store(0, Relaxed);
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
/// How long a listening daemon may take to answer the helper.
const PATIENCE: Duration = Duration::from_secs(1);

/// The helper's thread id.
static TID: AtomicU32 = AtomicU32::new(0);

/// Returns whether the caller is the helper thread, which must not wait for others.
pub(crate) fn is_caller() -> bool {
    TID.load(Relaxed) == sys::gettid()
}

/// Runs the helper loop, in the helper thread, once the process is made.
pub(crate) fn run() {
    let Some(process) = process::get() else { return };
    TID.store(sys::gettid(), Relaxed);
    sys::sleep_precisely();
    // Its state is not dropped at exit, because that would call the driver.
    let mut helper = ManuallyDrop::new(Helper::new(process));
    while process::get().is_some() {
        helper.guarded(Helper::round);
    }
}

struct Helper {
    process: &'static Process,
    drain: Drain,
    progress: Progress,
    watch: Watch,
    mover: Mover,
    settling: Settling,
    /// When the daemon was lost; `None` once it is back or the gates have been opened.
    lost: Option<Instant>,
    /// Whether there has ever been a daemon.
    had_daemon: bool,
    next_try: Instant,
    retry: Duration,
    /// How long until unfinished work must be continued.
    wake: Option<Duration>,
}

impl Helper {
    fn new(process: &'static Process) -> Self {
        Self {
            process,
            drain: Drain::new(),
            progress: Progress::new(),
            watch: Watch::new(),
            mover: Mover::new(process),
            settling: Settling::new(),
            lost: None,
            had_daemon: process.connection.lock().is_some(),
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
            *self = Self::new(self.process);
            sys::poll([], Some(RETRY_LOST));
        }
    }

    /// Sleeps until there is something to do, and does it.
    fn round(&mut self) {
        let connected = self
            .process
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
        let line = self.process.line.near();
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
                .process
                .connection
                .lock()
                .as_ref()
                .map_or(Heard::Lost, client::listen);
            match heard {
                Heard::Nothing => return,
                Heard::Doorbell => self.process.look_for_devices(),
                Heard::Lost => return self.lose(),
            }
        }
    }

    fn lose(&mut self) {
        drop(self.process.connection.lock().take());
        let now = Instant::now();
        self.lost = Some(now);
        self.retry = RETRY_FIRST;
        self.next_try = now;
    }

    fn grace_ends(&self) -> Option<Instant> {
        let grace = match self.process.control().grace_msec.load(Relaxed) {
            u32::MAX => GRACE_OF_TURNS,
            msec => Duration::from_millis(msec.into()),
        };
        self.lost.map(|lost| lost + grace)
    }

    fn seek(&mut self) {
        let now = Instant::now();
        if self.grace_ends().is_some_and(|end| end <= now) {
            self.lost = None;
            let keeps_frozen = self.process.control().grace_msec.load(Relaxed) == u32::MAX;
            self.process.open_gates(keeps_frozen);
        }
        if now < self.next_try {
            return;
        }
        let refusal = match self.process.register(PATIENCE) {
            Ok(connection) => {
                *self.process.connection.lock() = Some(connection);
                // Requests made meanwhile have reached no daemon.
                self.process.ring();
                self.had_daemon = true;
                self.lost = None;
                return;
            }
            Err(refusal) => refusal,
        };
        let seldom = match refusal {
            Refusal::NoDescriptor => RETRY_DESCRIPTOR,
            refusal if self.had_daemon || refusal.may_pass() => RETRY_LOST,
            _ => RETRY_ABSENT,
        };
        self.next_try = Instant::now() + self.retry;
        self.retry = (self.retry * 2).min(seldom);
    }

    /// Advances each kind of work by one step.
    fn work(&mut self) {
        let steps = [
            self.drain.step(self.process),
            self.progress.step(self.process),
            self.watch.step(self.process),
            self.mover.step(self.process),
            self.settling.step(self.process),
        ];
        if steps.iter().any(|step| step.has_news) {
            self.process.ring();
        }
        self.wake = steps.iter().filter_map(|step| step.wake).min();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::hold::Scope;
    use gcgroup_abi::NO_LIMIT;

    #[test]
    fn helper_panic_releases_holds() {
        let process = Process::of_test(NO_LIMIT);
        let mut helper = Helper::new(process);
        helper.guarded(|helper| {
            helper.process.hold(Scope::All);
            helper.process.hold(Scope::Device(1));
            panic!("a fault of ours");
        });
        assert!((0..3).all(|index| process.holds.word(index).is_none()));
        assert!(process.touch(1).is_some());
        helper.guarded(|helper| helper.process.hold(Scope::Device(1)));
        assert!(process.holds.word(1).is_some(), "held without a panic");
    }
}
