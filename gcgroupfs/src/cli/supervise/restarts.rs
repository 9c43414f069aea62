//! When to start the next daemon: soon after one that served and was killed from outside, and after growing
//! pauses while daemons fail by themselves, for instance because the machine is out of memory.

use std::fs;
use std::process::ExitStatus;
use std::time::Duration;

use nix::libc::SIGKILL;
use tracing::{info, warn};

use super::Signals;
use crate::cli::service;

/// A daemon that served for longer and was killed from outside is replaced at once.
const SHORT: Duration = Duration::from_secs(1);

/// Longest pause after a daemon that was killed from outside. Hooks wait for one second before they try again
/// to register.
const PAUSE: Duration = Duration::from_millis(250);

/// Longest pause after a daemon that failed by itself; one that lived for longer is replaced at once.
const LONGEST: Duration = Duration::from_secs(30);

/// Facts about a daemon's life.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Life {
    pub(super) lasted: Duration,
    /// Whether it ever reported that it serves.
    pub(super) has_served: bool,
    /// Signal that ended it.
    pub(super) signal: Option<i32>,
    /// Whether the kernel has killed a process for lack of memory meanwhile.
    pub(super) is_for_memory: bool,
}

impl Life {
    /// Returns the log text about its end.
    pub(super) fn end(&self, status: ExitStatus) -> String {
        match self.signal {
            Some(SIGKILL) if self.is_for_memory => "the daemon was killed for memory (signal 9)".to_owned(),
            Some(signal) => format!("the daemon was ended by signal {signal}"),
            None => format!("the daemon has failed ({status})"),
        }
    }

    /// Returns whether a healthy daemon was killed from outside.
    fn is_by_somebody(&self) -> bool {
        self.has_served && self.signal == Some(SIGKILL) && !self.is_for_memory
    }
}

/// Record of the last daemons.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    /// Number that failed by themselves, in a row.
    nr: u32,
    pause: Duration,
}

impl Restarts {
    /// Returns how many daemons in a row have failed by themselves.
    pub(super) fn nr(&self) -> u32 {
        self.nr
    }

    /// Returns how long to wait before the next one.
    fn pause(&mut self, life: &Life) -> Duration {
        let (short, longest) = match life.is_by_somebody() {
            true => (SHORT, PAUSE),
            false => (LONGEST, LONGEST),
        };
        self.nr = match (life.is_by_somebody(), life.lasted >= longest) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => self.nr + 1,
        };
        self.pause = if life.lasted >= short {
            Duration::ZERO
        } else {
            (self.pause * 2).clamp(Duration::from_millis(1), longest)
        };
        self.pause
    }

    /// Reports a daemon's end to the log and the service manager, and waits until the next start is due or a
    /// signal arrives.
    pub(super) fn wait(&mut self, signals: &Signals, end: &str, life: &Life) {
        let pause = self.pause(life);
        if self.nr > 1 {
            let told = format!("{end}, {} in a row; starting another in {pause:?}", self.nr);
            warn!("{told}");
            service::status(&told);
        } else {
            warn!("{end}; starting another");
        }
        signals.sleep(pause);
    }
}

/// Reports that a daemon serves after others have failed.
pub(super) fn tell_served(nr_failed: u32) {
    info!("the daemon serves again after {nr_failed} failures");
    service::status("");
}

/// Returns how many processes the kernel has killed for lack of memory, in the memory cgroup or the whole
/// machine; 0 if unknown.
pub(super) fn nr_killed_for_memory() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(life: Life, restarts: &mut Restarts) -> Vec<Duration> {
        (0..20).map(|_| restarts.pause(&life)).collect()
    }

    fn life(millis: u64, has_served: bool, signal: i32, is_for_memory: bool) -> Life {
        Life {
            lasted: Duration::from_millis(millis),
            has_served,
            signal: Some(signal),
            is_for_memory,
        }
    }

    #[test]
    fn daemon_that_fails_by_itself_is_restarted_with_growing_delay() {
        for life in [
            life(100, false, SIGKILL, false),
            life(20_000, true, SIGKILL, true),
            life(5_000, true, 6, false),
        ] {
            let mut restarts = Restarts::default();
            let pauses = pauses(life, &mut restarts);
            assert!(pauses.is_sorted(), "{pauses:?}");
            assert_eq!((pauses[0], pauses[19]), (Duration::from_millis(1), LONGEST));
            assert_eq!(restarts.nr(), 20);
        }
    }

    #[test]
    fn daemon_killed_from_outside_is_restarted_soon() {
        let mut restarts = Restarts::default();
        assert_eq!(pauses(life(100, true, SIGKILL, false), &mut restarts)[19], PAUSE);
        assert_eq!(restarts.nr(), 0);
        pauses(life(100, true, 11, false), &mut restarts);
        assert_eq!(restarts.pause(&life(100, true, SIGKILL, false)), PAUSE);
        assert_eq!(restarts.pause(&life(1000, true, SIGKILL, false)), Duration::ZERO);
    }

    #[test]
    fn daemon_that_lived_long_is_restarted_at_once() {
        let mut restarts = Restarts::default();
        pauses(life(100, false, 6, false), &mut restarts);
        assert_eq!(restarts.pause(&life(31_000, true, 6, false)), Duration::ZERO);
        assert_eq!(restarts.nr(), 1);
    }
}
