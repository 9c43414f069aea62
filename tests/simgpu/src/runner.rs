//! The thread behind an engine.

use std::time::Duration;

use parking_lot::MutexGuard;

use crate::clock::now_ns;
use crate::copies::Copies;
use crate::engine::{Cost, Engine, Queues, StreamId, Watch, Work};
use crate::turn::{Grant, Turn};

/// Sleeps shorter than this end too late to be worth it.
pub(crate) const SPIN_NS: u64 = 40_000;

/// How often a stream that waits for a word of memory looks at it.
const POLL: Duration = Duration::from_micros(100);

/// A kernel that has begun.
struct Running {
    stream: StreamId,
    effect: Box<dyn FnOnce() + Send>,
    cost: Cost,
    /// When it first had the device.
    began: Option<u64>,
    /// The earliest it may begin.
    ready: u64,
    /// Nanoseconds of the device it has had.
    had: u64,
}

/// The time the device is this process's.
#[derive(Clone, Copy)]
struct Hold {
    /// Work is accounted for up to here.
    from: u64,
    until: u64,
}

struct Runner {
    engine: &'static Engine,
    turn: Turn,
    running: Option<Running>,
    hold: Option<Hold>,
    /// When the last kernel ended.
    clock: u64,
    copies: Copies,
}

/// Starts a thread that no signal of the program's is delivered to.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    // SAFETY: both sets are valid and the calls cannot fail with these arguments.
    let before = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let started = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(256 << 10)
        .spawn(body);
    // SAFETY: `before` was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    if let Err(error) = started {
        eprintln!("simgpu: no thread for the device: {error}");
    }
}

