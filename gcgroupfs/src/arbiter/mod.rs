//! The arbiter: whose turn it is on each GPU, and who has used up its quota. It reads what processes publish, and
//! sets gates.
//!
//! * `policy`: the table of policies, pure functions.
//! * `division`: how time is divided in which several had work.
//! * `member`, `gpu`, `quota`: what is remembered of a process on a GPU, of a GPU, of a quota. They know no clock.
//! * `state`: one tick over the whole tree.
//! * `thread`: when there is to be a tick.
//!
#![doc = include_str!("scheduling.md")]

mod division;
mod gpu;
mod member;
mod policy;
mod quota;
mod settings;
mod state;
mod thread;

#[cfg(test)]
mod tests;

pub use member::Seen;
pub use policy::{POLICIES, Policy};
pub use settings::Settings;
pub use thread::{Bell, Thread};
