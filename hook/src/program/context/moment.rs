//! Moments: positions in a stream's work of which the GPU notes the time when it reaches them.
//!
//! A moment is an event with timing. The driver tells the time between two of them with a resolution of half
//! a microsecond (CUDA Driver API, `cuEventElapsedTime`).

use std::sync::Arc;

use super::Context;
use crate::driver;
use crate::driver::cuda::{CUerror, CUevent, CUstream};

/// Events with timing that are not in use, of one context.
pub(super) type Spares = parking_lot::Mutex<Vec<usize>>;

/// A position in the work of a stream.
#[derive(Debug)]
pub(crate) struct Moment {
    context: Arc<Context>,
    event: usize,
}

/// Records an event with timing behind all that was submitted so far to a stream of the current context.
pub(super) fn record(spares: &Spares, stream: CUstream) -> Option<usize> {
    let mut event = CUevent(std::ptr::null_mut());
    let spare = spares.lock().pop();
    match spare {
        Some(spare) => event = CUevent::numbered(spare),
        None => driver::cuEventCreate(&mut event, 0).ok()?,
    }
    let number = event.0.expose_provenance();
    match driver::cuEventRecord(event, stream) {
        Ok(()) => return Some(number),
        Err(CUerror::INVALID_HANDLE) => drop(driver::cuEventDestroy_v2(event)),
        Err(_) => spares.lock().push(number),
    }
    None
}

impl Moment {
    pub(super) fn new(context: &Arc<Context>, event: usize) -> Self {
        Self {
            context: Arc::clone(context.base()),
            event,
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns whether the GPU has reached it. Call with the context kept from being destroyed.
    pub(crate) fn has_passed(&self) -> bool {
        driver::cuEventQuery(CUevent::numbered(self.event)) != Err(CUerror::NOT_READY)
    }

    /// Returns the nanoseconds from `earlier` to this moment, both of which have passed; `None` if the driver
    /// does not tell. Call with the context kept from being destroyed.
    pub(crate) fn since(&self, earlier: &Self) -> Option<i64> {
        let mut milliseconds = 0.0;
        let events = [earlier.event, self.event].map(CUevent::numbered);
        driver::cuEventElapsedTime(&mut milliseconds, events[0], events[1]).ok()?;
        #[allow(clippy::cast_possible_truncation, reason = "nanoseconds of less than a day")]
        Some((f64::from(milliseconds) * 1e6).round() as i64)
    }
}

impl Drop for Moment {
    /// Keeps the event for reuse. Events of a destroyed context are gone, and never used again.
    fn drop(&mut self) {
        self.context.moments.lock().push(self.event);
    }
}
