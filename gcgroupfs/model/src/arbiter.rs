//! The arbiter: decides which process has the turn on each GPU and whose quota is used up. It reads what
//! processes publish and sets gates.
//!
//! * `policy`: the table of policies.
//! * `place`, `parts`: the tree of groups and processes, and what part of a GPU each has.
//! * `rank`: what processes of different priorities mean for each other.
//! * `contest`: what each has used, and which processes share a turn.
//! * `turns`: which class of processes has the turn, a pure function.
//! * `division`: divides time in which several processes had work.
//! * `debt`: GPU time used out of turn.
//! * `pauses`: predicts when a process without work has some again.
//! * `member`, `gpu`, `quota`: state kept for a process on a GPU, for a GPU, for a quota. They read no clock.
//! * `plan`: input and result of a decision about a GPU.
//! * `memory_turns`: which process has its memory on a GPU that is too small for all busy processes.
//! * `state`: one tick over the whole tree.
//!
//! The daemon's `ticks` decides when to tick.
#![doc = include_str!("arbiter/scheduling.md")]

mod contest;
mod debt;
mod division;
mod gpu;
mod member;
mod memory_turns;
mod options;
mod parts;
mod pauses;
mod place;
mod plan;
mod policy;
mod quota;
mod rank;
mod settings;
mod state;
mod tree;
mod turns;
mod waits;

#[cfg(test)]
mod tests;

pub use member::Seen;
pub use memory_turns::{Holding, MemoryNews, MemoryTurn, Share};
pub use options::{Options, sample};
pub use parts::{Competitor, competitors};
pub use place::{Place, Step};
pub use policy::{MAX_PRIORITY, POLICIES, Policy, STRICT, Time, WEIGHTED, described, names};
pub use settings::Settings;
pub use state::{Next, State};
