//! The thread that executes an engine's work.

#[cfg(test)]
mod tests;

use std::time::Duration;

use parking_lot::MutexGuard;

use super::copies::Copies;
use super::{Engine, Queues, StreamId};
use crate::clock::{self, SPIN_NS, now_ns};
use crate::turn::{Grant, Turn};
use crate::work::{Cost, Watch, Work};

/// Interval at which waits with [`Watch::Polled`] are checked.
const POLL: Duration = Duration::from_micros(100);

/// A kernel that has started.
struct Running {
    stream: StreamId,
    effect: Box<dyn FnOnce() + Send>,
    cost: Cost,
    /// When it first had the device.
    began: Option<u64>,
    /// Earliest start time.
    ready: u64,
    /// Nanoseconds of device time consumed.
    had: u64,
}

impl Running {
    /// Returns from when on it runs in a hold of the device that is accounted for up to `from`.
    fn from(&self, from: u64) -> u64 {
        from.max(self.began.unwrap_or(self.ready))
    }

    /// Returns when it ends if the hold lasts.
    fn end(&self, from: u64) -> u64 {
        let from = self.from(from);
        match self.cost {
            Cost::Device(ns) => from.saturating_add(ns.saturating_sub(self.had)),
            Cost::Elapsed(ns) => self.began.unwrap_or(from).saturating_add(ns).max(from),
        }
    }
}

/// The interval in which this process has the device.
#[derive(Clone, Copy)]
struct Hold {
    since: u64,
    /// Work is accounted for up to this time.
    from: u64,
    until: u64,
}

struct Runner {
    engine: &'static Engine,
    turn: Turn,
    running: Vec<Running>,
    hold: Option<Hold>,
    /// End time of the last kernel.
    clock: u64,
    copies: Copies,
}

/// Executes an engine's work forever.
pub(crate) fn run(engine: &'static Engine) {
    // SAFETY: affects only this thread's timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    let mut runner = Runner::new(engine);
    loop {
        runner.step();
    }
}

impl Runner {
    fn new(engine: &'static Engine) -> Self {
        Self {
            engine,
            turn: Turn::new(engine.member, engine.device),
            running: Vec::new(),
            hold: None,
            clock: 0,
            copies: Copies::new(engine),
        }
    }

    /// Makes all possible progress, then sleeps until there may be more.
    fn step(&mut self) {
        let bell = self.engine.bell_count();
        let mut queues = self.engine.lock();
        let polling = loop {
            queues.nudged = false;
            let (moved, waits) = self.pass(&mut queues);
            self.copies.begin(&mut queues);
            let moved = self.copies.end(&mut queues) || moved;
            // Work may have come for a stream that was passed while a later one was asked without the lock.
            if !moved && !queues.nudged {
                break waits;
            }
        };
        while self.running.len() < self.engine.concurrent && self.begin(&mut queues) {}
        let Some(limit) = self.advance(&mut queues, now_ns()) else {
            return;
        };
        let Some(limit) = self.copies.until_next(&mut queues, limit) else {
            return;
        };
        let limit = if polling {
            Some(limit.map_or(POLL, |limit| limit.min(POLL)))
        } else {
            limit
        };
        queues.asleep = true;
        drop(queues);
        self.engine.sleep(bell, limit);
    }

