//! Policies as tables, and whole GPUs played through without clocks.

mod groups;
mod played;
mod policies;
pub(super) mod world;
