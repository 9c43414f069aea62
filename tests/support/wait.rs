//! Waiting for a condition, with a deadline that only a hang reaches.

use std::time::{Duration, Instant};

/// Longer than any operation takes on the most loaded machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds. `what` says so in a clause, for the message: subject, verb, state.
///
/// # Panics
/// After [`DEADLINE`], with `what` in the message.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Waits until `look` returns a value, and returns it.
///
/// # Panics
/// After [`DEADLINE`], with `what` in the message.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            start.elapsed() < DEADLINE,
            "timed out after {DEADLINE:?}, waiting until {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `count` returns 0.
///
/// # Panics
/// If the count has not decreased for [`DEADLINE`], with `what` in the message.
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
            "timed out after {DEADLINE:?}, waiting until {what}; {left} are left"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}
