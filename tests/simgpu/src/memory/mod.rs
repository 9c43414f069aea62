//! Addresses and bytes: where device memory is, and where its bytes really are.

mod arena;
mod block;
mod kept;
mod mapping;
mod ranges;
mod space;

pub use arena::{Arena, Bytes};
pub use block::{Access, Block, Chunk, HOST, Kind, Physical, PhysicalOwner};
pub use ranges::Ranges;
pub use space::Space;
