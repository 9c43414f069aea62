//! Tests of policies as tables, and simulations of whole GPUs without clocks.

mod charged;
mod conformance;
mod debts;
mod groups;
mod hostile;
mod jobs;
mod memory;
mod played;
mod player;
mod policies;
mod rest;
mod trees;
pub(super) mod world;
