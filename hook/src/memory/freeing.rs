//! Memory that is freed when a stream has come so far, and is no pool's: charged until then, so that the ledger never has
//! less than the device. Who waits for the stream, whoever needs the room, and the helper find out.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::ledger::Entry;
use crate::compute::context::{LEGACY, PER_THREAD};
use crate::compute::{Step, capture};
use crate::cuda::{CU_STREAM_CAPTURE_MODE_RELAXED, CUerror, CUstream};
use crate::driver;
use crate::process::Process;
use crate::sys;

#[derive(Debug, Default)]
pub(crate) struct Freeing {
    list: Mutex<Vec<(Place, Entry)>>,
    /// How many there are, for who does not hold the list.
    count: AtomicUsize,
}

/// The stream that is to free it. A default stream is a context's, and maybe a thread's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    stream: usize,
    context: u32,
    tid: u32,
}

/// Beyond so many, each looks whether earlier ones have gone.
const MANY: usize = 256;

impl Place {
    /// A stream, in the calling thread.
    pub(super) fn of(process: &Process, stream: usize) -> Self {
        let current = || process.slots.bind(process).map_or(0, |bound| bound.context());
        Self {
            stream,
            context: if stream <= PER_THREAD { current() } else { 0 },
            tid: if stream == PER_THREAD { sys::gettid() } else { 0 },
        }
    }

    /// Whether it has done all that it was given, as far as the calling thread can ask.
    pub(super) fn has_passed(self, process: &Process) -> bool {
        if self == Self::of(process, self.stream) {
            return has_passed(process, self.stream);
        }
        if self.stream != LEGACY {
            return false;
        }
        let Some(context) = process.contexts.numbered(self.context) else {
            return true;
        };
        if context.is_part() {
            // Its default stream can be asked about only where it is current: by the threads that use it.
            return false;
        }
        let passed = context.with_current(|| has_passed(process, LEGACY));
        passed == Some(true)
    }
}

/// Whether a stream has done all that it was given; those that are not the program's any more have.
pub(super) fn has_passed(process: &Process, stream: usize) -> bool {
    let handle = CUstream(std::ptr::with_exposed_provenance_mut(stream));
    if stream > PER_THREAD && process.contexts.holder(handle).is_none() {
        return true;
    }
    // A capture of the program's own must not notice.
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    let _ = driver::cuThreadExchangeStreamCaptureMode(&mut mode);
    let passed = capture::is_capturing(handle) == Some(false)
        && driver::cuStreamQuery(handle) != Err(CUerror::NOT_READY);
    let _ = driver::cuThreadExchangeStreamCaptureMode(&mut mode);
    passed
}

impl Freeing {
    /// The stream has been told to free it.
    pub(super) fn add(&self, process: &Process, stream: usize, entry: Entry) {
        let place = Place::of(process, stream);
        let count = {
            let mut list = self.list.lock();
            list.push((place, entry));
            self.count.store(list.len(), Relaxed);
            list.len()
        };
        if count.is_multiple_of(MANY) {
            self.settle(process, None);
        }
        process.line.as_ref().inspect(|line| line.wake());
    }

    /// Takes off what is freed by now: what that stream had to free, and others that have come so far. Whether any was.
    pub(super) fn settle(&self, process: &Process, passed: Option<usize>) -> bool {
        if self.count.load(Relaxed) == 0 {
            return false;
        }
        let mut places: Vec<Place> = self.list.lock().iter().map(|(place, _)| *place).collect();
        places.sort_unstable();
        places.dedup();
        let passed = passed.map(|stream| Place::of(process, stream));
        // With no lock held.
        places.retain(|place| passed == Some(*place) || place.has_passed(process));
        self.take(process, |place, _| places.contains(place))
    }

    /// All that the calling thread's context was given is done, and all that green contexts were that are parts of it.
    pub(super) fn context_passed(&self, process: &Process) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let Some(bound) = process.slots.bind(process) else {
            return;
        };
        let passed: Vec<u32> = match process.contexts.numbered(bound.context()) {
            Some(current) => process
                .contexts
                .family(&current)
                .iter()
                .map(|context| context.id())
                .collect(),
            None => vec![bound.context()],
        };
        self.take(process, |place, _| {
            place.stream <= PER_THREAD && passed.contains(&place.context)
        });
    }

    /// What a context was to free is gone with it.
    pub(super) fn context_gone(&self, process: &Process, context: u32) {
        self.take(process, |_, entry| entry.owner == context);
    }

    fn take(&self, process: &Process, is_over: impl Fn(&Place, &Entry) -> bool) -> bool {
        let over: Vec<_> = {
            let mut list = self.list.lock();
            let over = list
                .extract_if(.., |(place, entry)| is_over(place, entry))
                .collect();
            self.count.store(list.len(), Relaxed);
            over
        };
        over.iter().for_each(|(_, entry)| process.discharge(entry));
        !over.is_empty()
    }

    pub(super) fn renumber(&self, process: &Process) {
        for (_, entry) in self.list.lock().iter_mut() {
            process.follow(entry);
        }
    }
}

/// The helper's part: nobody may come to wait for the stream.
#[derive(Debug)]
pub(crate) struct Settling {
    pause: Duration,
}

/// Between two looks: the least, and the longest when nothing happens.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

impl Settling {
    pub(crate) fn new() -> Self {
        Self { pause: LEAST_PAUSE }
    }

    pub(crate) fn step(&mut self, process: &Process) -> Step {
        let (freeing, reserves) = (&process.memory.freeing, &process.memory.reserves);
        let is_any = || freeing.count.load(Relaxed) != 0 || reserves.is_any_over();
        if !is_any() {
            self.pause = LEAST_PAUSE;
            return Step::default();
        }
        let is_freed = freeing.settle(process, None);
        self.pause = if reserves.settle_over(process) || is_freed {
            LEAST_PAUSE
        } else {
            (2 * self.pause).min(LONGEST_PAUSE)
        };
        Step {
            wake: is_any().then_some(self.pause),
            has_news: false,
        }
    }
}
