//! A thread's slot of the usage block.

use crate::sync::{AtomicU32, AtomicU64};
#[cfg(not(loom))]
use core::mem::{offset_of, size_of};

use super::Kind;

/// Kind of a submission; the index into the entry and exit counters.
#[repr(usize)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submission {
    /// A kernel launch.
    Kernel,
    /// A graph launch.
    Graph,
    /// A copy or a set.
    Copy,
}

impl Submission {
    pub const COUNT: usize = 3;
}

/// Counters of one submitting thread on one device. Only that thread writes the counters, with plain
/// additions.
///
/// The slot holds no address: the gate and the entry counters are in the process's private part of the slot
/// ([`Entrance`](crate::Entrance)). A slot keeps its counts when its thread ends and another takes it over,
/// since they belong to the device.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Thread {
    reserved_gate: AtomicU64,
    reserved_stock: AtomicU32,
    /// Index of the device.
    ///
    /// Ordering: stored `Release` after the slot's counts have been moved to the previous device; sums over
    /// threads load `Acquire`, so they do not count these for the new device. The thread loads `Relaxed`.
    pub device: AtomicU32,
    /// One pair for each [`Submission`]: submissions started at a gate that was not open, which the daemon
    /// takes as evidence of work; submissions from which the driver has returned.
    ///
    /// Ordering: starts are `Relaxed`. Exits are `Release` by [`Thread::exit`], and the draining thread loads
    /// them `Acquire`: it sees what was submitted before (`freeze.rs`). Sums of the daemon are `Relaxed`.
    pub submissions: [[AtomicU64; 2]; Submission::COUNT],
    /// Allocations on the device `counted_device`.
    ///
    /// Ordering: only the thread stores, `Relaxed`, and fences `Release` before it uncharges; the daemon
    /// loads `Acquire` as with [`UsageDevice::kinds`](crate::UsageDevice::kinds). What moves to the device's
    /// count is added there before it is reset here with `Release`.
    pub nr_alloc: AtomicU64,
    /// Frees on the device `counted_device`.
    ///
    /// Ordering: as `nr_alloc`.
    pub nr_free: AtomicU64,
    /// Allocated minus freed bytes on `counted_device` of the most frequent kinds ([`Self::kind`]). A thread
    /// that frees another thread's block makes its own counter negative; only the wrapping sum over threads
    /// is meaningful.
    ///
    /// Ordering: as `nr_alloc`.
    kinds: [AtomicU64; 5],
    /// The device for which this thread's allocations are counted. It differs from `device` until the thread
    /// allocates there.
    ///
    /// Ordering: the thread stores `Release` after it has moved its counts to the previous device; the daemon
    /// loads `Acquire`: it counts none of them twice.
    pub counted_device: AtomicU32,
    /// Odd while the thread is in a call after which that device may hold more than is charged: the thread's
    /// part of [`UsageDevice::unsettled`](crate::UsageDevice::unsettled).
    ///
    /// Ordering: the thread stores the odd number `Relaxed` with a `Release` fence behind it, and the even
    /// one `Release`; the daemon loads `Acquire`: equal values before and after a measurement mean that no
    /// such call ended in between.
    pub unsettled: AtomicU32,
}

impl Thread {
    pub const fn exited(&self, what: Submission) -> &AtomicU64 {
        &self.submissions[what as usize][1]
    }

    /// Returns the thread's own counter of a kind; `None` for kinds that are counted in
    /// [`UsageDevice::kinds`](crate::UsageDevice::kinds) only.
    pub const fn kind(&self, kind: Kind) -> Option<&AtomicU64> {
        let [linear, managed, vmm, array, host] = &self.kinds;
        match kind {
            Kind::Linear => Some(linear),
            Kind::Managed => Some(managed),
            Kind::Vmm => Some(vmm),
            Kind::Array => Some(array),
            Kind::Host => Some(host),
            _ => None,
        }
    }
}

// The layout is the interface: a change requires a new VERSION. Under loom the atomics have other sizes.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Thread>() == 128);
    assert!(offset_of!(Thread, reserved_stock) == 8);
    assert!(offset_of!(Thread, device) == 12);
    assert!(offset_of!(Thread, submissions) == 16);
    assert!(offset_of!(Thread, nr_alloc) == 64);
    assert!(offset_of!(Thread, nr_free) == 72);
    assert!(offset_of!(Thread, kinds) == 80);
    assert!(offset_of!(Thread, counted_device) == 120);
    assert!(offset_of!(Thread, unsettled) == 124);
};
