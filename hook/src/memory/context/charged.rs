//! The charge of one context, and its correction.

use crate::shared::device::LocalDevice;

/// Charge of a context.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charged {
    /// Number of the context.
    pub(super) context: u32,
    pub(super) local: LocalDevice,
    /// The device slot in which it is charged.
    pub(super) index: usize,
    pub(super) bytes: u64,
    /// The part of them that is an estimate: none once the context was measured.
    pub(super) estimated: u64,
    /// Waits for a measurement, the first one or another after a context on the device was destroyed.
    pub(super) is_asked: bool,
}

impl Charged {
    /// Returns whether the charge is for shared memory that the process has freed.
    pub(super) fn is_shared(&self) -> bool {
        self.context == super::SHARED
    }

    /// Adds the bytes of another charge.
    pub(super) fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.estimated += other.estimated;
    }

    /// Ends the wait for a measurement. Returns the bytes that were an estimate.
    pub(super) fn measured(&mut self) -> u64 {
        self.is_asked = false;
        std::mem::take(&mut self.estimated)
    }
}

/// Corrects the charges of contexts that were measured together by `missing` bytes, in equal parts as far as
/// possible. Returns the bytes by which they are less. What is too much is first taken from the charge of
/// shared memory, which is the most that there can be.
pub(super) fn spread(missing: i64, measured: &mut [&mut Charged]) -> u64 {
    measured.sort_unstable_by_key(|charged| charged.bytes);
    let (mut missing, mut less) = (missing, 0);
    for shared in measured.iter_mut().filter(|charged| charged.is_shared()) {
        let before = shared.bytes;
        shared.bytes = before.saturating_add_signed(missing.min(0));
        missing += before.cast_signed() - shared.bytes.cast_signed();
        less += before - shared.bytes;
    }
    let mut nr_left = i64::try_from(measured.len()).unwrap_or(i64::MAX);
    for charged in measured {
        let before = charged.bytes;
        charged.bytes = before.saturating_add_signed(missing / nr_left);
        missing -= charged.bytes.cast_signed() - before.cast_signed();
        less += before.saturating_sub(charged.bytes);
        nr_left -= 1;
    }
    less
}
