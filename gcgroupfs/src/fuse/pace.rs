//! How many of those who are woken are on their way at a time.
//!
//! Who is woken asks the daemon before its poll(2) returns. Of a thousand that are woken at once each has been pushed out of the
//! processors' caches by the others when it gets to ask, and again when it is answered. So a few are woken, and more as these
//! ask.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// So many are on their way at most; and of those so few when more are woken.
const MOST: usize = 64;
const FEW: usize = 32;

/// How patient it is by default.
const PATIENCE: Patience = Patience {
    silence: Duration::from_millis(1),
    all: Duration::from_millis(10),
};

/// For how long those are waited for who do not ask, because they are stopped, or have something else to do first. Then the rest
/// is woken at once.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// While none of them asks.
    silence: Duration,
    /// In all.
    all: Duration,
}

/// Counts those that have been woken, and those of them that have asked since.
#[derive(Debug, Default)]
pub(super) struct Pace {
    nr_woken: AtomicUsize,
    nr_asked: AtomicUsize,
    lock: Mutex<()>,
    few_left: Condvar,
}

impl Pace {
    /// Wakes all of these. On one thread at a time.
    pub(super) fn wake<T>(&self, sleepers: Vec<T>, wake: impl FnMut(T)) {
        self.wake_with(PATIENCE, sleepers, wake);
    }

    fn wake_with<T>(&self, patience: Patience, sleepers: Vec<T>, mut wake: impl FnMut(T)) {
        self.nr_woken.store(0, Relaxed);
        self.nr_asked.store(0, Relaxed);
        let until = Instant::now() + patience.all;
        let mut is_patient = true;
        for (number, sleeper) in sleepers.into_iter().enumerate() {
            if is_patient && number >= self.nr_asked.load(Relaxed) + MOST {
                is_patient = self.wait(number, patience.silence, until);
            }
            self.nr_woken.store(number + 1, Relaxed);
            wake(sleeper);
        }
    }

    /// One of those that were woken has asked. Never waits.
    pub(super) fn asked(&self) {
        let nr_asked = self.nr_asked.fetch_add(1, Relaxed) + 1;
        if nr_asked + FEW == self.nr_woken.load(Relaxed) {
            // Held while it is looked whether to wait: so who waits hears of it.
            drop(self.lock.lock());
            self.few_left.notify_one();
        }
    }

    /// Waits until few of so many that were woken have not asked. Whether it is so.
    fn wait(&self, nr_woken: usize, silence: Duration, until: Instant) -> bool {
        let mut held = self.lock.lock();
        loop {
            let before = self.nr_asked.load(Relaxed);
            if before + FEW >= nr_woken {
                return true;
            }
            self.few_left.wait_for(&mut held, silence);
            if self.nr_asked.load(Relaxed) == before || Instant::now() >= until {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const LONG: Patience = Patience {
        silence: Duration::from_secs(60),
        all: Duration::from_secs(60),
    };

    #[test]
    fn no_more_than_some_are_on_their_way_and_all_are_woken() {
        let pace = Pace::default();
        let nr_asked = AtomicUsize::new(0);
        for nr_sleepers in [0, 1, MOST, MOST + 1, 1000] {
            let (sender, woken) = channel();
            thread::scope(|scope| {
                scope.spawn(|| {
                    for () in woken {
                        // Before it counts: what is on its way is no less.
                        nr_asked.fetch_add(1, Relaxed);
                        pace.asked();
                    }
                });
                nr_asked.store(0, Relaxed);
                let sleepers: Vec<usize> = (0..nr_sleepers).collect();
                pace.wake_with(LONG, sleepers, |number| {
                    assert!(number < nr_asked.load(Relaxed) + MOST, "{number}");
                    sender.send(()).unwrap();
                });
                drop(sender);
            });
            assert_eq!(nr_asked.load(Relaxed), nr_sleepers);
        }
    }

    #[test]
    fn those_who_never_ask_are_not_waited_for_for_ever() {
        let pace = Pace::default();
        let short = Patience {
            silence: Duration::from_millis(1),
            ..LONG
        };
        let mut woken = Vec::new();
        pace.wake_with(short, (0..1000).collect(), |number| woken.push(number));
        assert_eq!(woken, (0..1000).collect::<Vec<_>>());
    }
}
