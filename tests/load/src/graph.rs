//! A graph of what a stream was given once, launched as a whole.

use std::ffi::c_uint;

use crate::driver::{CUgraphExec, Result};
use crate::gpu::{Gpu, Stream};

/// An instantiated graph.
#[derive(Debug)]
pub struct Graph<'g> {
    gpu: &'g Gpu,
    executable: CUgraphExec,
}

impl<'g> Graph<'g> {
    /// Captures what `submit` puts into the stream, which runs none of it.
    ///
    /// # Errors
    /// The driver's, or that of `submit`.
    pub fn capture(gpu: &'g Gpu, stream: &Stream<'_>, submit: impl FnOnce() -> Result<()>) -> Result<Self> {
        const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: c_uint = 1;
        let driver = &gpu.driver;
        let (mut graph, mut executable) = (0, 0);
        // SAFETY: a stream that lives through the call.
        unsafe { driver.cuStreamBeginCapture_v2(stream.raw, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) }?;
        let submitted = submit();
        // SAFETY: likewise, and a place that outlives the call.
        unsafe { driver.cuStreamEndCapture(stream.raw, &mut graph) }?;
        // SAFETY: a place that outlives the call, and the graph just made.
        let made = unsafe { driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
        // SAFETY: the graph just made, which what was instantiated from it does not need.
        unsafe { driver.cuGraphDestroy(graph) }?;
        made?;
        let whole = Self { gpu, executable };
        submitted.map(|()| whole)
    }

    /// Submits all of it.
    pub fn launch(&self, stream: &Stream<'_>) -> Result<()> {
        // SAFETY: a graph and a stream that live through the call.
        unsafe { self.gpu.driver.cuGraphLaunch(self.executable, stream.raw) }
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: made in `capture`; the driver lets what was launched finish first.
        let _ = unsafe { self.gpu.driver.cuGraphExecDestroy(self.executable) };
    }
}
