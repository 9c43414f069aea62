//! Memory that is prepared for a move.

use super::physical::{Memory, Range};
use crate::shared::device::LocalDevice;

/// New memory and its temporary mapping.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) memory: Memory,
    pub(super) aside: Range,
    /// The device whose block it is for.
    pub(super) local: LocalDevice,
}
