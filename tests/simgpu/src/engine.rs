//! One process's work on one device: streams, each a queue executed in order, and the thread that executes
//! them.
//!
//! Time is simulated: a kernel starts when its stream, its device and its turn allow, and ends its cost
//! later. The thread sleeps meanwhile; if it wakes late, the next kernel starts at the time at which it could
//! have started. So short kernels take their exact time on average although sleeps are inexact. Kernels of
//! one process run one after another, or several at once without slowing each other down (they do not fill
//! the device); its copies on each route run one after another; kernels and the routes overlap.

mod copies;
mod runner;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::clock::{self, now_ns};
use crate::member::Member;
use crate::shield::Bell;
use crate::thread;
use crate::work::{StreamKind, Work};

/// A stream of an engine.
pub type StreamId = u64;

#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) seq: u64,
    pub(crate) submitted: u64,
    /// Taken when the operation starts; the operation leaves the queue when it ends.
    pub(crate) work: Option<Work>,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) domain: u64,
    pub(crate) kind: StreamKind,
    pub(crate) priority: i32,
    /// End time of the last completed operation.
    pub(crate) clock: u64,
    pub(crate) queue: VecDeque<Op>,
    /// Removed after its last operation.
    pub(crate) closing: bool,
    /// Its context was destroyed: executes nothing more.
    pub(crate) dropped: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    next_seq: u64,
    next_stream: StreamId,
    pub(crate) asleep: bool,
    /// Set when there may be something to do that the thread has not looked at.
    pub(crate) nudged: bool,
    started: bool,
    waiters: usize,
}

/// One process's work on one device.
#[derive(Debug)]
pub struct Engine {
    pub(crate) member: &'static Member,
    pub(crate) device: usize,
    /// Number of kernels that run at once at most.
    pub(crate) concurrent: usize,
    queues: Mutex<Queues>,
    progress: Bell,
    host: OnceLock<mpsc::Sender<(StreamId, HostWork)>>,
}

type HostWork = Box<dyn FnOnce() + Send>;

