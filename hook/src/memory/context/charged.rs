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
    /// Ends the wait for a measurement. Returns the bytes that were an estimate.
    pub(super) fn measured(&mut self) -> u64 {
        self.is_asked = false;
        std::mem::take(&mut self.estimated)
    }
}

/// Corrects the charges of contexts that were measured together by `missing` bytes, in equal parts as far as
/// possible. Returns the bytes by which they are less.
pub(super) fn spread(missing: i64, measured: &mut [&mut Charged]) -> u64 {
    measured.sort_unstable_by_key(|charged| charged.bytes);
    let (mut missing, mut less) = (missing, 0);
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
