//! Sums of bytes and counts, and the table of counters. Sums saturate.

mod counters;

use std::ops::AddAssign;

use gcgroup_abi::{Kind, Submission};
use serde::{Deserialize, Serialize};

use self::counters::counters;
use super::Host;
use super::creation::is_default;

pub use self::counters::Counter;
pub(super) use self::counters::Numbers;

counters! {
    /// Bytes and counts of a process on a device, of a process, of a group, or of all processes.
    pub struct Sums {
        /// Bytes charged by the process's ledger.
        pub charged: u64,
        /// The part of `charged` that is for contexts.
        pub contexts: u64,
        /// The part of `contexts` that is an estimate.
        pub contexts_estimated: u64,
        /// Bytes held beyond the ledger: growth of contexts, and other memory that the driver keeps for the
        /// process.
        pub overhead: u64,
        /// The part of `overhead` that is an estimate.
        pub overhead_estimated: u64,
        /// Bytes by kind, in the order of [`Kind::ALL`].
        pub kinds: [u64; Kind::ALL.len()],
        /// Counts by [`Submission`].
        pub submitted: [u64; Submission::COUNT],
        /// GPU time charged.
        pub usage_nsec: u64,
        pub swap: Swapped,
    }
    counters {
        nr_alloc as "memory.stat" "nr_alloc" "allocations";
        nr_free as "memory.stat" "nr_free" "frees";
        nr_alloc_fail = device.nr_alloc_fail, most calls
            as "memory.stat" "nr_alloc_fail" "failed allocations";
        /// Number of allocations beyond a `memory.high`.
        nr_high as "memory.events" "high" "times that an allocation waited because memory.high was exceeded; of a group, \
            its own or that of a group or process below";
        nr_max = device.nr_max, process.nr_max, most calls
            as "memory.events" "max" "allocations that hit a limit; of a group, those refused";
        nr_oom = device.nr_oom, process.nr_oom, most calls
            as "memory.events" "oom" "allocations refused because of the limit";
        nr_group_max = device.nr_group_max, most calls
            as "memory.events" "group_max" "allocations of processes that a limit of a group above them refused";
        /// Number of times that a group was killed as a unit.
        nr_oom_group_kill as "memory.events" "oom_group_kill" "times that the group, or one below, was killed because of \
            memory.oom.group";
        /// Number of times that usage was above a limit: a lowered one, or when overhead grew.
        nr_over_limit as "memory.events" "over_limit" "times that a limit was set below usage, or that contexts and modules \
            grew beyond one";
        /// Number of requests to swap memory out.
        nr_reclaim as "memory.events" "reclaim" "requests to move memory out, by writes of memory.reclaim and, on a \
            GPU, for processes of higher priority";
        /// Number of times that a process left the GPU because it was idle.
        nr_idle as "memory.events" "idle" "times that the process, or one of the group, left the GPU by gcgroup.idle; of \
            a process as a whole";
        /// Number of memory turns.
        nr_memory_turns as "compute.stat" "nr_memory_turns" "memory turns that it has had, where the memory of the busy \
            processes of a GPU does not fit together";
        /// Time for which a GPU was kept free.
        held_usec as "compute.stat" "held_usec" "time for which a GPU was kept free for it, or left idle in its turn, \
            while others waited; no usage";
        /// Kernels in launched graphs.
        graph_kernels = device.graph_kernels, most kernels;
        /// Kernels known to have completed.
        nr_ended = device.nr_ended, most kernels;
        nr_throttled = device.nr_throttled, most calls
            as "compute.stat" "nr_throttled" "submissions that waited for a turn or a quota";
        throttled_usec = device.throttled_usec, most waited_usec
            as "compute.stat" "throttled_usec" "time for which they waited";
        nr_frozen = device.nr_frozen, most calls
            as "compute.stat" "nr_frozen" "submissions that a freeze held back";
        frozen_usec = device.frozen_usec, most waited_usec
            as "compute.stat" "frozen_usec" "time for which they waited";
        gate_timeouts = device.gate_timeouts, most calls
            as "compute.stat" "gate_timeouts" "batches submitted after the longest wait";
        nr_unknown_symbols = process.nr_unknown_symbols, most calls
            as "compute.stat" "nr_unknown_symbols" "look-ups of driver functions that are newer than the library; \
            of a process as a whole";
    }
}

