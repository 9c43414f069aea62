//! Streams by handle.

use super::cuda::{CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_STATUS_NONE, CUstream};
use super::functions::{cuStreamIsCapturing, cuThreadExchangeStreamCaptureMode};

/// `CU_STREAM_LEGACY`. Also used for stream 0 of programs built for per-thread default streams.
pub(crate) const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: valid in the thread itself; for other threads a legacy-stream marker covers it.
pub(crate) const PER_THREAD: usize = 2;

/// Returns the handle with that number.
pub(crate) fn stream(number: usize) -> CUstream {
    CUstream::numbered(number)
}

/// Returns the number of a stream's handle in a form that means the same stream in every function.
pub(crate) fn default_stream(handle: usize, per_thread: bool) -> usize {
    match (handle, per_thread) {
        (0, false) => LEGACY,
        (0, true) => PER_THREAD,
        (handle, _) => handle,
    }
}

/// Returns the stream's handle in a form that means the same stream in every function.
pub(crate) fn by_name(handle: CUstream, per_thread: bool) -> CUstream {
    stream(default_stream(handle.0.expose_provenance(), per_thread))
}

/// Runs `body` with calls allowed that a capture of the program forbids to this thread; they do not affect
/// the capture.
pub(crate) fn relaxed<T>(body: impl FnOnce() -> T) -> T {
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    let _ = cuThreadExchangeStreamCaptureMode(&mut mode);
    let result = body();
    let _ = cuThreadExchangeStreamCaptureMode(&mut mode);
    result
}

/// Returns whether submissions to the stream currently become part of a graph; `None` if the driver does not
/// answer.
pub(crate) fn is_capturing(stream: CUstream) -> Option<bool> {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuStreamIsCapturing(stream, &mut status).ok()?;
    Some(status != CU_STREAM_CAPTURE_STATUS_NONE)
}
