//! Markers: positions in a stream's work of which can be asked whether the GPU has reached them.
//!
//! A marker is a word of page-locked host memory that the GPU writes when it reaches the position, because
//! reading it costs nothing (`cuStreamWriteValue32`, CUDA Driver API, "Stream Memory Operations"). Where the
//! driver has no such call, a marker is an event. Each context has its own words, which are unlocked with it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::driver;
use crate::driver::cuda::{
    CU_EVENT_DISABLE_TIMING, CU_MEMHOSTREGISTER_DEVICEMAP, CUcontext, CUdeviceptr, CUerror, CUevent,
    CUgreenCtx, CUresult, CUstream,
};
use crate::sys::mapping::{Mapping, PAGE};

const WORDS: usize = PAGE / size_of::<AtomicU32>();

/// A marker that has been set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    /// Passed once the word holds `value`.
    Word {
        index: usize,
        value: u32,
    },
    Event(usize),
}

/// A context's words and events for markers. No lock is held during driver calls.
#[derive(Debug, Default)]
pub(super) struct Markers {
    page: OnceLock<Option<Page>>,
    spares: Mutex<Spares>,
    /// Whether no events are set, because the driver keeps failing to say whether they have passed.
    are_events_lost: AtomicBool,
    /// The driver's last error in setting or polling a marker (CUresult); zero: none since a poll that
    /// succeeded.
    fault: AtomicU32,
}

/// Result of polling a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Passed,
    NotYet,
    /// The driver did not say.
    Failed,
}

#[derive(Debug, Default)]
struct Spares {
    /// Unused events.
    events: Vec<usize>,
    words: Vec<usize>,
    /// Words abandoned before the GPU wrote them, with the value that frees them.
    pending: Vec<(usize, u32)>,
}

/// Page of words that the GPU can write.
#[derive(Debug)]
struct Page {
    memory: Mapping,
    /// Device address of the page.
    device: CUdeviceptr,
}

impl Page {
    /// Allocates and page-locks a page in the current context.
    fn new() -> Option<Self> {
        let memory = Mapping::anonymous(PAGE).ok()?;
        let address = memory.address().expose_provenance();
        driver::cuMemHostRegister_v2(address, PAGE, CU_MEMHOSTREGISTER_DEVICEMAP).ok()?;
        let mut device = CUdeviceptr(0);
        driver::cuMemHostGetDevicePointer_v2(&mut device, address, 0).ok()?;
        Some(Self { memory, device })
    }

    fn words(&self) -> &[AtomicU32] {
        // SAFETY: our own zeroed page, mapped while `self` is borrowed; the GPU writes whole words.
        unsafe { std::slice::from_raw_parts(self.memory.address().cast(), WORDS) }
    }
}

impl Markers {
    /// Provides words, if the driver can. Call with the context current, and not where a capture could be
    /// invalidated.
    pub(super) fn prepare(&self) {
        self.page.get_or_init(|| {
            let page = Page::new()?;
            self.spares.lock().words = (0..WORDS).rev().collect();
            Some(page)
        });
    }

    /// Sets a marker behind all that was submitted so far to a stream of the current context.
    pub(super) fn set(&self, stream: CUstream) -> Result<Marker, CUerror> {
        match self.set_word(stream) {
            Some(marker) => Ok(marker),
            None => self.record(stream),
        }
    }

    fn word(&self, index: usize) -> Option<(&AtomicU32, CUdeviceptr)> {
        let page = self.page.get()?.as_ref()?;
        let offset = u64::try_from(index * size_of::<AtomicU32>()).ok()?;
        Some((page.words().get(index)?, CUdeviceptr(page.device.0 + offset)))
    }

    fn set_word(&self, stream: CUstream) -> Option<Marker> {
        let index = {
            let mut spares = self.spares.lock();
            if spares.words.is_empty() {
                self.reclaim(&mut spares);
            }
            spares.words.pop()?
        };
        let (word, address) = self.word(index)?;
        let value = word.load(Relaxed).wrapping_add(1);
        let written = write(stream, address, value);
        let mut spares = self.spares.lock();
        match written {
            Ok(()) => return Some(Marker::Word { index, value }),
            // The driver supports no word: use events from now on.
            Err(CUerror::NOT_FOUND | CUerror::NOT_SUPPORTED) => spares.words.clear(),
            Err(_) => spares.words.push(index),
        }
        None
    }

    fn reclaim(&self, spares: &mut Spares) {
        let Spares { words, pending, .. } = spares;
        pending.retain(|(index, value)| {
            let has_passed = self
                .word(*index)
                .is_none_or(|(word, _)| word.load(Acquire) == *value);
            if has_passed {
                words.push(*index);
            }
            !has_passed
        });
    }

    fn record(&self, stream: CUstream) -> Result<Marker, CUerror> {
        self.record_by(|event| driver::cuEventRecord(event, stream))
    }

    /// Sets a marker behind all that was submitted so far to the current context and its parts.
    pub(super) fn record_context(&self, handle: usize) -> Result<Marker, CUerror> {
        let context = CUcontext::numbered(handle);
        self.record_by(|event| driver::cuCtxRecordEvent(context, event))
    }

