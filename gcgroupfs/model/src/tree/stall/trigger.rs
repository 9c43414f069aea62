//! Triggers: events when a directory has waited for a threshold of time within a window, as in the kernel
//! (`psi_trigger_create`, `update_triggers` and `window_update` in kernel/sched/psi.c).

use gcgroup_abi::Pressure;

use super::super::Directory;
use crate::error::{Error, Result};

/// Shortest and longest window, microseconds.
const WINDOWS: std::ops::RangeInclusive<u64> = 500_000..=10_000_000;

/// Unit of the windows of users other than root, microseconds.
const UNIT: u64 = 2_000_000;

/// Number of updates in a window.
const UPDATES: u64 = 10;

/// A trigger of an open file description.
#[derive(Debug)]
pub struct Trigger {
    pub(super) directory: Directory,
    pub(super) what: Pressure,
    is_full: bool,
    /// Microseconds.
    threshold: u64,
    /// Microseconds.
    window: u64,
    /// Total at the last update, microseconds.
    total: u64,
    /// Start of the window: time and total in microseconds, and the growth in the window before.
    start: u64,
    start_total: u64,
    growth_before: u64,
    /// Time of the last event, microseconds.
    last_event: Option<u64>,
    /// Whether the threshold was exceeded less than a window after the last event.
    is_pending: bool,
    /// Time of the next update, nanoseconds.
    next: u64,
}

impl Trigger {
    /// Parses `some|full THRESHOLD WINDOW`, in microseconds, at `now` (nanoseconds) with the totals of then
    /// (microseconds). A final zero byte is accepted, as programs for PSI write it.
    ///
    /// # Errors
    /// [`Error::BadValue`].
    pub(super) fn parse(
        text: &str,
        is_root: bool,
        (directory, what): (Directory, Pressure),
        (now, total): (u64, [u64; 2]),
    ) -> Result<Self> {
        let bad = |expected| Error::bad(expected, text);
        let format = "some or full, a threshold and a window in microseconds";
        let text = text.trim_end_matches('\0');
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [name, threshold, window] = words[..] else {
            return Err(bad(format));
        };
        let is_full = match name {
            "some" => false,
            "full" => true,
            _ => return Err(bad(format)),
        };
        let (Some(threshold), Some(window)) = (number(threshold), number(window)) else {
            return Err(bad(format));
        };
        if !WINDOWS.contains(&window) {
            return Err(bad("a window of 500000 to 10000000 us"));
        }
        if !is_root && !window.is_multiple_of(UNIT) {
            return Err(bad(
                "a window that is a multiple of 2000000 us, as the user is not root",
            ));
        }
        if threshold == 0 || threshold > window {
            return Err(bad("a threshold above 0 and at most the window"));
        }
        let total = total[usize::from(is_full)];
        Ok(Self {
            directory,
            what,
            is_full,
            threshold,
            window,
            total,
            start: now / 1000,
            start_total: total,
            growth_before: 0,
            last_event: None,
            is_pending: false,
            next: now.saturating_add(window * 1000 / UPDATES),
        })
    }

    /// Returns when the next update is due, nanoseconds.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes into account the totals (microseconds) at `now` (nanoseconds). Returns whether there is an
    /// event: at most one in a window.
    pub(super) fn update(&mut self, now: u64, total: [u64; 2]) -> bool {
        let total = total[usize::from(self.is_full)];
        self.next = now.saturating_add(self.window * 1000 / UPDATES);
        let now = now / 1000;
        let has_grown = std::mem::replace(&mut self.total, total) != total;
        if has_grown && self.growth(now) >= self.threshold {
            self.is_pending = true;
        }
        let is_early = self
            .last_event
            .is_some_and(|last| now < last.saturating_add(self.window));
        if !self.is_pending || is_early {
            return false;
        }
        self.last_event = Some(now);
        self.is_pending = false;
        true
    }

    /// Returns the growth within the last window, assuming that it was even in the window before this one.
    fn growth(&mut self, now: u64) -> u64 {
        let elapsed = now.saturating_sub(self.start);
        let growth = self.total.saturating_sub(self.start_total);
        if elapsed > self.window {
            self.start = now;
            self.start_total = self.total;
            self.growth_before = growth;
            return growth;
        }
        let left = self.window - elapsed;
        growth.saturating_add(self.growth_before.saturating_mul(left) / self.window)
    }
}

/// Parses a decimal number of at most 32 bits.
fn number(text: &str) -> Option<u64> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse::<u32>().ok().filter(|_| is_decimal).map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSEC: u64 = 1_000_000;

    fn make(text: &str, is_root: bool) -> Result<Trigger> {
        Trigger::parse(text, is_root, (Directory::ROOT, Pressure::Compute), (0, [0; 2]))
    }

    fn made(text: &str) -> Trigger {
        make(text, true).unwrap()
    }

    #[test]
    fn format_and_ranges_are_those_of_the_kernel() {
        let errno = |text: &str, is_root| {
            let made = make(text, is_root);
            made.map(drop).map_err(|error| error.errno())
        };
        for text in [
            "some 150000 1000000",
            "full 500000 500000",
            "some 1 10000000",
            "some 150000 1000000\0",
            "full  1\t2000000",
        ] {
            assert_eq!(errno(text, true), Ok(()), "{text}");
        }
        for text in [
            "",
            "some",
            "some 1",
            "none 150000 1000000",
            "Some 150000 1000000",
            "some 150000 1000000 1",
            "some 0 1000000",
            "some 1000001 1000000",
            "some 1 499999",
            "some 1 10000001",
            "some -1 1000000",
            "some +1 1000000",
            "some 1e3 1000000",
            "some 1 99999999999",
            "150000 1000000",
        ] {
            assert_eq!(errno(text, true), Err(libc::EINVAL), "{text}");
        }
        assert_eq!(errno("some 1 1000000", false), Err(libc::EINVAL));
        assert_eq!(errno("some 1 2000000", false), Ok(()));
        assert_eq!(errno("some 1 3000000", false), Err(libc::EINVAL));
    }

    #[test]
    fn event_comes_when_the_threshold_is_reached_and_once_per_window() {
        let mut trigger = made("some 150000 1000000");
        assert_eq!(trigger.next(), 100 * MSEC);
        let mut events = Vec::new();
        for tenth in 1..=30_u64 {
            // Waits all the time.
            if trigger.update(tenth * 100 * MSEC, [tenth * 100_000, 0]) {
                events.push(tenth);
            }
        }
        assert_eq!(events, [2, 12, 22]);
    }

    #[test]
    fn growth_below_the_threshold_is_no_event() {
        let mut trigger = made("full 150000 1000000");
        let events =
            (1..=50_u64).filter(|tenth| trigger.update(tenth * 100 * MSEC, [u64::MAX, tenth * 13_000]));
        assert_eq!(events.count(), 0);
    }

    #[test]
    fn event_exceeded_within_the_window_of_another_comes_after_it() {
        let mut trigger = made("some 100000 1000000");
        assert!(trigger.update(100 * MSEC, [100_000, 0]));
        assert!(!trigger.update(500 * MSEC, [400_000, 0]));
        assert!(!trigger.update(1000 * MSEC, [400_000, 0]));
        assert!(
            trigger.update(1100 * MSEC, [400_000, 0]),
            "nothing waits any more"
        );
        assert!(!trigger.update(3000 * MSEC, [400_000, 0]));
    }
}
