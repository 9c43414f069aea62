//! One governed process: its identity, blocks and settings, and state that only the daemon has.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::{Control, ControlDevice, Gate, OTHER_DEVICE};

use super::byte_seconds::ByteSeconds;
use super::energy::Energy;
use super::events::Events;
use super::held_time::HeldTime;
use super::idle_state::Idle;
use super::inherited::Inherited;
use super::origin::Origins;
use super::refused::ProcessRefusals;
use super::settings::{COMPUTE_FREEZE, MEMORY_VISIBLE, Value};
use super::stall::totals::ProcessStalls;
use super::suspension::Suspension;
use super::waits::Waits;
use super::{Blocks, Devices, GroupId, Identity, ProcessId, Settings, Untrusted};
use crate::arbiter::MemoryTurn;

/// The daemon's own state about a process, as a whole or on one device.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    /// Highest `memory.current` seen since the last reset of the peak, or its value at the reset.
    pub(super) peak: u64,
    /// Number of allocations beyond its `memory.high`.
    pub(super) nr_high: u64,
    /// Number of times that usage was above a limit: a lowered one, or when overhead grew.
    pub(super) nr_over_limit: u64,
    /// Number of requests to swap memory out.
    pub(super) nr_reclaim: u64,
    /// Number of times that it left the GPU because it was idle.
    pub(super) nr_idle: u64,
    /// Number of its memory turns, and its role in turns now.
    pub(super) nr_memory_turns: u64,
    pub(super) memory_turn: MemoryTurn,
    /// Percentage of the device for it while all that have lately had work want it.
    pub(super) share_percent: u64,
    /// Time for which the device was kept free for it.
    pub(super) held: HeldTime,
    /// State of the gate while it is not frozen, and for whom it is closed.
    pub(super) gate: Gate,
    pub(super) waits: Waits,
    pub(super) evidence: Evidence,
    /// The last reading of its work.
    pub(super) measured: Measured,
    /// Whether the overhead is estimated rather than measured.
    pub(super) is_overhead_estimated: bool,
    /// Number of the last request to measure contexts that was seen, and when, since boot.
    pub(super) size_asked: (u32, Duration),
    /// Number of the last request for a grant whose refusal was delayed, and since when.
    pub(super) refusal_delayed: (u32, Duration),
}

/// For how long a process had work on a device at `now`, nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    pub now: u64,
    pub busy_nsec: u64,
}

/// Result of looking for evidence, other than the process's claim, that it uses a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Evidence {
    /// Not examined since its claim began. The claim is believed.
    #[default]
    Unknown,
    /// As `Unknown`, with a scan requested.
    Asked,
    /// The use is confirmed, or cannot be checked.
    Confirmed,
    /// Nothing supports the claim; it does not count until something does.
    Refuted,
}

/// State of a process's counts in the journal.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Written {
    /// Sum of all counts when last written; each only grows. `None` for a process that has just registered.
    pub(super) digest: Option<u64>,
    /// Number of rounds in which other processes were written instead.
    pub(super) nr_waits: u32,
}

/// Number of times within [`ASK_PERIOD`] that a process's allocations have memory moved out: a process could
/// otherwise keep the daemon busy. Allocations of one thread are further apart.
const MOST_ASKS: u32 = 16;
pub(super) const ASK_PERIOD: u64 = 100_000_000;

/// How often a process's allocations have had memory moved out lately.
#[derive(Debug, Default)]
pub(super) struct Asks {
    /// Begin of the period, `CLOCK_MONOTONIC` in nanoseconds.
    since: u64,
    count: u32,
}

impl Asks {
    /// Counts one more; returns false if there were too many.
    pub(super) fn take(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.since) >= ASK_PERIOD {
            *self = Self { since: now, count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count <= MOST_ASKS
    }
}

/// A registered process.
#[derive(Debug)]
pub struct Process {
    pub(super) id: ProcessId,
    pub(super) identity: Identity,
    pub(super) blocks: Arc<dyn Blocks>,
    pub(super) settings: Settings,
    /// The group of the process; `None` for the root.
    pub(super) group: Option<GroupId>,
    /// Settings in force from the groups above.
    pub(super) inherited: Arc<Inherited>,
    /// True if the process has been moved between groups.
    pub(super) has_moved: bool,
    pub(super) written: Written,
    pub(super) hook_ok: bool,
    /// State of the process as a whole.
    pub(super) whole: Kept,
    /// State by device.
    pub(super) devices: Box<[Kept]>,
    pub(super) events: Events,
    pub(super) stalls: ProcessStalls,
    pub(super) byte_seconds: ByteSeconds,
    pub(super) energy: Energy,
    pub(super) origins: Origins,
    pub(super) refusals: ProcessRefusals,
    pub(super) asks: Asks,
    pub(super) suspension: Suspension,
    pub(super) idle: Idle,
}

impl Process {
    pub(super) fn new(id: ProcessId, identity: Identity, blocks: Arc<dyn Blocks>, devices: &Devices) -> Self {
        let kept = devices.iter().map(|_| Kept::default()).collect();
        Self {
            id,
            identity,
            blocks,
            settings: Settings::default(),
            group: None,
            inherited: Inherited::nothing(),
            has_moved: false,
            written: Written::default(),
            hook_ok: true,
            whole: Kept::default(),
            devices: kept,
            events: Events::default(),
            stalls: ProcessStalls::default(),
            byte_seconds: ByteSeconds::new((devices.host.now)(), 0),
            energy: Energy::default(),
            origins: Origins::default(),
            refusals: ProcessRefusals::default(),
            asks: Asks::default(),
            suspension: Suspension::default(),
            idle: Idle::default(),
        }
    }

