//! A lock for critical sections of nanoseconds.
//!
//! A lock that can wake sleeping threads needs an atomic read-modify-write to take and another to release,
//! and those dominate the cost of an allocation. This one wakes no thread: releasing is a plain store, and a
//! waiting thread spins, yields, and then sleeps for a short time. So it suits locks that are held for
//! nanoseconds and rarely contended.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

use crate::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;

/// First pause between two attempts, in spins. It doubles, since each attempt takes the cache line from the
/// holder.
const PAUSE: u32 = 64;
/// Attempts before the thread starts to yield, and further attempts before it sleeps.
const SPINS: u32 = 3;
const YIELDS: u32 = 16;
/// Sleep between attempts after that: the holder has lost its CPU, for about as long as other threads there
/// run.
const NAP: Duration = Duration::from_micros(100);

#[derive(Debug, Default)]
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only while the lock is held, so by at most one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.try_take().is_none() {
            self.wait();
        }
        Guard(self, PhantomData)
    }

    #[inline]
    fn try_take(&self) -> Option<()> {
        let taken = self.word.compare_exchange_weak(FREE, HELD, Acquire, Relaxed);
        taken.ok().map(drop)
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        for attempts in 0_u32.. {
            if self.word.load(Relaxed) == FREE && self.try_take().is_some() {
                return;
            }
            if attempts < SPINS {
                (0..PAUSE << attempts).for_each(|_| std::hint::spin_loop());
            } else if attempts < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                sys::futex_wait(&self.word, HELD, NAP);
            }
        }
    }
}

/// Guard of a [`Lock`]. Threads that share a reference to it share one to the value, so it is `Sync` only
/// where `T` is, as `&mut T` is.
#[derive(Debug)]
pub(crate) struct Guard<'a, T>(&'a Lock<T>, PhantomData<&'a mut T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and by this guard alone.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.word.store(FREE, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    /// Does not compile if a guard of a type that is not `Sync` is `Sync`: then both implementations apply.
    #[expect(dead_code, reason = "that it compiles is the test")]
    const A_GUARD_OF_A_CELL_IS_NOT_SYNC: fn() = {
        trait Ambiguous<Which> {
            fn call() {}
        }
        impl<T> Ambiguous<()> for T {}
        impl<T: Sync> Ambiguous<u8> for T {}
        <Guard<'static, Cell<u32>> as Ambiguous<_>>::call
    };

    #[expect(dead_code, reason = "that it compiles is the test")]
    const A_GUARD_OF_A_NUMBER_IS_SYNC: fn() = {
        fn is_sync<T: Sync>() {}
        is_sync::<Guard<'static, u32>>
    };

    #[test]
    fn one_thread_at_a_time_sees_the_value() {
        let lock: Lock<[u64; 8]> = Lock::default();
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..20_000 {
                        let mut values = lock.lock();
                        let first = values[0];
                        for value in values.iter_mut() {
                            assert_eq!(*value, first);
                            *value += 1;
                        }
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), [80_000; 8]);
    }

    #[test]
    fn long_wait_ends_with_the_lock() {
        let lock: Lock<u32> = Lock::default();
        let is_waiting = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let held = lock.lock();
            scope.spawn(|| {
                is_waiting.store(true, Release);
                *lock.lock() = 1;
            });
            while !is_waiting.load(Acquire) {
                std::thread::yield_now();
            }
            for _ in 0..1000 {
                std::thread::yield_now();
            }
            assert_eq!(*held, 0);
            drop(held);
        });
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn panic_releases_the_lock() {
        let lock: Lock<u32> = Lock::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 0);
    }
}
