//! State of an interprocess event, in shared memory.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::Duration;

use simgpu::{Export, Tag};

use crate::error::{CUerror, OUT_OF_MEMORY};
use crate::process::Process;

/// Content of the event's file.
#[repr(C)]
struct State {
    /// Number of recordings.
    begun: AtomicU64,
    /// The last recording reached.
    done: AtomicU64,
    /// Slot of the process that recorded it last, plus 1.
    recorder: AtomicU64,
}

/// Length of the file: one page.
const LENGTH: u64 = 4096;
/// Polling interval of waiting streams.
const POLL: Duration = Duration::from_micros(100);

/// An interprocess event.
pub(crate) struct SharedEvent {
    process: &'static Process,
    export: Export,
    state: *mut State,
}

// SAFETY: the state consists of atomics in a mapping that lasts as long as this value.
unsafe impl Send for SharedEvent {}
// SAFETY: the state consists of atomics in a mapping that lasts as long as this value.
unsafe impl Sync for SharedEvent {}

impl SharedEvent {
    /// Creates an event in this process.
    pub(crate) fn new(process: &'static Process, device: usize) -> Result<SharedEvent, CUerror> {
        let export = process.member.export(Tag::Event, device, LENGTH);
        SharedEvent::of(process, export.map_err(|_| OUT_OF_MEMORY)?)
    }

    /// Opens an event that another process has created.
    pub(crate) fn of(process: &'static Process, export: Export) -> Result<SharedEvent, CUerror> {
        use std::os::fd::AsRawFd;
        let file = export.file().map_err(|_| OUT_OF_MEMORY)?;
        let length = usize::try_from(LENGTH).unwrap_or(0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping replaces nothing; the file is long enough.
        let state = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if state == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        Ok(SharedEvent {
            process,
            export,
            state: state.cast(),
        })
    }

    pub(crate) fn export(&self) -> &Export {
        &self.export
    }

    fn state(&self) -> &State {
        // SAFETY: mapped until this is dropped; contains only atomics, for which any bytes are valid.
        unsafe { &*self.state }
    }

    /// Counts a recording and returns its number.
    pub(crate) fn begin(&self) -> u64 {
        let state = self.state();
        let slot = self.process.member.slot() as u64;
        state.recorder.store(slot + 1, Release);
        state.begun.fetch_add(1, AcqRel) + 1
    }

    pub(crate) fn last(&self) -> u64 {
        self.state().begun.load(Acquire)
    }

    pub(crate) fn complete(&self, turn: u64) {
        self.state().done.fetch_max(turn, AcqRel);
    }

    /// Returns whether a recording was reached; also true if the recording process is gone.
    pub(crate) fn is_complete(&self, turn: u64) -> bool {
        let state = self.state();
        if state.done.load(Acquire) >= turn {
            return true;
        }
        let recorder = usize::try_from(state.recorder.load(Acquire)).unwrap_or(0);
        let slot = recorder.checked_sub(1);
        slot.is_none_or(|slot| !self.process.member.machine().is_taken(slot))
    }

    pub(crate) fn wait(&self) {
        let turn = self.last();
        while !self.is_complete(turn) {
            simgpu::shield::nap(POLL);
        }
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        // SAFETY: the mapping was made for this value, which ends now.
        unsafe { libc::munmap(self.state.cast(), usize::try_from(LENGTH).unwrap_or(0)) };
    }
}
