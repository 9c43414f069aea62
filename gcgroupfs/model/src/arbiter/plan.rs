//! Input and result of a decision about one GPU.

use gcgroup_abi::Gate;

use super::member::Seen;
#[cfg(test)]
use super::memory_turns::MemoryTurn;
use super::memory_turns::{MemoryNews, Share};
use super::policy::{Policy, Time};
use crate::tree::WaitsFor;

/// GPU time of a process since the last measurement, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub charged: u64,
    /// Time for which the GPU was kept free for the process although others waited.
    pub held: u64,
}

/// The state that a gate is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    pub gate: Gate,
    /// With [`Gate::Arbitrate`]: the in-flight window, nanoseconds.
    pub window: u64,
    /// With [`Gate::Throttled`]: the longest wait, nanoseconds.
    pub patience: u64,
    /// With [`Gate::Arbitrate`]: when all submitted work is to have ended, because a process of higher
    /// priority is expected to have work; 0: none is expected.
    pub gap_until: Time,
    /// Whether the process must ring when its work begins.
    pub wants_bell: bool,
    /// Whether the process must ring when its work ends.
    pub wants_end: bool,
    pub memory: Share,
    /// Percentage of the GPU for the process while all that have lately had work want it.
    pub share_percent: u64,
    /// Whether the process is to measure its work while its gate is open.
    pub measures: bool,
    /// Number of other processes that have work on the GPU.
    pub nr_others: u32,
    /// Place among the observed processes of the one that it waits for.
    pub waits_for: Option<(usize, WaitsFor)>,
}

#[cfg(test)]
impl Order {
    /// The order for a process without a context on the GPU.
    pub(super) const OPEN: Self = Self {
        gate: Gate::Run,
        window: 0,
        patience: 0,
        gap_until: 0,
        wants_bell: false,
        wants_end: false,
        memory: Share {
            turn: MemoryTurn::None,
            is_parked: false,
            resident_limit: 0,
        },
        share_percent: 0,
        measures: false,
        nr_others: 0,
        waits_for: None,
    };
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
pub(super) struct Plan {
    /// One for each observed process, in the same order.
    pub orders: Vec<Order>,
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
