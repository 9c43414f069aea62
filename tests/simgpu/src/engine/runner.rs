//! The thread that executes an engine's work.

#[cfg(test)]
mod tests;

use std::time::Duration;

use parking_lot::MutexGuard;

use super::copies::Copies;
use super::{Engine, Queues, StreamId};
use crate::clock::{SPIN_NS, now_ns};
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

/// The interval in which this process has the device.
#[derive(Clone, Copy)]
struct Hold {
    /// Work is accounted for up to this time.
    from: u64,
    until: u64,
}

struct Runner {
    engine: &'static Engine,
    turn: Turn,
    running: Option<Running>,
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
            running: None,
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
        if self.running.is_none() {
            self.begin(&mut queues);
        }
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
    fn pass(&self, queues: &mut MutexGuard<'_, Queues>) -> (bool, bool) {
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

    /// Starts the next kernel.
    fn begin(&mut self, queues: &mut Queues) {
        let Some(id) = queues.next(|work| matches!(work, Work::Kernel(..))) else {
            return;
        };
        let Some(stream) = queues.streams.get_mut(&id) else {
            return;
        };
        let clock = stream.clock;
        let Some(op) = stream.queue.front_mut() else {
            return;
        };
        if let Some(Work::Kernel(cost, effect)) = op.work.take() {
            let ready = clock.max(op.submitted);
            self.running = Some(Running {
                stream: id,
                effect,
                cost,
                began: None,
                ready,
                had: 0,
            });
        }
    }

    /// Advances the running kernel. `None`: there was progress, the caller checks again; otherwise how long
    /// to sleep.
    fn advance(&mut self, queues: &mut MutexGuard<'_, Queues>, now: u64) -> Option<Option<Duration>> {
        let Some(running) = &mut self.running else {
            if let Some(hold) = self.hold.take() {
                self.turn.release(hold.from);
            }
            return Some(None);
        };
        let Some(hold) = &mut self.hold else {
            return match self.turn.ask(now) {
                Grant::Wait(limit) => Some(Some(limit)),
                Grant::Mine { since, until } => {
                    self.hold = Some(Hold {
                        from: since.max(self.clock),
                        until,
                    });
                    None
                }
            };
        };
        if running.began.is_none() {
            hold.from = hold.from.max(running.ready).max(self.clock);
            running.began = Some(hold.from);
            self.engine.member.count_launch(self.engine.device);
        }
        let began = running.began.unwrap_or(hold.from);
        let end = match running.cost {
            Cost::Device(ns) => hold.from.saturating_add(ns.saturating_sub(running.had)),
            Cost::Elapsed(ns) => began.saturating_add(ns).max(hold.from),
        };
        let reached = now.min(hold.until);
        if end <= reached || now >= hold.until {
            let upto = end.min(reached).max(hold.from);
            let worked = upto - hold.from;
            self.engine.count_busy(worked);
            running.had += worked;
            hold.from = upto;
            if end <= reached {
                self.end(queues, end);
            } else {
                self.hold = self.turn.renew(upto).map(|until| Hold { from: upto, until });
            }
            return None;
        }
        let left = end.min(hold.until) - now;
        if left < SPIN_NS {
            MutexGuard::unlocked(queues, std::thread::yield_now);
            return None;
        }
        Some(Some(Duration::from_nanos(left)))
    }

    fn end(&mut self, queues: &mut MutexGuard<'_, Queues>, at: u64) {
        let Some(running) = self.running.take() else {
            return;
        };
        self.clock = at;
        MutexGuard::unlocked(queues, running.effect);
        self.engine.finish(queues, running.stream, at);
    }
}
