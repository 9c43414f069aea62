//! The helper thread: hears the daemon's doorbell, drains, tells what has ended, finds the daemon again.
//!
//! Asleep in poll(2) while nothing is asked. Holds no lock while it calls the driver, except a context's for
//! as long as it takes to set or ask for a mark there (see `compute::contexts`).

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

/// Not zero while the helper is in the driver.
static IN_DRIVER: AtomicU32 = AtomicU32::new(0);

/// Runs `body`, which calls the driver, unless the program exits and the driver with it.
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

/// Waits a moment for the helper to be out of the driver, which is about to be torn down. The driver's
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

/// A line to the helper, on which the program's threads wake it. An eventfd would do, but those cannot be
/// told apart. And a program that closes all of the hook's descriptors at once (closefrom(3)) wakes the
/// helper: the far end hangs up.
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

    /// The helper's end. Both ends are made anew if the program closed one of them; `None` where descriptors
    /// are short.
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

    /// In a forked child: they are its parent's.
    pub(crate) fn close_in_child(&self) {
        descriptor::close_in_child(&self.near);
        descriptor::close_in_child(&self.far);
    }

    /// Has the helper look at what there is to do.
    pub(crate) fn wake(&self) {
        if let Some(far) = self.far.lock().as_ref().and_then(Descriptor::get) {
            sys::post(far);
        }
    }
}

/// A forked child has no helper.
pub(crate) fn forget() {
    IN_DRIVER.store(0, Relaxed);
}

/// After a loss the daemon is looked for this often at first, and this seldom later.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LOST: Duration = Duration::from_millis(500);
const RETRY_ABSENT: Duration = Duration::from_secs(2);
/// Where what is frozen stays frozen without a daemon, everything else goes on after so long: nobody gives
/// turns.
const GRACE_OF_TURNS: Duration = Duration::from_secs(5);
/// How often a program without a free descriptor is looked at for one.
const RETRY_DESCRIPTOR: Duration = Duration::from_millis(100);
/// How long a daemon that listens may take to answer the helper.
const PATIENCE: Duration = Duration::from_secs(1);

/// The helper's thread id.
static TID: AtomicU32 = AtomicU32::new(0);

/// Whether the caller is the helper, which waits for nobody.
pub(crate) fn is_caller() -> bool {
    TID.load(Relaxed) == sys::gettid()
}

/// Serves the process for as long as it is there. In the helper thread, once the process is made.
pub(crate) fn run() {
    let Some(process) = process::get() else { return };
    TID.store(sys::gettid(), Relaxed);
    sys::sleep_precisely();
    // What it has when the program exits is left to the driver.
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
    /// When the daemon was lost, until the gates have been opened for it.
    lost: Option<Instant>,
    /// Whether there ever was one.
    had_daemon: bool,
    next_try: Instant,
    retry: Duration,
    /// When the work on hand wants to be looked at again.
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
            // A process may be frozen from its first moment on.
            wake: Some(Duration::ZERO),
        }
    }

    /// A panic costs a round, not the thread, and the program nothing: what was held for a move is let go,
    /// and begun anew.
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
            // The program closed our socket: to the daemon that is as if we had left.
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

    /// Until the daemon rings, a thread of the program's has begun work that must be watched, or `longest`
    /// has passed.
    fn sleep(&self, daemon: Option<RawFd>, longest: Option<Duration>) {
        let line = self.process.line.near();
        let longest = match line {
            Some(_) => longest,
            // Nobody can wake it.
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
                // Who asked for something meanwhile reached nobody.
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

    /// One step of whatever the control block asks for.
    fn work(&mut self) {
        let (levels, control) = (&self.process.memory.levels, self.process.control());
        levels.review_stocks(self.process.usage(), control);
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
    fn a_panic_leaves_nothing_held() {
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
        assert!(process.holds.word(1).is_some(), "as it should be, without one");
    }
}
