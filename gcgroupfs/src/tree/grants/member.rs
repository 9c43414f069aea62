//! One process: what it holds on each device, and the word in its usage block that says so.
//!
//! The process can write that word too, so what the daemon has stored it keeps to itself. What the process says that it
//! has charged beyond what it was granted is a claim: it is believed up to what the device has and the process's own
//! limit allow, or up to what NVML has shown; and apart from what NVML has shown or the daemon has granted it is not
//! *sure*, which bounds what it costs others (see [`Node`](super::node::Node)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use gcgroup_abi::{NO_LIMIT, UsageDevice, lower_grant};

use super::node::Charge;
use super::resource::Resource;
use crate::tree::{Blocks, GroupId};

/// Most bytes that a request is taken to be of.
const MOST: u64 = 1 << 53;

#[derive(Debug)]
pub(super) struct Member {
    resource: Resource,
    pub(super) blocks: Arc<dyn Blocks>,
    pub(super) group: Option<GroupId>,
    /// By place.
    pub(super) devices: Box<[Held]>,
}

/// What a process holds on a device.
#[derive(Debug)]
pub(super) struct Held {
    slot: usize,
    /// What it holds beside its ledger.
    overhead: u64,
    /// None: no limit is above.
    granted: Option<Granted>,
    /// The most that there is of the resource.
    total: u64,
    /// Bytes of it that NVML shows the process to hold.
    shown: u64,
}

/// Invariant: the process has committed no more than `held`, but for what it charged because it was there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Granted {
    held: u64,
    /// What of that the daemon has granted.
    granted: u64,
    /// The same, and what it had no reason to doubt, as there was no limit before.
    proven: u64,
    /// The word is `held`; else it is 0, and what is held is what was charged when it was last looked at.
    is_open: bool,
}