counters! {
    /// Memory moved between devices and the host.
    pub struct Swapped in swap {
        /// Bytes of device allocations that are in host memory.
        pub current: u64,
        /// Bytes of host memory in the swap pool, not in use.
        pub pool: u64,
        /// Bytes that could be moved to the host.
        pub swappable: u64,
    }
    counters {
        in_bytes = device.swap_in_bytes, most moved as "memory.stat" "swap_in_bytes" "bytes moved to the device";
        out_bytes = device.swap_out_bytes, most moved as "memory.stat" "swap_out_bytes" "bytes moved to the host";
        nr_in = device.nr_swap_in, most calls
            as "memory.events" "swap_in" "allocations moved to the device, and parts of large ones";
        nr_out = device.nr_swap_out, most calls
            as "memory.events" "swap_out" "allocations moved to the host, and parts of large ones";
        nr_fail = device.nr_swap_fail, most calls as "memory.events" "swap_fail" "failed moves";
    }
}

/// Returns all counters.
pub fn all_counters() -> impl Iterator<Item = &'static Counter> {
    Sums::COUNTERS.iter().chain(Swapped::COUNTERS)
}

impl Sums {
    /// Returns the bytes of charged allocations that cannot be swapped out.
    pub fn unswappable(&self) -> u64 {
        self.charged
            .saturating_sub(self.contexts)
            .saturating_sub(self.swap.swappable)
    }

    /// Returns the bytes of the allocations that are charged, as requested.
    pub fn requested(&self) -> u64 {
        let beyond = self.kinds[Kind::Rounding as usize].saturating_add(self.contexts);
        self.charged.saturating_sub(beyond)
    }

    /// Returns `memory.current` in bytes.
    pub fn current(&self) -> u64 {
        self.charged.saturating_add(self.overhead)
    }

    pub fn submitted(&self, what: Submission) -> u64 {
        self.submitted[what as usize]
    }

    /// Returns the number of kernels submitted, single or in graphs.
    pub fn kernels(&self) -> u64 {
        self.submitted(Submission::Kernel)
            .saturating_add(self.graph_kernels)
    }

    /// Returns the number of kernels not known to have completed.
    pub fn nr_pending(&self) -> u64 {
        self.kernels().saturating_sub(self.nr_ended)
    }

    /// Returns the counts that a process brings from elsewhere, without the memory that it holds now.
    pub(super) fn counts(&self) -> Self {
        Self {
            nr_ended: self.nr_ended,
            ..self.departed()
        }
    }

    /// Returns the wrapping sum of all numbers. For counts, which only grow, it changes whenever one of them
    /// does.
    pub(super) fn digest(&self) -> u64 {
        self.total()
    }

    /// Returns the counts that remain of a process that has ended, all of whose submissions have completed.
    pub(super) fn departed(&self) -> Self {
        let nr_ended = self.kernels();
        Self {
            charged: 0,
            contexts: 0,
            contexts_estimated: 0,
            overhead: 0,
            overhead_estimated: 0,
            kinds: [0; Kind::ALL.len()],
            nr_ended,
            swap: Swapped {
                current: 0,
                pool: 0,
                swappable: 0,
                ..self.swap
            },
            ..*self
        }
    }
}

impl Sums {
    /// Bounds the sums of a group by the bytes that it is believed to hold on devices and to have swapped
    /// out.
    pub(super) fn bound(&mut self, current: u64, swapped: u64, host: &Host) {
        self.overhead = self.overhead.min(current);
        self.overhead_estimated = self.overhead_estimated.min(self.overhead);
        self.charged = self.charged.min(current - self.overhead);
        self.contexts = self.contexts.min(self.charged);
        self.contexts_estimated = self.contexts_estimated.min(self.contexts);
        for ((.., charged), bytes) in Kind::ALL.iter().zip(&mut self.kinds) {
            if *charged {
                *bytes = (*bytes).min(self.charged);
            }
        }
        self.swap.current = self.swap.current.min(swapped);
        self.swap.pool = self.swap.pool.min(host.memory);
        self.swap.swappable = self.swap.swappable.min(self.charged);
    }

    /// Subtracts counts brought from elsewhere, saturating at 0, since a process that leaves takes its counts
    /// back.
    pub(super) fn less(mut self, arrived: Self) -> Self {
        self.combine(&arrived, u64::saturating_sub);
        self
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.combine(&other, u64::saturating_add);
    }
}
