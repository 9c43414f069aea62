//! Tests of policies as tables, and simulations of whole GPUs without clocks.

mod conformance;
mod groups;
mod played;
mod policies;
pub(super) mod world;