/// Does an engine's work for ever.
pub(crate) fn run(engine: &'static Engine) {
    // SAFETY: concerns this thread's timers only.
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

    /// Does what can be done, then sleeps until there may be more.
    fn step(&mut self) {
        let bell = self.engine.bell_count();
        let mut queues = self.engine.lock();
        let polling = loop {
            let (moved, waits) = self.pass(&mut queues);
            self.copies.begin(&mut queues);
            if !moved && !self.copies.end(&mut queues) {
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

    /// Goes once over all streams and does what is not a kernel. Tells whether anything was done, and
    /// whether a stream waits for what rings no bell.
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
                    if MutexGuard::unlocked(queues, &mut reached) {
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

    /// Begins the next kernel.
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

    /// Moves the running kernel on. `None`: something happened, look again; else how long to sleep.
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::engine::{Route, StreamKind};
    use crate::member::Member;

    const MS: u64 = 1_000_000;

    fn engine() -> &'static Engine {
        Engine::new(Member::two()[0], 0)
    }

    fn kernel(ms: u64) -> Work {
        Work::Kernel(Cost::Device(ms * MS), Box::new(|| ()))
    }

    fn note<T: Send + 'static>(to: &mpsc::Sender<(T, u64)>, what: T) -> Work {
        let to = to.clone();
        Work::Do(Box::new(move |at| to.send((what, at)).unwrap()))
    }

    #[test]
    fn a_stream_does_its_work_in_order_and_kernels_take_their_time() {
        let engine = engine();
        let stream = engine.open(1, StreamKind::NonBlocking, 0);
        let (to, noted) = mpsc::channel();
        engine.submit(
            stream,
            [
                kernel(1),
                note(&to, 0),
                kernel(3),
                note(&to, 1),
                kernel(2),
                note(&to, 2),
            ],
        );
        engine.wait(stream);
        let noted: Vec<_> = noted.try_iter().collect();
        assert_eq!(noted.iter().map(|(what, _)| *what).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(noted[1].1 - noted[0].1, 3 * MS);
        assert_eq!(noted[2].1 - noted[1].1, 2 * MS);
        assert!(engine.is_idle(stream));
    }

    #[test]
    fn the_legacy_stream_goes_behind_and_before_blocking_ones_only() {
        let engine = engine();
        let blocking = engine.open(1, StreamKind::Blocking, 0);
        let apart = engine.open(1, StreamKind::NonBlocking, 0);
        let legacy = engine.open(1, StreamKind::Legacy, 0);
        let elsewhere = engine.open(2, StreamKind::Blocking, 0);
        let (to, noted) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        engine.submit(
            blocking,
            [
                Work::Host(Box::new(move || gate.recv().unwrap())),
                note(&to, "first"),
            ],
        );
        engine.submit(legacy, [note(&to, "second")]);
        engine.submit(blocking, [note(&to, "third")]);
        engine.submit(apart, [note(&to, "apart")]);
        engine.submit(elsewhere, [note(&to, "elsewhere")]);
        engine.wait(apart);
        engine.wait(elsewhere);
        let mut free: Vec<_> = noted.try_iter().map(|(what, _)| what).collect();
        free.sort_unstable();
        assert_eq!(free, ["apart", "elsewhere"]);
        assert!(!engine.is_idle(legacy));
        open.send(()).unwrap();
        engine.wait_domain(1);
        assert_eq!(
            noted.try_iter().map(|(what, _)| what).collect::<Vec<_>>(),
            ["first", "second", "third"]
        );
    }

    #[test]
    fn work_that_expands_goes_on_until_there_is_no_more() {
        let engine = engine();
        let stream = engine.open(1, StreamKind::NonBlocking, 0);
        let (to, noted) = mpsc::channel();
        let mut left = 3;
        let inner = to.clone();
        let expand = Work::Expand(Box::new(move || {
            if left == 0 {
                return Vec::new();
            }
            left -= 1;
            vec![kernel(1), note(&inner, left)]
        }));
        engine.submit(stream, [expand, note(&to, 9)]);
        engine.wait(stream);
        let noted: Vec<_> = noted.try_iter().collect();
        assert_eq!(
            noted.iter().map(|(what, _)| *what).collect::<Vec<_>>(),
            [2, 1, 0, 9]
        );
        assert_eq!(noted[3].1 - noted[0].1, 2 * MS);
    }

    #[test]
    fn copies_take_turns_on_their_route_and_none_beside_it() {
        let engine = engine();
        let copy = |route, ms: u64| Work::Copy(route, ms * MS, Box::new(|| ()));
        let (to, noted) = mpsc::channel();
        let gate = engine.open(1, StreamKind::NonBlocking, 0);
        let (open, closed) = mpsc::channel::<()>();
        let works = [
            ("up", copy(Route::ToDevice, 4)),
            ("down", copy(Route::ToHost, 4)),
            ("up too", copy(Route::ToDevice, 4)),
            ("kernel", kernel(4)),
        ];
        // All streams begin when one kernel ends, and so at one time.
        let held = Work::Kernel(Cost::Device(0), Box::new(move || closed.recv().unwrap()));
        engine.submit(gate, [held]);
        for (name, work) in works {
            let stream = engine.open(1, StreamKind::NonBlocking, 0);
            engine.submit(stream, [work, note(&to, name)]);
        }
        open.send(()).unwrap();
        engine.wait_domain(1);
        let at: std::collections::HashMap<_, _> = noted.try_iter().collect();
        assert!(at["up too"] >= at["up"] + 4 * MS, "{at:?}");
        assert!(at["down"] < at["up too"], "{at:?}");
        let copied = engine
            .member
            .here(0)
            .copy_ns
            .load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(copied, 12 * MS);
    }

    #[test]
    fn a_more_important_stream_goes_first() {
        let engine = engine();
        let low = engine.open(1, StreamKind::NonBlocking, 0);
        let high = engine.open(1, StreamKind::NonBlocking, -1);
        let (to, noted) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        let held = Work::Kernel(Cost::Device(0), Box::new(move || gate.recv().unwrap()));
        engine.submit(low, [held, kernel(1), note(&to, "low")]);
        engine.submit(high, [kernel(1), note(&to, "high")]);
        open.send(()).unwrap();
        engine.wait_domain(1);
        assert_eq!(
            noted.try_iter().map(|(what, _)| what).collect::<Vec<_>>(),
            ["high", "low"]
        );
    }

    #[test]
    fn who_notices_late_hands_the_device_on_from_when_it_used_it_last() {
        const NOW: u64 = 1 << 30;
        const SLICE: u64 = 2 * MS;
        const LATE: u64 = 70_000;
        // The turn's own unit is 1024 ns, to which it rounds up.
        const ROUNDING: u64 = 2 * 1024;
        let running = |ms: u64, ready| {
            Some(Running {
                stream: 0,
                effect: Box::new(|| ()),
                cost: Cost::Device(ms * MS),
                began: None,
                ready,
                had: 0,
            })
        };
        // How long each of the two kernels is, when the second was ready, and when it begins.
        for (first, second, ready, want) in [
            (9, 9, NOW, NOW + SLICE),
            (1, 9, NOW, NOW + MS),
            (1, 9, NOW + MS + LATE / 2, NOW + MS + LATE / 2),
        ] {
            let [mut a, mut b] = Member::two().map(|member| Runner::new(Engine::new(member, 0)));
            let (mut of_a, mut of_b) = (a.engine.lock(), b.engine.lock());
            a.running = running(first, NOW);
            b.running = running(second, ready);
            a.advance(&mut of_a, NOW);
            assert!(b.advance(&mut of_b, ready).is_some(), "it waits");
            let noticed = NOW + SLICE.min(first * MS) + LATE;
            while a.hold.is_some() {
                a.advance(&mut of_a, noticed);
            }
            b.advance(&mut of_b, noticed + LATE);
            b.advance(&mut of_b, noticed + LATE);
            let began = b.running.as_ref().and_then(|running| running.began).unwrap();
            assert!((want..want + ROUNDING).contains(&began), "{began} for {want}");
        }
    }

    #[test]
    fn two_processes_never_have_the_device_at_once() {
        let members = Member::two();
        let (to, noted) = mpsc::channel();
        let begun = now_ns();
        for (index, member) in members.into_iter().enumerate() {
            let engine = Engine::new(member, 0);
            let stream = engine.open(1, StreamKind::NonBlocking, 0);
            engine.submit(stream, (0..10).map(|_| kernel(1)).chain([note(&to, index)]));
        }
        let ends: Vec<u64> = noted.iter().take(2).map(|(_, at)| at).collect();
        assert!(
            ends.iter().max().unwrap() - begun >= 20 * MS,
            "{ends:?} since {begun}"
        );
        let busy: u64 = members
            .iter()
            .map(|member| member.here(0).busy_ns.load(std::sync::atomic::Ordering::Relaxed))
            .sum();
        assert_eq!(busy, 20 * MS);
    }

    #[test]
    fn a_wait_holds_its_stream_until_it_is_over() {
        let engine = engine();
        let stream = engine.open(1, StreamKind::NonBlocking, 0);
        let (to, noted) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        engine.submit(
            stream,
            [
                Work::Wait(Box::new(move || gate.try_recv().is_ok()), Watch::Nudged),
                note(&to, ()),
            ],
        );
        assert!(!engine.is_idle(stream));
        assert!(noted.try_recv().is_err());
        open.send(()).unwrap();
        engine.nudge();
        engine.wait(stream);
        assert!(noted.try_recv().is_ok());
    }
}
