//! Timers of the event loop.

use std::time::Instant;

use nix::sys::epoll::{EpollFlags, EpollTimeout};
use tracing::warn;

use super::{Listener, RETURN, Server, TICK};
use gcgroupfs_model::tree::Tree;

/// Maximum number of connections whose timers are handled in one turn of the loop: thousands may expire at
/// once.
const MAX_DUE: usize = 64;

impl Server {
    /// Returns how long the loop may sleep: until the earliest timer, or without limit if none is set.
    pub(super) fn timeout(&self) -> EpollTimeout {
        let now = Instant::now();
        let tick = self.receivers.depends_on_time().then(|| now + TICK);
        match [
            tick,
            self.connections.next_due(),
            self.full_until,
            self.next_tend,
            self.all_back,
            Some(self.next_journal),
            Some(self.next_lease),
            self.next_unused,
            Some(self.next_look),
        ]
        .into_iter()
        .flatten()
        .min()
        {
            // Rounded up, so that the loop does not spin through the last millisecond.
            Some(next) => u16::try_from(next.saturating_duration_since(now).as_millis() + 1)
                .map_or(EpollTimeout::ZERO, EpollTimeout::from),
            None => EpollTimeout::NONE,
        }
    }

    /// Handles the timers that have expired.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        if now >= self.next_tidy {
            self.shares.tidy(now);
            self.next_tidy = now + TICK;
            if let Some((number, usage)) = self.receivers.tick(now) {
                self.take_usage(number, usage);
            }
        }
        if now >= self.next_journal || self.journal.is_due() {
            self.tend_journal(now);
        }
        if now >= self.next_lease {
            self.next_lease = now + self.expire_leases();
        }
        if self.next_unused.is_some_and(|when| when <= now) {
            self.next_unused = None;
            self.tree.take_unused();
        }
        if self.next_unused.is_none() && self.tree.has_unused() {
            self.next_unused = Some(now + Tree::CHECK_UNUSED);
        }
        for _ in 0..MAX_DUE {
            let Some(number) = self.connections.pop_due(now) else {
                break;
            };
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            if connection.is_expired(now) {
                self.hang_up(number);
                continue;
            }
            let is_over = connection.unmute(now);
            if let Some(when) = connection.next_look() {
                self.connections.look_at(number, when);
            }
            if is_over {
                self.watch(number);
            }
        }
        if self.next_tend.is_some_and(|when| when <= now) {
            self.next_tend = self.registry.tend(now).map(|pause| now + pause);
        }
        if self.all_back.is_some_and(|when| when <= now) {
            self.all_back = self.registry.tend_unregistered().then_some(now + RETURN);
        }
        if self.next_look <= now {
            self.next_look = now + Listener::LOOK;
            if let Some(old) = self.listener.look() {
                self.listen_anew(old);
                // Not before, because the manager's reference may be the last to what clients have sent.
                if let Err(error) = self.listener.serve_anew() {
                    warn!("cannot listen: {error:#}");
                }
            }
        }
        if self.full_until.is_some_and(|when| when <= now) {
            self.full_until = None;
            self.listen(EpollFlags::EPOLLIN);
        }
    }
}
