//! The end of the program, when the driver is torn down: nothing waits any more, and the helper thread stays
//! out of the driver.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use crate::sys;

/// Set when the program exits normally.
static IS_EXITING: AtomicBool = AtomicBool::new(false);

/// Not 0 while the helper is in the driver.
static IN_DRIVER: AtomicU32 = AtomicU32::new(0);

/// Returns whether the program is exiting.
pub(crate) fn is_exiting() -> bool {
    IS_EXITING.load(SeqCst)
}

/// Handles the program's exit. Waits up to 100 ms for the helper to leave the driver, which is about to be
/// torn down. The driver's exit handlers run after ours, since it registered them before its `cuInit`
/// returned.
pub(crate) extern "C" fn at_exit() {
    IS_EXITING.store(true, Relaxed);
    std::sync::atomic::fence(SeqCst);
    for _ in 0..10 {
        if IN_DRIVER.load(SeqCst) == 0 {
            return;
        }
        sys::futex_wait(&IN_DRIVER, 1, Duration::from_millis(10));
    }
}

/// Runs `body`, which calls the driver, in the helper thread. Returns `None` without running it if the
/// program exits.
pub(crate) fn in_driver<T>(body: impl FnOnce() -> T) -> Option<T> {
    struct Visit;
    impl Drop for Visit {
        fn drop(&mut self) {
            IN_DRIVER.store(0, SeqCst);
            if is_exiting() {
                sys::futex_wake(&IN_DRIVER);
            }
        }
    }
    IN_DRIVER.store(1, SeqCst);
    let visit = Visit;
    let result = (!is_exiting()).then(body);
    drop(visit);
    result
}

/// Resets the helper's state in a forked child, which has no helper.
pub(crate) fn reset_in_child() {
    IN_DRIVER.store(0, Relaxed);
}
