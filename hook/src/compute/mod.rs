//! Work for the device: let through, counted, held back.
//!
//! `fast` is the path of a submission while its gate is open; everything else is here: `slots` says where a
//! thread counts, `gate` what it does at a gate that is not open, `window` how much of it may be queued,
//! `meter` for how long there was some, `graphs` what a graph has in it and `reach` where, `contexts` what
//! there is to wait for (`streams` and `capture` keep it true, `mark` asks the GPU); `drain`, `progress` and
//! `watch` wait for it in the helper thread.
//!
#![doc = include_str!("freezing.md")]

use std::time::Duration;

pub mod call;
pub mod capture;
pub mod context;
pub mod contexts;
pub mod drain;
pub mod elsewhere;
pub mod fast;
pub mod gate;
pub mod graphs;
pub mod green;
pub mod hold;
mod mark;
pub mod meter;
pub mod named;
pub mod progress;
pub mod quiet;
pub mod reach;
pub mod slot;
pub mod slots;
pub mod streams;
pub mod wait;
pub mod watch;
mod window;

/// Result of a step of the helper's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// When it wants the next one; `None`: when the daemon rings.
    pub(crate) wake: Option<Duration>,
    /// Whether the daemon should look at the usage block.
    pub(crate) has_news: bool,
}