    /// Returns the state of the process on a device, or as a whole.
    pub(super) fn kept_mut(&mut self, device: Option<usize>) -> Option<&mut Kept> {
        match device {
            None => Some(&mut self.whole),
            Some(index) => self.devices.get_mut(index),
        }
    }

    /// Returns the last reading of its work on a device.
    pub(super) fn measured(&self, device: usize) -> Measured {
        self.devices
            .get(device)
            .map_or(Measured::default(), |kept| kept.measured)
    }

    /// Returns whether the process claims to use a device, or has had work there since the last tick, though
    /// the contexts that it claimed may be gone.
    pub(super) fn concerns(&self, device: usize) -> bool {
        let (Some(usage), Some(kept)) = (self.usage().device(device), self.devices.get(device)) else {
            return false;
        };
        // Without a claim that was seen, no evidence is looked for.
        let has_worked = || kept.measured.busy_nsec != usage.busy(0).0;
        usage.claims_use() || kept.evidence != Evidence::Unknown && has_worked()
    }

    /// Adds the state for one more device.
    pub(super) fn add_device(&mut self) {
        let devices = std::mem::take(&mut self.devices).into_iter();
        self.devices = devices.chain([Kept::default()]).collect();
    }

    /// Returns the state of a device's gate while it is not frozen.
    pub(super) fn gate(&self, device: usize) -> Gate {
        self.devices.get(device).map_or(Gate::Run, |kept| kept.gate)
    }

    pub fn control(&self) -> &Control {
        self.blocks.control()
    }

    pub fn usage(&self) -> Untrusted<'_> {
        self.blocks.usage()
    }

    /// Returns whether the process claims that its memory can be swapped out.
    pub(super) fn can_swap(&self) -> bool {
        self.usage().can_swap()
    }

    /// Returns whether the hook answers and its usage block is valid.
    pub(super) fn is_hook_ok(&self) -> bool {
        self.hook_ok && self.usage().is_understood()
    }

    /// Returns whether the process is to be frozen, as a whole or on a device of that index and UUID, by its
    /// own settings or those of a group above, or while it is suspended or away.
    pub(super) fn freeze(&self, device: Option<usize>, uuid: Option<&str>) -> bool {
        let asks = |uuid| self.settings.get(COMPUTE_FREEZE, uuid).is_on();
        let is_asked = asks(None) || asks(uuid) || self.inherited.freeze(device);
        is_asked || self.suspension.freezes() || self.idle.is_away()
    }

    /// Returns `memory.visible` in force, as a whole or on a device of that index and UUID.
    pub(super) fn visible(&self, device: Option<usize>, uuid: Option<&str>) -> Value {
        let own = self.settings.nearest(MEMORY_VISIBLE, uuid);
        own.or_else(|| self.inherited.visible(device))
            .unwrap_or(MEMORY_VISIBLE.default)
    }

    /// Returns the priority in force, as a whole or on a device of that index and UUID.
    pub(super) fn priority(&self, device: Option<usize>, uuid: Option<&str>) -> u32 {
        self.settings.rank(uuid, self.inherited.rank(device)).in_force()
    }

    /// Returns whether the process is frozen on the device, or as a whole on all: the gate is closed, and the
    /// process has acknowledged that very closing. A process whose connection is lost is not: its hook opens
    /// the gates after the grace time, or it executes another program.
    pub(super) fn is_frozen(&self, device: Option<usize>, nr_devices: usize) -> bool {
        self.hook_ok
            && match device {
                Some(device) => self.is_drained(device),
                None => self.freeze(None, None) && slots(nr_devices).all(|device| self.is_drained(device)),
            }
    }

    /// Returns the driver's error (CUresult) because of which the hook cannot tell whether submitted work has
    /// completed: on a device, or as a whole on the first that has one. `None` if no drain is pending. The
    /// process claims it.
    pub(super) fn drain_error(&self, device: Option<usize>, nr_devices: usize) -> Option<u32> {
        let on = |device: usize| {
            let control = self.control().devices.get(device)?;
            let error = self.usage().device(device)?.drain_error()?;
            (is_closed(control) && !self.is_drained(device)).then_some(error)
        };
        match device {
            Some(device) => on(device),
            None => slots(nr_devices).find_map(on),
        }
    }

    fn is_drained(&self, device: usize) -> bool {
        let (Some(control), Some(usage)) = (self.control().devices.get(device), self.usage().device(device))
        else {
            return false;
        };
        is_closed(control) && usage.drained_generation() == control.freeze_generation.load(Relaxed)
    }
}

/// Returns the block slots in use: those of the known devices, and [`OTHER_DEVICE`].
pub(super) fn slots(nr_devices: usize) -> impl Iterator<Item = usize> {
    (0..nr_devices).chain([OTHER_DEVICE])
}

/// Returns whether the gate lets nothing pass.
pub(super) fn is_closed(control: &ControlDevice) -> bool {
    control.gate.load(Relaxed) == Gate::Frozen as u32
}
