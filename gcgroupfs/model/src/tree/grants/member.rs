//! Grants of one process: what it holds on each device, and the granted word in its usage block.
//!
//! The process can write that word too, so the daemon uses its own copy. What the process says to have
//! charged beyond its grant is a claim. It is believed up to the device's size and the process's own limit,
//! or up to what NVML has shown. Only what NVML has shown or the daemon has granted is *sure*; that bounds
//! what the process costs others (see [`Node`](super::node::Node)).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::NO_LIMIT;

use super::Position;
use super::bounds::Bounds;
use super::node::Charge;
use super::resource::Resource;
use crate::tree::untrusted::GrantWords;
use crate::tree::{Blocks, GroupId};

#[derive(Debug)]
pub(super) struct Member {
    resource: Resource,
    pub(super) blocks: Arc<dyn Blocks>,
    pub(super) group: Option<GroupId>,
    /// Bytes held, by position.
    pub(super) devices: Box<[Held]>,
    /// `memory.high` of the process.
    pub(super) highs: Bounds,
    /// Nothing but what is reserved is charged to the groups above while the process is suspended.
    is_suspended: bool,
    /// Charges of a suspended process that is being resumed on other devices, by position; empty for others.
    pub(super) reserved: Box<[Charge]>,
}

/// Bytes held by a process on one device.
#[derive(Debug, Default)]
pub(super) struct Held {
    slot: usize,
    /// Held beyond the ledger.
    overhead: u64,
    /// `None` without a limit above.
    granted: Option<Granted>,
    /// The size of the resource.
    total: u64,
    /// Shown by NVML as held by the process.
    shown: u64,
    /// Whether the last grant has not been seen in use yet.
    is_fresh: bool,
    /// Bytes charged at the last request and bytes requested. The process charges them after the answer, so
    /// they count as charged until the process rings with more unused than it may leave.
    expected: u64,
}

/// Grant of one process on one device, in bytes.
///
/// Invariant: the process has committed no more than `held`, except for memory that existed when it was
/// charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Granted {
    held: u64,
    /// The part of `held` that the daemon has granted.
    granted: u64,
    /// `granted`, and what was charged before there was a limit and is trusted.
    proven: u64,
    /// True if the word is `held`. Otherwise the word is 0, and `held` is what was charged when last
    /// examined.
    is_open: bool,
}

impl Granted {
    /// Returns the grant reduced to `held`.
    fn lowered(self, held: u64) -> Self {
        Self {
            held,
            granted: self.granted.min(held),
            proven: self.proven.min(held),
            ..self
        }
    }
}

impl Held {
    fn new((slot, total): (usize, u64)) -> Self {
        Self {
            slot,
            total,
            ..Self::default()
        }
    }

    /// Returns the bytes charged to the groups above for the grant.
    fn held(&self) -> u64 {
        self.granted.map_or(0, |granted| granted.held)
    }

    /// Returns the whole charge to the groups above. The overhead is measured for memory, and claimed for
    /// swap.
    pub(super) fn charge(&self, resource: Resource) -> Charge {
        let proven = self.granted.map_or(0, |granted| granted.proven);
        let sure = self.held().min(proven.max(self.shown));
        let overhead_is_sure = resource == Resource::Memory;
        Charge {
            all: self.held().saturating_add(self.overhead).into(),
            sure: sure
                .saturating_add(if overhead_is_sure { self.overhead } else { 0 })
                .into(),
        }
    }
}

impl Member {
    /// Makes a member without grants; `slots` are (slot, size in bytes) by position.
    pub(super) fn new(resource: Resource, blocks: Arc<dyn Blocks>, slots: &[(usize, u64)]) -> Self {
        Self {
            resource,
            blocks,
            group: None,
            devices: slots.iter().copied().map(Held::new).collect(),
            highs: Bounds::default(),
            is_suspended: false,
            reserved: Box::default(),
        }
    }

    /// Returns the bytes held at a position, overhead included.
    pub(super) fn charged(&self, position: Position) -> u128 {
        match position {
            Some(at) => self.charge(at).all,
            None => (0..self.devices.len()).map(|at| self.charge(at).all).sum(),
        }
    }

    pub(super) fn add_position(&mut self, slot: (usize, u64)) {
        let devices = std::mem::take(&mut self.devices).into_iter();
        self.devices = devices.chain([Held::new(slot)]).collect();
    }

    /// Returns the whole charge to the groups above at a position.
    pub(super) fn charge(&self, at: usize) -> Charge {
        let charge = |device: &Held| device.charge(self.resource);
        if self.is_suspended {
            return self.reserved.get(at).copied().unwrap_or_default();
        }
        self.devices.get(at).map_or(Charge::default(), charge)
    }

    /// Returns the charge at a position that the process had before it was suspended: also what it had
    /// charged without a limit above, for where there is one.
    pub(super) fn charge_when_resumed(&self, at: usize) -> Charge {
        let Some(device) = self.devices.get(at) else {
            return Charge::default();
        };
        let charge = device.charge(self.resource);
        let believed = self.believed(at).saturating_add(device.overhead);
        Charge {
            all: charge.all.max(believed.into()),
            ..charge
        }
    }

