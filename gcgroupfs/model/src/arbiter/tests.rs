//! Tests of policies as tables, and simulations of whole GPUs without clocks.

mod conformance;
mod debts;
mod groups;
mod memory;
mod played;
mod player;
mod policies;
mod rest;
pub(super) mod world;