impl Engine {
    /// Creates an engine without streams. Its thread starts with the first submission.
    pub fn new(member: &'static Member, device: usize) -> &'static Engine {
        Self::with(member, device, concurrent())
    }

    /// Creates an engine that runs so many kernels at once.
    fn with(member: &'static Member, device: usize, concurrent: usize) -> &'static Engine {
        Box::leak(Box::new(Engine {
            member,
            device,
            concurrent,
            queues: Mutex::default(),
            progress: Bell::default(),
            host: OnceLock::new(),
        }))
    }

    /// Returns the engine's device.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Opens a stream. `domain` identifies the context, within which default streams order the others;
    /// streams with lower `priority` go first.
    pub fn open(&self, domain: u64, kind: StreamKind, priority: i32) -> StreamId {
        let mut queues = self.queues.lock();
        queues.next_stream += 1;
        let id = queues.next_stream;
        let queue = VecDeque::new();
        queues.streams.insert(
            id,
            Stream {
                domain,
                kind,
                priority,
                clock: 0,
                queue,
                closing: false,
                dropped: false,
            },
        );
        id
    }

    /// Closes a stream when its work is done.
    pub fn close(&self, id: StreamId) {
        let mut queues = self.queues.lock();
        if queues.streams.get_mut(&id).is_some_and(|stream| {
            stream.closing = true;
            stream.queue.is_empty()
        }) {
            queues.streams.remove(&id);
        }
    }

    /// Appends operations to a stream, without operations of other threads between them.
    pub fn submit(&'static self, id: StreamId, work: impl IntoIterator<Item = Work>) {
        let mut queues = self.queues.lock();
        // Before the time is taken: a driver's call ends soon after the device has its work.
        self.wake(&mut queues);
        let submitted = now_ns();
        for work in work {
            queues.next_seq += 1;
            let seq = queues.next_seq;
            let Some(stream) = queues.streams.get_mut(&id).filter(|stream| !stream.dropped) else {
                return;
            };
            stream.queue.push_back(Op {
                seq,
                submitted,
                work: Some(work),
            });
        }
    }

    /// Returns whether all work of a stream, and all work it is ordered behind, is done.
    pub fn is_idle(&self, id: StreamId) -> bool {
        let queues = self.queues.lock();
        queues
            .streams
            .get(&id)
            .is_none_or(|stream| stream.queue.is_empty() && queues.allowed(stream, u64::MAX))
    }

    /// Waits until all work submitted to a stream so far is done.
    pub fn wait(&'static self, id: StreamId) {
        if self.is_idle(id) {
            return;
        }
        // A legacy stream waits for others even when its own queue is empty.
        self.submit(id, [Work::Do(Box::new(|_| ()))]);
        let mut queues = self.queues.lock();
        let last = queues
            .streams
            .get(&id)
            .and_then(|stream| stream.queue.back())
            .map_or(0, |op| op.seq);
        self.wait_while(&mut queues, |queues| {
            queues
                .streams
                .get(&id)
                .is_some_and(|stream| stream.first() <= last)
        });
    }

    /// Returns whether a context has no work left.
    pub fn is_domain_idle(&self, domain: u64) -> bool {
        let queues = self.queues.lock();
        queues
            .streams
            .values()
            .all(|stream| stream.domain != domain || stream.queue.is_empty())
    }

    /// Waits until all work submitted to a context so far is done.
    pub fn wait_domain(&self, domain: u64) {
        let mut queues = self.queues.lock();
        let last = queues.next_seq;
        self.wait_while(&mut queues, |queues| !queues.has_ended(domain, last));
    }

    /// Returns the sequence number of the last submitted operation.
    pub fn submitted(&self) -> u64 {
        self.queues.lock().next_seq
    }

    /// Returns whether a context's operations up to sequence number `last` are done.
    pub fn has_ended(&self, domain: u64, last: u64) -> bool {
        self.queues.lock().has_ended(domain, last)
    }

    /// Closes all streams of a context and drops their operations that have not started.
    pub fn drop_domain(&'static self, domain: u64) {
        let mut queues = self.queues.lock();
        for stream in queues
            .streams
            .values_mut()
            .filter(|stream| stream.domain == domain)
        {
            (stream.closing, stream.dropped) = (true, true);
            stream.queue.retain(|op| op.work.is_none());
        }
        queues
            .streams
            .retain(|_, stream| !stream.closing || !stream.queue.is_empty());
        self.progress.ring();
        if queues.started {
            self.wake(&mut queues);
        }
    }

    /// Wakes the engine to check again what its streams wait for.
    pub fn nudge(&'static self) {
        let mut queues = self.queues.lock();
        if queues.started {
            self.wake(&mut queues);
        }
    }

    fn wait_while(&self, queues: &mut MutexGuard<'_, Queues>, mut busy: impl FnMut(&Queues) -> bool) {
        queues.waiters += 1;
        while busy(queues) {
            let seen = self.progress.count();
            MutexGuard::unlocked(queues, || self.progress.sleep(seen));
        }
        queues.waiters -= 1;
    }

    fn wake(&'static self, queues: &mut Queues) {
        queues.nudged = true;
        if !queues.started {
            queues.started = true;
            thread::spawn("simgpu", move || runner::run(self));
        } else if queues.asleep {
            queues.asleep = false;
            clock::ring(self.bell());
        }
    }

    pub(crate) fn bell(&self) -> &'static AtomicU32 {
        &self.member.here(self.device).bell
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }

    /// Removes the first operation of a stream, which ended at `ended`.
    pub(crate) fn finish(&self, queues: &mut Queues, id: StreamId, ended: u64) {
        let Some(stream) = queues.streams.get_mut(&id) else {
            return;
        };
        stream.queue.pop_front();
        stream.clock = stream.clock.max(ended);
        if stream.closing && stream.queue.is_empty() {
            queues.streams.remove(&id);
        }
        if queues.waiters > 0 {
            self.progress.ring();
        }
    }

    /// Inserts `more` before the first operation of a stream, whose work becomes `rest`.
    pub(crate) fn expand(&self, queues: &mut Queues, id: StreamId, rest: Work, more: Vec<Work>) {
        let Some(stream) = queues.streams.get_mut(&id) else {
            return;
        };
        let Some(first) = stream.queue.front_mut() else {
            return;
        };
        first.work = Some(rest);
        let (seq, submitted) = (first.seq, first.submitted);
        for work in more.into_iter().rev() {
            stream.queue.push_front(Op {
                seq,
                submitted,
                work: Some(work),
            });
        }
    }

    /// Runs `work`, the first operation of the stream, on the host thread.
    pub(crate) fn hand_to_host(&'static self, id: StreamId, work: HostWork) {
        let host = self.host.get_or_init(|| {
            let (sender, jobs) = mpsc::channel::<(StreamId, HostWork)>();
            thread::spawn("simgpu-host", move || {
                for (id, work) in jobs {
                    work();
                    let mut queues = self.queues.lock();
                    self.finish(&mut queues, id, now_ns());
                    self.wake(&mut queues);
                }
            });
            sender
        });
        // The receiver lives as long as the process.
        let _ = host.send((id, work));
    }

    pub(crate) fn count_busy(&self, ns: u64) {
        self.member.count_busy(self.device, ns);
    }

    pub(crate) fn count_copy(&self, ns: u64) {
        self.member.count_copy(self.device, ns);
    }

    /// Sleeps, or returns at once if the bell has rung since `seen` was read.
    pub(crate) fn sleep(&self, seen: u32, limit: Option<Duration>) {
        clock::sleep(self.bell(), seen, limit);
        self.queues.lock().asleep = false;
    }

    pub(crate) fn bell_count(&self) -> u32 {
        self.bell().load(SeqCst)
    }
}

impl Stream {
    /// Returns the sequence number of the stream's next operation.
    pub(crate) fn first(&self) -> u64 {
        self.queue.front().map_or(u64::MAX, |op| op.seq)
    }
}

impl Queues {
    fn has_ended(&self, domain: u64, last: u64) -> bool {
        let mut streams = self.streams.values();
        !streams.any(|stream| stream.domain == domain && stream.first() <= last)
    }

