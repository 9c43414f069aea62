//! A thread's last note of a stream that it uses, so that its next submission to that stream needs none.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(crate) struct LastStream {
    /// Device index plus one: a slot may be bound to another device later.
    device: AtomicU32,
    round: AtomicU32,
    context: AtomicU32,
    stream: AtomicU64,
}

impl LastStream {
    /// Returns whether the last note is of this device and round, and of this stream of the context.
    pub(crate) fn is(&self, device: u32, round: u32, context: u32, stream: usize) -> bool {
        self.device.load(Relaxed) == device
            && self.round.load(Relaxed) == round
            && self.context.load(Relaxed) == context
            && self.stream.load(Relaxed) == stream as u64
    }

    pub(crate) fn set(&self, device: u32, round: u32, context: u32, stream: usize) {
        self.device.store(device, Relaxed);
        self.round.store(round, Relaxed);
        self.context.store(context, Relaxed);
        self.stream.store(stream as u64, Relaxed);
    }
}
