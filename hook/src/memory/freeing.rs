//! Memory that is freed when a stream has come so far, and is no pool's: charged until then, so that the ledger never has
//! less than the device.

use parking_lot::Mutex;

use super::ledger::Entry;
use crate::compute::capture;
use crate::cuda::{CU_STREAM_CAPTURE_MODE_RELAXED, CUerror, CUstream};
use crate::driver;
use crate::process::Process;

/// Freed, with the stream that is to do it.
#[derive(Debug, Default)]
pub(crate) struct Freeing(Mutex<Vec<(usize, Entry)>>);

/// Handles up to this stand for the current context's default streams.
const LAST_DEFAULT: usize = 2;

/// Beyond so many, each looks whether earlier ones have gone.
const MANY: usize = 256;

/// Whether a stream has done all that it was given; those that are not the program's any more have.
pub(super) fn has_passed(process: &Process, stream: usize) -> bool {
    let handle = CUstream(std::ptr::with_exposed_provenance_mut(stream));
    if stream > LAST_DEFAULT && process.contexts.holder(handle).is_none() {
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
        let count = {
            let mut freeing = self.0.lock();
            freeing.push((stream, entry));
            freeing.len()
        };
        if count.is_multiple_of(MANY) {
            self.settle(process, None);
        }
    }

    /// Takes off what is freed by now: what that stream had to free, and others that have come so far. Whether any was.
    pub(super) fn settle(&self, process: &Process, passed: Option<usize>) -> bool {
        let mut waiting: Vec<(usize, u32)> = {
            let freeing = self.0.lock();
            freeing
                .iter()
                .map(|(stream, entry)| (*stream, entry.owner))
                .collect()
        };
        if waiting.is_empty() {
            return false;
        }
        waiting.sort_unstable();
        waiting.dedup();
        let current = process.place().map(|place| place.context);
        // A default stream is the current context's: of others nobody can ask here.
        waiting.retain(|(stream, context)| {
            (*stream > LAST_DEFAULT || current == Some(*context))
                && (passed == Some(*stream) || has_passed(process, *stream))
        });
        self.take(process, |stream, entry| waiting.contains(&(stream, entry.owner)))
    }

    /// What a context was to free is gone with it.
    pub(super) fn context_gone(&self, process: &Process, context: u32) {
        self.take(process, |_, entry| entry.owner == context);
    }

    fn take(&self, process: &Process, is_over: impl Fn(usize, &Entry) -> bool) -> bool {
        let over: Vec<_> = self
            .0
            .lock()
            .extract_if(.., |(stream, entry)| is_over(*stream, entry))
            .collect();
        over.iter().for_each(|(_, entry)| process.discharge(entry));
        !over.is_empty()
    }

    pub(super) fn renumber(&self, process: &Process) {
        for (_, entry) in self.0.lock().iter_mut() {
            process.follow(entry);
        }
    }
}