impl Granted {
    /// With no more than `held`.
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
            overhead: 0,
            granted: None,
            total,
            shown: 0,
        }
    }

    /// What the groups above are charged for the grant.
    fn held(&self) -> u64 {
        self.granted.map_or(0, |granted| granted.held)
    }

    /// What they are charged in all. What is held beside the ledger is measured of memory, and claimed of swap.
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
    /// `slots` with the bytes that there are in each.
    pub(super) fn new(resource: Resource, blocks: Arc<dyn Blocks>, slots: &[(usize, u64)]) -> Self {
        Self {
            resource,
            blocks,
            group: None,
            devices: slots.iter().copied().map(Held::new).collect(),
        }
    }

    pub(super) fn add_place(&mut self, slot: (usize, u64)) {
        let devices = std::mem::take(&mut self.devices).into_iter();
        self.devices = devices.chain([Held::new(slot)]).collect();
    }

    /// What the groups above are charged in all.
    pub(super) fn charge(&self, at: usize) -> Charge {
        let charge = |device: &Held| device.charge(self.resource);
        self.devices.get(at).map_or(Charge::default(), charge)
    }

    /// The most that the process is believed to have charged.
    pub(super) fn most(&self, at: usize) -> u64 {
        let Some(device) = self.devices.get(at) else {
            return 0;
        };
        let own = self.resource.own_limit(self.blocks.control(), device.slot);
        device.total.min(own).max(device.held()).max(device.shown)
    }

    /// Bytes that the process says it has charged, as far as that is believed.
    pub(super) fn believed(&self, at: usize) -> u64 {
        self.current(at).min(self.most(at))
    }

    /// It holds what it claims, up to what there is, until NVML is heard.
    pub(super) fn trust(&mut self, at: usize) {
        let total = self.devices.get(at).map_or(0, |device| device.total);
        let held = self.current(at).min(total);
        if let Some(granted) = self.granted(at) {
            let held = held.max(granted.held);
            self.store(
                at,
                Granted {
                    held,
                    proven: held,
                    ..granted
                },
            );
        }
    }

    /// NVML shows the process to hold so many bytes. Nothing is taken on trust from now on.
    pub(super) fn show(&mut self, at: usize, bytes: u64) {
        if let Some(device) = self.devices.get_mut(at) {
            device.shown = bytes;
            if let Some(granted) = &mut device.granted {
                granted.proven = granted.proven.min(granted.granted);
            }
        }
    }

    /// What the groups above are charged for the grant.
    pub(super) fn held(&self, at: usize) -> u64 {
        self.devices.get(at).map_or(0, Held::held)
    }

    /// Whether any limit is above it.
    pub(super) fn is_limited(&self) -> bool {
        self.devices.iter().any(|device| device.granted.is_some())
    }

    pub(super) fn is_granted(&self, at: usize) -> bool {
        self.granted(at).is_some()
    }

    /// Whether what is held may be charged without asking.
    pub(super) fn is_open(&self, at: usize) -> bool {
        self.granted(at).is_some_and(|granted| granted.is_open)
    }

    /// What it would have charged with `bytes` more.
    pub(super) fn wanted(&self, at: usize, bytes: u64) -> u64 {
        self.current(at).saturating_add(bytes)
    }

    /// Returns what it was.
    pub(super) fn set_overhead(&mut self, at: usize, bytes: u64) -> u64 {
        let overhead = self.devices.get_mut(at).map(|device| &mut device.overhead);
        overhead.map_or(0, |overhead| std::mem::replace(overhead, bytes))
    }

    fn granted(&self, at: usize) -> Option<Granted> {
        self.devices.get(at)?.granted
    }

    /// What is charged, and what is granted.
    fn words(&self, at: usize) -> Option<(&AtomicU64, &AtomicU64)> {
        let usage: &UsageDevice = self.blocks.usage().devices.get(self.devices.get(at)?.slot)?;
        Some((self.resource.current(usage), self.resource.granted(usage)))
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.words(at).map(|(_, granted)| granted)
    }

    /// Bytes that the process says it has charged.
    pub(super) fn current(&self, at: usize) -> u64 {
        self.words(at)
            .map_or(0, |(current, _)| current.load(SeqCst))
            .min(MOST)
    }

    /// Bytes held and not charged.
    pub(super) fn idle(&self, at: usize) -> u64 {
        self.granted(at)
            .map_or(0, |granted| granted.held.saturating_sub(self.current(at)))
    }

    /// Grants begin, with what is charged and nothing more, or end. Where the process `is_new` here, its claim is not
    /// sure; else it could have charged without asking until now, and that is taken on trust until NVML shows better.
    pub(super) fn govern(&mut self, at: usize, is_limited: bool, is_new: bool) {
        match (self.granted(at), is_limited) {
            (None, true) => {
                let most = self.most(at);
                let Some((current, granted)) = self.words(at) else {
                    return;
                };
                let held = lower_grant(current, granted, NO_LIMIT, 0).min(most);
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
                if let Some(word) = self.word(at) {
                    word.store(NO_LIMIT, SeqCst);
                }
            }
            // Of another daemon's, if it is not there yet.
            (None, false) => {
                if let Some(word) = self.word(at).filter(|word| word.load(Relaxed) != NO_LIMIT) {
                    word.store(NO_LIMIT, SeqCst);
                }
            }
            (Some(_), true) => {}
        }
    }

    /// What was held, and what is: less, where the process asks for every byte and has given some back.
    pub(super) fn refresh(&mut self, at: usize) -> Option<(u64, u64)> {
        let granted = self.granted(at)?;
        if granted.is_open {
            return Some((granted.held, granted.held));
        }
        let held = self.current(at).min(granted.held);
        self.set(at, Some(granted.lowered(held)));
        Some((granted.held, held))
    }

    /// Grants that many bytes in all.
    pub(super) fn grant(&mut self, at: usize, held: u64) {
        let granted = Granted {
            held,
            granted: held,
            proven: held,
            is_open: true,
        };
        self.store(at, granted);
    }

    /// More was charged than was held.
    pub(super) fn concede(&mut self, at: usize, held: u64) {
        if let Some(granted) = self.granted(at) {
            self.store(at, Granted { held, ..granted });
        }
    }

    /// Takes up to `bytes` of what is held and not charged.
    pub(super) fn take_back(&mut self, at: usize, bytes: u64) {
        let (Some(granted), Some((current, word))) = (self.granted(at), self.words(at)) else {
            return;
        };
        if !granted.is_open {
            self.refresh(at);
            return;
        }
        let target = granted.held - self.idle(at).min(bytes).min(granted.held);
        let held = lower_grant(current, word, granted.held, target);
        self.set(at, Some(granted.lowered(held)));
    }

    /// Has the process ask for every byte from now on; it holds what it has charged.
    pub(super) fn close(&mut self, at: usize) {
        let Some(granted) = self.granted(at) else {
            return;
        };
        if let Some(word) = self.word(at) {
            word.store(0, SeqCst);
        }
        let held = self.current(at).min(granted.held);
        let closed = Granted {
            is_open: false,
            ..granted.lowered(held)
        };
        self.set(at, Some(closed));
    }

    fn set(&mut self, at: usize, granted: Option<Granted>) {
        if let Some(device) = self.devices.get_mut(at) {
            device.granted = granted;
        }
    }

    fn store(&mut self, at: usize, granted: Granted) {
        self.set(at, Some(granted));
        if let Some(word) = self.word(at).filter(|_| granted.is_open) {
            word.store(granted.held, SeqCst);
        }
    }
}
