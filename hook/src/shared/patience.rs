//! How long an answer of the daemon is awaited: longer while the daemon is busy than if it hangs.

use std::fs;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::packet_socket::peer;

/// Longest wait of the program for a daemon that works. Each of 1000 programs that start at once has its
/// answer by then.
pub(crate) const MOST: Duration = Duration::from_secs(60);

/// Limits of a wait for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// Limit while the daemon does nothing.
    idle: Duration,
    /// Limit in all.
    most: Duration,
}

impl Limit {
    /// Returns the limits for the program's own threads: longer than `idle` while the daemon works.
    pub(crate) fn of_program(idle: Duration) -> Self {
        Self { idle, most: MOST }
    }

    pub(crate) fn idle(self) -> Duration {
        self.idle
    }
}

impl From<Duration> for Limit {
    fn from(most: Duration) -> Self {
        Self { idle: most, most }
    }
}

/// A wait for an answer.
#[derive(Debug)]
pub(crate) struct Patience {
    idle: Duration,
    deadline: Instant,
    /// End of the wait in any case.
    end: Instant,
    /// Process that listens; 0: unknown.
    daemon: u32,
    /// Work of the daemon by half of the time; not read sooner, since most answers come before.
    worked: Option<String>,
}

impl Patience {
    /// Begins a wait for the process that listens at the other end of the socket.
    pub(super) fn new(limit: Limit, socket: RawFd) -> Self {
        let now = Instant::now();
        let daemon = peer(socket).map_or(0, |peer| peer.pid.cast_unsigned());
        Self {
            idle: limit.idle,
            deadline: now + limit.idle,
            end: now + limit.most,
            daemon,
            worked: None,
        }
    }

    /// Returns how long to wait until the next call; `None`: no longer.
    pub(crate) fn left(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let mut next = self.deadline;
        if self.deadline < self.end {
            let half = self.idle / 2;
            match &self.worked {
                None if now < self.deadline - half => next = self.deadline - half,
                None => {
                    self.worked = Some(work(self.daemon));
                    // This thread may have been kept from running as well.
                    self.deadline = self.deadline.max(now + half).min(self.end);
                    next = self.deadline;
                }
                Some(_) if now < self.deadline => {}
                Some(worked) => {
                    let works = work(self.daemon);
                    if !works.is_empty() && works != *worked {
                        (self.worked, self.deadline) = (None, (now + self.idle).min(self.end));
                        next = now + half;
                    }
                }
            }
        }
        let left = next.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

/// Returns a text that changes when the main thread of a process, which answers clients, runs; empty if the
/// kernel does not tell, as in a container.
fn work(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a wait for a process that has done nothing since its start.
    fn wait(daemon: u32, most: Duration) -> Patience {
        let now = Instant::now();
        Patience {
            idle: Duration::from_secs(1),
            deadline: now,
            end: now + most,
            daemon,
            worked: Some("before".to_owned()),
        }
    }

    #[test]
    fn wait_goes_on_while_the_daemon_works() {
        let own = std::process::id();
        assert!(wait(own, MOST).left().is_some());
        assert!(wait(own, Duration::ZERO).left().is_none(), "its end has come");
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        // Not waited for yet, it does nothing once it has ended.
        let hangs = |_| {
            std::thread::sleep(Duration::from_millis(1));
            let worked = Some(work(ended.id()));
            let mut patience = wait(ended.id(), MOST);
            patience.worked = worked;
            patience.left().is_none()
        };
        assert!((0..60_000).any(hangs));
        ended.wait().unwrap();
    }

    #[test]
    fn wait_ends_where_nothing_is_known_of_the_daemon() {
        assert!(wait(0, MOST).left().is_none());
    }
}
