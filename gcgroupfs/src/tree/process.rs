//! One governed process: who it is, its blocks, what is asked of it, and what only the daemon remembers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{Control, Gate, NO_LIMIT, OTHER_DEVICE, Usage};

use super::events::Events;
use super::inherited::Inherited;
use super::legacy::Written;
use super::{Blocks, Device, GroupId, Owner, ProcessId, Settings, enforce, sums};
use crate::text::Comm;

/// Who a process is, by the kernel's account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub pid: u32,
    /// Clock ticks since boot (field 22 of /proc/PID/stat): with the pid, it names the process for good.
    pub start_time: u64,
    /// Which program it runs, as far as the kernel tells: where that begins, and where its stack does.
    pub image: Option<(u64, u64)>,
    /// When it registered, in seconds since 1970; for people to read.
    pub started: u64,
    pub uid: u32,
    pub gid: u32,
    pub comm: Comm,
}

impl Identity {
    /// Whether it is the same program of the same process: what it has counted goes on.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.image.is_some()
            && (self.pid, self.start_time, self.image) == (other.pid, other.start_time, other.image)
    }

    pub fn owner(&self) -> Owner {
        Owner {
            uid: self.uid,
            gid: self.gid,
        }
    }
}

/// What the daemon remembers of one directory.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    /// The highest `memory.current` that was seen since the peak was last reset, or what it was then.
    pub(super) peak: u64,
    /// Times a limit was set below usage.
    pub(super) nr_over_limit: u64,
    /// Times that memory was asked to be swapped out.
    pub(super) nr_reclaim: u64,
    /// What the gate is while nobody freezes it.
    pub(super) gate: Gate,
    pub(super) evidence: Evidence,
}

/// Whether anything but the process's own word says that it uses a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Evidence {
    /// Nobody has looked since it began to claim so. It is believed.
    #[default]
    Unknown,
    /// As `Unknown`; it claims so, and a look has been asked for.
    Asked,
    /// It does, or nobody can say.
    Confirmed,
    /// It claims so, and nothing supports that: what it says of its work does not count until something does.
    Refuted,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            peak: 0,
            nr_over_limit: 0,
            nr_reclaim: 0,
            gate: Gate::Run,
            evidence: Evidence::default(),
        }
    }
}

/// A registered process.
#[derive(Debug)]
pub struct Process {
    pub(super) id: ProcessId,
    pub(super) identity: Identity,
    pub(super) blocks: Arc<dyn Blocks>,
    pub(super) settings: Settings,
    /// The group that it is in; in the root, none.
    pub(super) group: Option<GroupId>,
    /// What holds for it by the groups above.
    pub(super) inherited: Arc<Inherited>,
    /// Whether it has been in another group before.
    pub(super) has_moved: bool,
    /// Bytes that it was last seen to hold, by place as [`Events`] has them; in the root, none.
    pub(super) observed: Vec<u64>,
    /// How much may be swapped out for the groups' sake, likewise; where nothing bounds it, or it asks, empty.
    pub(super) swap_bounds: Vec<u64>,
    pub(super) written: Written,
    pub(super) hook_ok: bool,
    /// How often it was found to keep what it should let go, since it had let everything go.
    pub(super) nr_recalls: u32,
    /// Of the process as a whole.
    pub(super) whole: Kept,
    /// By device.
    pub(super) devices: Box<[Kept]>,
    pub(super) events: Events,
}

impl Process {
    pub(super) fn new(
        id: ProcessId,
        identity: Identity,
        blocks: Arc<dyn Blocks>,
        settings: Settings,
        devices: &[Device],
    ) -> Self {
        let kept = devices.iter().map(|_| Kept::default()).collect();
        Self {
            id,
            identity,
            blocks,
            settings,
            group: None,
            inherited: Inherited::nothing(),
            has_moved: false,
            observed: Vec::new(),
            swap_bounds: Vec::new(),
            written: Written::default(),
            hook_ok: true,
            nr_recalls: 0,
            whole: Kept::default(),
            devices: kept,
            events: Events::default(),
        }
    }

    /// What is remembered of the process on a device, or of it as a whole.
    pub(super) fn kept_mut(&mut self, device: Option<usize>) -> Option<&mut Kept> {
        match device {
            None => Some(&mut self.whole),
            Some(index) => self.devices.get_mut(index),
        }
    }

