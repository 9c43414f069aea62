//! Input and result of a decision about one GPU.

use super::member::Seen;
use super::memory_turns::MemoryNews;
use super::policy::{Policy, Time};
use crate::tree::GateOrder;

/// GPU time of a process since the last measurement, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub charged: u64,
    /// Time for which the GPU was kept free for the process although others waited.
    pub held: u64,
}

/// State of the quotas that apply to a process on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Quotas {
    pub has_any: bool,
    /// When a quota that is used up is repaid, the latest time if there are several; `None` if none is used
    /// up.
    pub over_until: Option<Time>,
    /// The smallest of these quotas, nanoseconds.
    pub least: Option<u64>,
}

/// Orders that hold until the next tick, and the time of that tick; `next` is `None` if only a bell or a
/// changed setting leads to one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan<Id> {
    /// One for each observed process, in the same order.
    pub orders: Vec<GateOrder<Id>>,
    pub next: Option<Time>,
    /// Place among `orders` of the process whose memory turn begins.
    pub memory_turn: Option<usize>,
    pub memory_news: Option<MemoryNews>,
}

/// State on which a decision is based.
#[derive(Debug)]
pub(super) struct Tick<'a, Id> {
    pub now: Time,
    /// The argument of [`Gpu::measure`](super::gpu::Gpu::measure).
    pub seen: &'a [Seen<Id>],
    /// State after charging the result of [`Gpu::measure`](super::gpu::Gpu::measure), one for each of `seen`.
    pub quotas: &'a [Quotas],
    pub policy: &'a Policy,
    /// Bytes of the device that movable memory can have, if
    /// [`Gpu::wants_capacity`](super::gpu::Gpu::wants_capacity).
    pub capacity: Option<u64>,
}
