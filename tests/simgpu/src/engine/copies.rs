//! Copies in progress: one at a time per route, concurrent with kernels.

use std::time::Duration;

use parking_lot::MutexGuard;

use super::{Engine, Queues, StreamId};
use crate::clock::{self, SPIN_NS, now_ns};
use crate::work::{Route, Work};

/// A copy that has started.
struct Copying {
    stream: StreamId,
    effect: Box<dyn FnOnce() + Send>,
    ns: u64,
    end: u64,
}

/// A copy engine.
#[derive(Default)]
struct CopyEngine {
    copying: Option<Copying>,
    /// End time of the last copy.
    clock: u64,
}

/// The copy engines of a device, as used by one process.
pub(crate) struct Copies {
    engine: &'static Engine,
    /// Indexed by route.
    engines: [CopyEngine; Route::ALL.len()],
}

impl Copies {
    pub(crate) fn new(engine: &'static Engine) -> Copies {
        Copies {
            engine,
            engines: Default::default(),
        }
    }

    /// Starts the next copy on each route whose engine is idle.
    pub(crate) fn begin(&mut self, queues: &mut Queues) {
        for route in Route::ALL {
            let engine = &mut self.engines[route as usize];
            if engine.copying.is_some() {
                continue;
            }
            let is_meant = |work: &Work| matches!(work, Work::Copy(by, ..) if *by == route);
            let Some(id) = queues.next(is_meant) else {
                continue;
            };
            let Some(stream) = queues.streams.get_mut(&id) else {
                continue;
            };
            let clock = stream.clock;
            let Some(op) = stream.queue.front_mut() else {
                continue;
            };
            if let Some(Work::Copy(_, ns, effect)) = op.work.take() {
                let end = clock.max(op.submitted).max(engine.clock).saturating_add(ns);
                engine.copying = Some(Copying {
                    stream: id,
                    effect,
                    ns,
                    end,
                });
            }
        }
    }

    /// Completes the copies whose end time has passed. Returns whether there were any.
    pub(crate) fn end(&mut self, queues: &mut MutexGuard<'_, Queues>) -> bool {
        let now = now_ns();
        let mut ended = false;
        for engine in &mut self.engines {
            let Some(copy) = engine.copying.take_if(|copy| copy.end <= now) else {
                continue;
            };
            engine.clock = copy.end;
            self.engine.count_copy(copy.ns);
            MutexGuard::unlocked(queues, copy.effect);
            self.engine.finish(queues, copy.stream, copy.end);
            ended = true;
        }
        ended
    }

    /// Returns how long to sleep: until the next copy ends, at most `limit`. `None`: the time is too short to
    /// sleep; the caller checks again.
    pub(crate) fn until_next(
        &self,
        queues: &mut MutexGuard<'_, Queues>,
        limit: Option<Duration>,
    ) -> Option<Option<Duration>> {
        let ends = self.engines.iter().filter_map(|engine| engine.copying.as_ref());
        let Some(end) = ends.map(|copy| copy.end).min() else {
            return Some(limit);
        };
        let left = end.saturating_sub(now_ns());
        if left < SPIN_NS {
            MutexGuard::unlocked(queues, clock::pause);
            return None;
        }
        let left = Duration::from_nanos(left);
        Some(Some(limit.map_or(left, |limit| limit.min(left))))
    }
}