    /// Gives the grants and the measured bytes of two positions to each other.
    pub(super) fn exchange(&mut self, from: usize, to: usize) {
        let (Some(one), Some(other)) = (self.parts(from), self.parts(to)) else {
            return;
        };
        for (at, (overhead, shown, granted)) in [(to, one), (from, other)] {
            if let Some(device) = self.devices.get_mut(at) {
                (device.overhead, device.shown) = (overhead, shown);
            }
            match granted {
                Some(granted) => self.store(at, granted),
                None => self.set(at, None),
            }
            if let (Some(Granted { is_open: false, .. }), Some(words)) = (granted, self.words(at)) {
                words.grant(0);
            }
        }
    }

    fn parts(&self, at: usize) -> Option<(u64, u64, Option<Granted>)> {
        let device = self.devices.get(at)?;
        Some((device.overhead, device.shown, device.granted))
    }

    pub(super) fn has_reserved(&self) -> bool {
        !self.reserved.is_empty()
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    /// Begins or ends a suspension, without anything reserved.
    pub(super) fn set_suspended(&mut self, is_suspended: bool) {
        self.is_suspended = is_suspended;
        self.reserved = Box::default();
    }

    /// Returns the most bytes that the process is believed to have charged.
    pub(super) fn most(&self, at: usize) -> u64 {
        let Some(device) = self.devices.get(at) else {
            return 0;
        };
        let own = self.resource.own_limit(self.blocks.control(), device.slot);
        device.total.min(own).max(device.held()).max(device.shown)
    }

    /// Returns the bytes that the process says it has charged, as far as they are believed.
    pub(super) fn believed(&self, at: usize) -> u64 {
        self.current(at).min(self.most(at))
    }

    /// Makes the process hold what it claims, up to the size of the resource, until NVML answers. Closes the
    /// grant, as [`concede`](Self::concede).
    pub(super) fn trust(&mut self, at: usize) {
        let total = self.devices.get(at).map_or(0, |device| device.total);
        let held = self.current(at).min(total).max(self.held(at));
        self.concede(at, held);
        if let Some(granted) = self
            .devices
            .get_mut(at)
            .and_then(|device| device.granted.as_mut())
        {
            granted.proven = held;
        }
    }

    /// Stores the bytes that NVML shows. Nothing is trusted from now on.
    pub(super) fn show(&mut self, at: usize, bytes: u64) {
        if let Some(device) = self.devices.get_mut(at) {
            device.shown = bytes;
            if let Some(granted) = &mut device.granted {
                granted.proven = granted.proven.min(granted.granted);
            }
        }
    }

    /// Returns the bytes charged to the groups above for the grant.
    pub(super) fn held(&self, at: usize) -> u64 {
        self.devices.get(at).map_or(0, Held::held)
    }

    /// Returns whether any limit is above.
    pub(super) fn is_limited(&self) -> bool {
        self.devices.iter().any(|device| device.granted.is_some())
    }

    pub(super) fn is_granted(&self, at: usize) -> bool {
        self.granted(at).is_some()
    }

    /// Returns whether the process may charge what it holds without asking.
    pub(super) fn is_open(&self, at: usize) -> bool {
        self.granted(at).is_some_and(|granted| granted.is_open)
    }

    /// Returns what would be charged with `bytes` more.
    pub(super) fn wanted(&self, at: usize, bytes: u64) -> u64 {
        self.current(at).saturating_add(bytes)
    }

    /// Sets the overhead in bytes and returns the previous one.
    pub(super) fn set_overhead(&mut self, at: usize, bytes: u64) -> u64 {
        let overhead = self.devices.get_mut(at).map(|device| &mut device.overhead);
        overhead.map_or(0, |overhead| std::mem::replace(overhead, bytes))
    }

    fn granted(&self, at: usize) -> Option<Granted> {
        self.devices.get(at)?.granted
    }

    /// Returns the words for what is charged and what is granted.
    fn words(&self, at: usize) -> Option<GrantWords<'_>> {
        let usage = self.blocks.usage().device(self.devices.get(at)?.slot)?;
        Some(self.resource.words(usage))
    }

    /// Returns the bytes that the process says it has charged.
    pub(super) fn current(&self, at: usize) -> u64 {
        self.words(at).map_or(0, GrantWords::charged)
    }

    /// Returns the bytes held and not charged.
    pub(super) fn idle(&self, at: usize) -> u64 {
        if self.is_suspended {
            return 0;
        }
        self.granted(at)
            .map_or(0, |granted| granted.held.saturating_sub(self.current(at)))
    }