    /// There is one more.
    pub(super) fn add_device(&mut self) {
        let devices = std::mem::take(&mut self.devices).into_iter();
        self.devices = devices.chain([Kept::default()]).collect();
    }

    /// Keeps the peaks of the device and of the whole as they are now.
    pub(super) fn keep_peaks(&mut self, device: usize, devices: &[Device]) {
        for place in [None, Some(device)] {
            let peak = sums::peak(self, place, devices);
            if let Some(kept) = self.kept_mut(place) {
                kept.peak = peak;
            }
        }
    }

    /// What the gate of a device is while nobody freezes it.
    pub(super) fn gate(&self, device: usize) -> Gate {
        self.devices.get(device).map_or(Gate::Run, |kept| kept.gate)
    }

    pub fn control(&self) -> &Control {
        self.blocks.control()
    }

    /// What the process says of itself: to be clamped, never an index or a length.
    pub fn usage(&self) -> &Usage {
        self.blocks.usage()
    }

    /// Whether the process says that its memory can be swapped out.
    pub(super) fn can_swap(&self) -> bool {
        self.usage().can_swap.load(Relaxed) != 0
    }

    /// Whether it says that it asks before it swaps out, and keeps to what it is granted.
    pub(super) fn asks_to_swap(&self) -> bool {
        self.usage().asks_to_swap.load(Relaxed) != 0
    }

    /// Whether the hook answers and its block is still one.
    pub(super) fn is_hook_ok(&self) -> bool {
        self.hook_ok && self.usage().is_understood()
    }

    /// Whether the process is to stand still, as a whole or on a device of that index and UUID: for what was asked of
    /// it, or of a group above.
    pub(super) fn freeze(&self, device: Option<usize>, uuid: Option<&str>) -> bool {
        self.settings.freeze(None) || self.settings.freeze(uuid) || self.inherited.freeze(device)
    }

    /// `memory.swap.max` in force, as a whole or on a device of that index and UUID.
    pub(super) fn swap_max(&self, device: Option<usize>, uuid: Option<&str>) -> u64 {
        let at = device.map_or(0, |device| device + 1);
        let bound = self.swap_bounds.get(at).copied().unwrap_or(NO_LIMIT);
        self.settings.memory_swap_max(uuid).min(bound)
    }

    /// The priority in force, as a whole or on a device of that index and UUID.
    pub(super) fn priority(&self, device: Option<usize>, uuid: Option<&str>) -> u32 {
        self.settings.rank(uuid, self.inherited.rank(device)).in_force()
    }

    /// Whether nothing of the process's runs on the device, or, as a whole, anywhere: the gate is closed there, and
    /// the process has acknowledged that very closing. Not of a process whose connection is lost: its hook opens the gates
    /// after a while, or it runs another program.
    pub(super) fn is_frozen(&self, device: Option<usize>, nr_devices: usize) -> bool {
        self.hook_ok
            && match device {
                Some(device) => self.is_drained(device),
                None => self.freeze(None, None) && slots(nr_devices).all(|device| self.is_drained(device)),
            }
    }

    /// The driver's error (CUresult) by which the hook cannot tell whether the work that was submitted before a freeze has ended:
    /// on a device, or as a whole on the first that has one. `None` where nothing is being drained. The process's word.
    pub(super) fn drain_error(&self, device: Option<usize>, nr_devices: usize) -> Option<u32> {
        let on = |device: usize| {
            let control = self.control().devices.get(device)?;
            let error = self.usage().devices.get(device)?.drain_error.load(Relaxed);
            (error != 0 && enforce::is_closed(control) && !self.is_drained(device)).then_some(error)
        };
        match device {
            Some(device) => on(device),
            None => slots(nr_devices).find_map(on),
        }
    }

    fn is_drained(&self, device: usize) -> bool {
        let (Some(control), Some(usage)) = (
            self.control().devices.get(device),
            self.usage().devices.get(device),
        ) else {
            return false;
        };
        enforce::is_closed(control)
            && usage.drained_generation.load(Relaxed) == control.freeze_generation.load(Relaxed)
    }
}

/// The block slots in use: those of the known devices, and the one for all others.
pub(super) fn slots(nr_devices: usize) -> impl Iterator<Item = usize> {
    (0..nr_devices).chain([OTHER_DEVICE])
}
