//! Choices that the program's environment makes.

#[derive(Debug)]
pub(super) struct SwapSettings {
    /// Name of the reclaim policy (`GCGROUP_RECLAIM`).
    pub(super) order: Option<&'static str>,
    /// Whether a thaw waits for room on the device (`GCGROUP_THAW=wait`) instead of running from host memory.
    pub(super) waits: bool,
}