    /// Goes once over all streams and executes everything but kernels and copies. Returns whether anything
    /// was done, and whether a stream has a wait that must be polled.
    fn pass(&mut self, queues: &mut MutexGuard<'_, Queues>) -> (bool, bool) {
        let (mut moved, mut waits) = (false, false);
        let ids: Vec<StreamId> = queues
            .streams
            .iter()
            .filter(|(_, s)| !s.queue.is_empty())
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let Some(stream) = queues.streams.get(&id) else {
                continue;
            };
            let Some(op) = stream.queue.front() else { continue };
            if matches!(op.work, None | Some(Work::Kernel(..) | Work::Copy(..)))
                || !queues.allowed(stream, op.seq)
            {
                continue;
            }
            let at = stream.clock.max(op.submitted);
            let Some(op) = queues
                .streams
                .get_mut(&id)
                .and_then(|stream| stream.queue.front_mut())
            else {
                continue;
            };
            match op.work.take() {
                Some(Work::Do(work)) => {
                    MutexGuard::unlocked(queues, || work(at));
                    self.engine.finish(queues, id, at);
                    moved = true;
                }
                Some(Work::Mark(mark, wake)) => {
                    mark(at);
                    self.engine.finish(queues, id, at);
                    MutexGuard::unlocked(queues, wake);
                    moved = true;
                }
                Some(Work::Timed(mark, wake)) => match self.reach(at) {
                    Some(at) => {
                        mark(at);
                        self.engine.finish(queues, id, at);
                        MutexGuard::unlocked(queues, wake);
                        moved = true;
                    }
                    None => {
                        op.work = Some(Work::Timed(mark, wake));
                        waits = true;
                    }
                },
                Some(Work::Expand(mut next)) => {
                    let more = MutexGuard::unlocked(queues, &mut next);
                    if more.is_empty() {
                        self.engine.finish(queues, id, at);
                    } else {
                        self.engine.expand(queues, id, Work::Expand(next), more);
                    }
                    moved = true;
                }
                Some(Work::Host(work)) => {
                    self.engine.hand_to_host(id, work);
                    moved = true;
                }
                Some(Work::Wait(mut reached, watch)) => {
                    let reached_now = MutexGuard::unlocked(queues, &mut reached);
                    let is_dropped = queues.streams.get(&id).is_some_and(|stream| stream.dropped);
                    if reached_now || is_dropped {
                        self.engine.finish(queues, id, now_ns());
                        moved = true;
                    } else if let Some(op) = queues.streams.get_mut(&id).and_then(|s| s.queue.front_mut()) {
                        op.work = Some(Work::Wait(reached, watch));
                        waits |= watch == Watch::Polled;
                    }
                }
                other => op.work = other,
            }
        }
        (moved, waits)
    }

    /// Returns when the device executes what could be executed at `at`; `None` while another process has it.
    fn reach(&mut self, at: u64) -> Option<u64> {
        if self.hold.is_none() {
            let Grant::Mine { since, until } = self.turn.ask(now_ns(), at) else {
                return None;
            };
            self.hold = Some(Hold {
                since,
                from: since,
                until,
            });
        }
        self.hold.map(|hold| at.max(hold.since))
    }

    /// Starts the next kernel; returns whether there is one.
    fn begin(&mut self, queues: &mut Queues) -> bool {
        let Some(id) = queues.next(|work| matches!(work, Work::Kernel(..))) else {
            return false;
        };
        let Some(stream) = queues.streams.get_mut(&id) else {
            return false;
        };
        let clock = stream.clock;
        let Some(op) = stream.queue.front_mut() else {
            return false;
        };
        let Some(Work::Kernel(cost, effect)) = op.work.take() else {
            return false;
        };
        // The last of those that run at once has waited for another one's end.
        let waited = if self.running.len() + 1 == self.engine.concurrent {
            self.clock
        } else {
            0
        };
        self.running.push(Running {
            stream: id,
            effect,
            cost,
            began: None,
            ready: clock.max(op.submitted).max(waited),
            had: 0,
        });
        true
    }

    /// Advances the running kernels. `None`: there was progress, the caller checks again; otherwise how long
    /// to sleep.
    fn advance(&mut self, queues: &mut MutexGuard<'_, Queues>, now: u64) -> Option<Option<Duration>> {
        let Some(ready) = self.running.iter().map(|running| running.ready).min() else {
            if let Some(hold) = self.hold.take() {
                self.turn.release(hold.from);
            }
            return Some(None);
        };
        let Some(hold) = self.hold else {
            return match self.turn.ask(now, ready) {
                Grant::Wait(limit) => Some(Some(limit)),
                Grant::Mine { since, until } => {
                    self.hold = Some(Hold {
                        since,
                        from: since,
                        until,
                    });
                    None
                }
            };
        };
        self.start(hold.from, now);
        let ends = self.running.iter().enumerate();
        let (end, first) = ends
            .map(|(index, running)| (running.end(hold.from), index))
            .min()?;
        let reached = now.min(hold.until);
        if end <= reached || now >= hold.until {
            let upto = end.min(reached).max(hold.from);
            self.work(hold.from, upto);
            if end <= reached {
                self.hold = Some(Hold { from: upto, ..hold });
                let ended = self.running.swap_remove(first);
                self.end(queues, ended, end);
            } else {
                self.hold = self.turn.renew(upto).map(|until| Hold {
                    since: upto,
                    from: upto,
                    until,
                });
            }
            return None;
        }
        let left = end.min(hold.until) - now;
        if left < SPIN_NS {
            MutexGuard::unlocked(queues, clock::pause);
            return None;
        }
        Some(Some(Duration::from_nanos(left)))
    }

    /// Starts the kernels that can run by `now` in a hold of the device that is accounted for up to `from`.
    fn start(&mut self, from: u64, now: u64) {
        for running in self.running.iter_mut().filter(|running| running.began.is_none()) {
            let start = running.from(from);
            if start <= now {
                running.began = Some(start);
                self.engine.member.count_launch(self.engine.device);
            }
        }
    }

    /// Runs the kernels that have started for the time between these two.
    fn work(&mut self, from: u64, upto: u64) {
        let mut busy_from = upto;
        for running in &mut self.running {
            let start = running.from(from);
            if start > upto {
                continue;
            }
            running.had += upto - start;
            busy_from = busy_from.min(start);
        }
        self.engine.count_busy(upto - busy_from);
    }

    fn end(&mut self, queues: &mut MutexGuard<'_, Queues>, running: Running, at: u64) {
        self.clock = at;
        MutexGuard::unlocked(queues, running.effect);
        self.engine.finish(queues, running.stream, at);
    }
}
