//! Device addresses, and the memory that holds their bytes.

mod arena;
mod block;
mod kept;
mod mapping;
mod moved;
mod pages;
mod ranges;
mod space;

pub use arena::{Arena, Bytes};
pub use block::{Access, Block, Chunk, HOST, Kind, Physical, PhysicalOwner};
pub use moved::Moved;
pub use pages::{is_small, page};
pub use ranges::Ranges;
pub use space::Space;