    /// Sets a marker behind all that was submitted so far to a green context, with its primary context
    /// current.
    pub(super) fn record_green(&self, green: CUgreenCtx) -> Result<Marker, CUerror> {
        self.record_by(|event| driver::cuGreenCtxRecordEvent(green, event))
    }

    fn record_by(&self, record: impl FnOnce(CUevent) -> CUresult) -> Result<Marker, CUerror> {
        if self.are_events_lost.load(Relaxed) {
            return Err(self.fault().unwrap_or(CUerror::UNKNOWN));
        }
        let mut new = CUevent(std::ptr::null_mut());
        let spare = self.spares.lock().events.pop();
        match spare {
            Some(spare) => new = CUevent::numbered(spare),
            None => driver::cuEventCreate(&mut new, CU_EVENT_DISABLE_TIMING)?,
        }
        let recorded = record(new);
        let number = new.0.expose_provenance();
        match recorded {
            Ok(()) => {}
            // The invalid handle may be the event: it is not used again.
            Err(CUerror::INVALID_HANDLE) => drop(driver::cuEventDestroy_v2(new)),
            Err(_) => self.spares.lock().events.push(number),
        }
        recorded.map(|()| Marker::Event(number))
    }

    /// Returns whether the GPU has reached the marker. For an event this calls the driver.
    pub(super) fn has_passed(&self, marker: Marker) -> bool {
        self.look(marker) == Look::Passed
    }

    /// Looks whether a marker has passed, and notes the driver's error if it fails to say.
    pub(super) fn look(&self, marker: Marker) -> Look {
        let answer = match marker {
            Marker::Word { index, value } => {
                let is_written = |(word, _): (&AtomicU32, _)| word.load(Acquire) == value;
                if self.word(index).is_none_or(is_written) {
                    Ok(())
                } else {
                    Err(CUerror::NOT_READY)
                }
            }
            Marker::Event(number) => driver::cuEventQuery(CUevent::numbered(number)),
        };
        let look = match answer {
            Ok(()) => Look::Passed,
            Err(CUerror::NOT_READY) => Look::NotYet,
            Err(error) if is_over(error) => Look::Passed,
            Err(error) => {
                self.note_fault(error);
                return Look::Failed;
            }
        };
        self.fault.store(0, Relaxed);
        look
    }

    /// Notes an error that kept a marker from being set or from being looked at.
    pub(super) fn note_fault(&self, error: CUerror) {
        self.fault.store(error.0.get(), Relaxed);
    }

    /// Returns the last such error, unless a look has succeeded since.
    pub(super) fn fault(&self) -> Option<CUerror> {
        self.fault.load(Relaxed).try_into().ok().map(CUerror)
    }

    /// Has no events set from here on, or lets them be set again.
    pub(super) fn lose_events(&self, are_lost: bool) {
        self.are_events_lost.store(are_lost, Relaxed);
    }

    /// Returns whether a fault has stopped the current context, so that none of its words will be written.
    pub(super) fn are_dead() -> bool {
        let mut probe = CUevent(std::ptr::null_mut());
        match driver::cuEventCreate(&mut probe, CU_EVENT_DISABLE_TIMING) {
            Ok(()) => {
                let _ = driver::cuEventDestroy_v2(probe);
                false
            }
            Err(error) => is_over(error),
        }
    }

    /// Returns the marker's word or event for reuse.
    pub(super) fn give_back(&self, marker: Marker) {
        let mut spares = self.spares.lock();
        match marker {
            Marker::Word { index, value } => {
                spares.pending.push((index, value));
                self.reclaim(&mut spares);
            }
            Marker::Event(number) => spares.events.push(number),
        }
    }
}

/// Returns whether an error means that the context runs nothing any more: destroyed, or stopped for good by a
/// fault (CUDA Driver API, `CUresult`) of the device, its memory, another device or the MPS server.
pub(super) fn is_over(error: CUerror) -> bool {
    matches!(
        error.0.get(),
        4 | 201 | 214 | 220 | 226 | 400 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 806 | 810 | 911 | 917
    )
}

/// Writes with the call of CUDA 11.7, or with the older one, which had to be enabled in the kernel module.
/// Not with `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`: the newer call does not support it, and the word might
/// be seen before what was written by the work that it marks.
fn write(stream: CUstream, address: CUdeviceptr, value: u32) -> CUresult {
    driver::cuStreamWriteValue32_v2(stream, address, value, 0).or_else(|error| match error {
        CUerror::NOT_FOUND => driver::cuStreamWriteValue32(stream, address, value, 0),
        other => Err(other),
    })
}

#[cfg(test)]
impl Markers {
    /// Creates markers whose words only [`Self::pass`] writes.
    pub(super) fn by_hand() -> Self {
        let markers = Self::default();
        let page = Mapping::anonymous(PAGE).ok().map(|memory| Page {
            memory,
            device: CUdeviceptr(0),
        });
        markers.page.set(page).unwrap();
        markers
    }

    /// Writes the word as the GPU would.
    pub(super) fn pass(&self, marker: Marker) {
        if let Marker::Word { index, value } = marker {
            self.word(index).unwrap().0.store(value, Relaxed);
        }
    }
}
