//! Addresses and bytes: where device memory is, and where its bytes really are.

mod arena;
mod ranges;
mod space;

pub use arena::Arena;
pub use ranges::Ranges;
pub use space::{Block, Chunk, Kind, Physical, PhysicalOwner, Space};