    /// Returns whether the ordering of default streams lets `stream` start the operation with this sequence
    /// number.
    pub(crate) fn allowed(&self, stream: &Stream, seq: u64) -> bool {
        let held_by = match stream.kind {
            StreamKind::NonBlocking => return true,
            StreamKind::Legacy => StreamKind::Blocking,
            StreamKind::Blocking => StreamKind::Legacy,
        };
        !self
            .streams
            .values()
            .any(|other| other.domain == stream.domain && other.kind == held_by && other.first() < seq)
    }

    /// Returns the stream whose next operation `is_meant` accepts and is first: by priority, then in the
    /// order of submission.
    pub(crate) fn next(&self, is_meant: impl Fn(&Work) -> bool) -> Option<StreamId> {
        let mut best: Option<(i32, u64, StreamId)> = None;
        for (id, stream) in &self.streams {
            let Some(op) = stream.queue.front() else { continue };
            if !op.work.as_ref().is_some_and(&is_meant) || !self.allowed(stream, op.seq) {
                continue;
            }
            let key = (stream.priority, op.seq, *id);
            if best.is_none_or(|best| key < best) {
                best = Some(key);
            }
        }
        best.map(|(_, _, id)| id)
    }
}

/// Returns how many kernels of the process run at once, if they are on different streams
/// (`SIMGPU_CONCURRENT_KERNELS`).
fn concurrent() -> usize {
    let number = std::env::var("SIMGPU_CONCURRENT_KERNELS").ok();
    number
        .and_then(|text| text.parse().ok())
        .unwrap_or(1)
        .clamp(1, 128)
}
