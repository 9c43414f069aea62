//! Graphs captured from a stream.

use std::ffi::c_uint;

use crate::driver::{CUgraphExec, Result};
use crate::gpu::{Gpu, Stream};

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct Graph<'g> {
    gpu: &'g Gpu,
    executable: CUgraphExec,
}

impl<'g> Graph<'g> {
    /// Captures what `submit` submits to the stream; none of it runs.
    ///
    /// # Errors
    /// The driver's, or that of `submit`.
    pub(crate) fn capture(
        gpu: &'g Gpu,
        stream: &Stream<'_>,
        submit: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: c_uint = 1;
        let driver = &gpu.driver;
        let (mut graph, mut executable) = (0, 0);
        // SAFETY: the stream outlives the call.
        unsafe { driver.cuStreamBeginCapture_v2(stream.raw, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) }?;
        let submitted = submit();
        // SAFETY: the stream and the out-pointer outlive the call.
        unsafe { driver.cuStreamEndCapture(stream.raw, &mut graph) }?;
        // SAFETY: the out-pointer outlives the call; the graph was just created.
        let made = unsafe { driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
        // SAFETY: the graph was just created; the executable graph does not need it.
        unsafe { driver.cuGraphDestroy(graph) }?;
        made?;
        let whole = Self { gpu, executable };
        submitted.map(|()| whole)
    }

    /// Launches the graph.
    pub(crate) fn launch(&self, stream: &Stream<'_>) -> Result<()> {
        // SAFETY: the graph and the stream outlive the call.
        unsafe { self.gpu.driver.cuGraphLaunch(self.executable, stream.raw) }
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `capture`; the driver completes launched work first.
        let _ = unsafe { self.gpu.driver.cuGraphExecDestroy(self.executable) };
    }
}
