//! Addresses and bytes: where device memory is, and where its bytes really are.

mod arena;
mod block;
mod ranges;
mod space;

pub use arena::Arena;
pub use block::{Block, Chunk, Kind, Physical, PhysicalOwner};
pub use ranges::Ranges;
pub use space::Space;