    /// Returns whether the process leaves more of its grant unused than it may.
    pub(super) fn is_wasteful(&self, at: usize) -> bool {
        let control = self
            .devices
            .get(at)
            .and_then(|device| self.blocks.control().devices.get(device.slot));
        let limit = control.map_or(NO_LIMIT, |control| control.group_limit.load(Relaxed));
        self.is_open(at) && self.idle(at) > self.resource.most_unused(limit)
    }

    /// Returns the bytes held that the process is not known to need.
    pub(super) fn spare(&self, at: usize) -> u64 {
        let expected = self.devices.get(at).map_or(0, |device| device.expected);
        self.idle(at).min(self.held(at).saturating_sub(expected))
    }

    /// Notes that the process has charged what it requested last.
    pub(super) fn expect_nothing(&mut self, at: usize) {
        if let Some(device) = self.devices.get_mut(at) {
            device.expected = 0;
        }
    }

    /// Begins grants at what is charged now, or ends them. The claim of a process that `is_new` here is not
    /// sure; one that could charge without asking until now is trusted until NVML answers.
    pub(super) fn govern(&mut self, at: usize, is_limited: bool, is_new: bool) {
        match (self.granted(at), is_limited) {
            (None, true) => {
                let most = self.most(at);
                let Some(words) = self.words(at) else { return };
                let held = words.lower(NO_LIMIT, 0).min(most);
                let granted = Granted {
                    held,
                    granted: 0,
                    proven: if is_new { 0 } else { held },
                    is_open: true,
                };
                self.store(at, granted);
            }
            (Some(_), false) => {
                self.set(at, None);
                self.lift(at);
            }
            // The word may be a previous daemon's.
            (None, false) => self.lift(at),
            (Some(_), true) => {}
        }
    }

    /// Returns the bytes held before and now. A closed grant is lowered if the process has freed some.
    pub(super) fn refresh(&mut self, at: usize) -> Option<(u64, u64)> {
        let granted = self.granted(at)?;
        if granted.is_open {
            return Some((granted.held, granted.held));
        }
        let held = self.current(at).min(granted.held);
        self.set(at, Some(granted.lowered(held)));
        Some((granted.held, held))
    }

    /// Grants `held` bytes in all; `requested` are about to be charged.
    pub(super) fn grant(&mut self, at: usize, held: u64, requested: u64) {
        let expected = self.wanted(at, requested);
        let granted = Granted {
            held,
            granted: held,
            proven: held,
            is_open: true,
        };
        self.store(at, granted);
        if let Some(device) = self.devices.get_mut(at) {
            (device.is_fresh, device.expected) = (true, expected);
        }
    }

    /// Returns whether the process has charged what it was granted last, now or at an earlier call.
    pub(super) fn is_used(&mut self, at: usize) -> bool {
        let is_charged = self.idle(at) == 0;
        self.devices.get_mut(at).is_some_and(|device| {
            device.is_fresh = device.is_fresh && !is_charged;
            !device.is_fresh
        })
    }

    /// Raises what is held to what was charged beyond it. Closes the grant: a limit above may be exceeded,
    /// and the process compares at any moment what it has charged with the word.
    pub(super) fn concede(&mut self, at: usize, held: u64) {
        if let Some(granted) = self.granted(at) {
            self.close(at);
            let is_open = false;
            self.set(
                at,
                Some(Granted {
                    held,
                    is_open,
                    ..granted
                }),
            );
        }
    }

    /// Lets the process charge what it holds without asking.
    pub(super) fn open(&mut self, at: usize) {
        if let Some(granted) = self.granted(at) {
            let is_open = true;
            self.store(at, Granted { is_open, ..granted });
        }
    }

    /// Takes back up to `bytes` of what is held and not charged.
    pub(super) fn take_back(&mut self, at: usize, bytes: u64) {
        let (Some(granted), Some(words)) = (self.granted(at), self.words(at)) else {
            return;
        };
        if !granted.is_open {
            self.refresh(at);
            return;
        }
        let target = granted.held - self.idle(at).min(bytes).min(granted.held);
        let held = words.lower(granted.held, target);
        self.set(at, Some(granted.lowered(held)));
    }

    /// Closes the grant: each charge must ask from now on, and the process holds what it has charged.
    pub(super) fn close(&mut self, at: usize) {
        let Some(granted) = self.granted(at) else {
            return;
        };
        if let Some(words) = self.words(at) {
            words.grant(0);
        }
        let held = self.current(at).min(granted.held);
        let closed = Granted {
            is_open: false,
            ..granted.lowered(held)
        };
        self.set(at, Some(closed));
    }

    /// Lets the process charge without limit.
    fn lift(&self, at: usize) {
        if let Some(words) = self.words(at) {
            words.lift();
        }
    }

    fn set(&mut self, at: usize, granted: Option<Granted>) {
        if let Some(device) = self.devices.get_mut(at) {
            device.granted = granted;
        }
    }

    fn store(&mut self, at: usize, granted: Granted) {
        self.set(at, Some(granted));
        if let Some(words) = self.words(at).filter(|_| granted.is_open) {
            words.grant(granted.held);
        }
    }
}
