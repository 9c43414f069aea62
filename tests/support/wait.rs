//! Waiting for a condition, with a deadline that only a hang reaches.

use std::time::{Duration, Instant};

/// Far beyond anything that works, however loaded the machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds.
///
/// # Panics
/// After [`DEADLINE`], saying `what` did not come about.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Waits until `look` finds something, and gives it.
///
/// # Panics
/// After [`DEADLINE`], saying `what` was not found.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until none are left of what `count` counts.
///
/// # Panics
/// When there have not been fewer for [`DEADLINE`], saying `what` is left.
#[track_caller]
pub fn wait_until_none(what: &str, mut count: impl FnMut() -> usize) {
    let (mut fewest, mut since) = (usize::MAX, Instant::now());
    loop {
        let left = count();
        if left == 0 {
            return;
        }
        if left < fewest {
            (fewest, since) = (left, Instant::now());
        }
        assert!(
            since.elapsed() < DEADLINE,
            "waited {DEADLINE:?} in vain: {what}, {left} are left"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}
