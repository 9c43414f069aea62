//! One device as anybody may see it: what it is, how full, how busy, and by whom.

use std::sync::atomic::Ordering::Relaxed;

use crate::layout::{SharedDevice, Slot};
use crate::state::Machine;

/// The product name of every simulated device.
pub const NAME: &str = "Simulated GPU";

/// The compute capability of every simulated device: major and minor.
pub const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);

/// One device of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    machine: &'a Machine,
    index: usize,
}

/// A living process that has something on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its pid, as the asking process's pid namespace knows it.
    pub pid: u32,
    /// Bytes of device memory it holds, those of its contexts included.
    pub used: u64,
    /// Contexts it has on the device.
    pub contexts: u32,
    /// Nanoseconds of work it has had done.
    pub busy_ns: u64,
    /// Kernels it has begun.
    pub nr_launches: u64,
}

impl<'a> Device<'a> {
    pub(crate) fn new(machine: &'a Machine, index: usize) -> Self {
        Device { machine, index }
    }

    /// Its place on the machine: that in the order of PCI addresses, from 0; instances have theirs behind all
    /// devices.
    pub fn index(&self) -> usize {
        self.index
    }

    /// What it is called: the product, and of an instance its profile too (`Simulated GPU MIG 1g.5gb`).
    pub fn name(&self) -> String {
        self.machine.instance(self.index).map_or(NAME.to_owned(), |it| {
            format!("{NAME} MIG {}g.{}gb", it.slices, it.memory >> 30)
        })
    }

    /// Whether it is in MIG mode: it does no work itself, its instances do.
    pub fn is_divided(&self) -> bool {
        self.machine.mig().is_enabled(self.index)
    }

    /// Its instances, of a device that is divided.
    pub fn instances(&self) -> impl Iterator<Item = Device<'a>> + use<'a> {
        let (machine, parent) = (self.machine, self.index);
        let first = machine.config().devices;
        let instances: Vec<_> = machine.mig().instances().enumerate().collect();
        instances
            .into_iter()
            .filter(move |(_, instance)| instance.parent == parent)
            .map(move |(place, _)| Device::new(machine, first + place))
    }

    /// The device that it is an instance of, and which of its instances it is, from 0.
    pub fn part_of(&self) -> Option<(Device<'a>, usize)> {
        let parent = Device::new(self.machine, self.machine.instance(self.index)?.parent);
        let number = parent.instances().position(|it| it.index == self.index)?;
        Some((parent, number))
    }

    /// Multiprocessors it has.
    pub fn multiprocessors(&self) -> u32 {
        let slices = self.machine.instance(self.index).map(|it| it.slices);
        slices
            .filter(|slices| *slices < 7)
            .map_or(132, |slices| 16 * slices)
    }

    /// Its UUID, the same for the same index on every simulated machine. That of an instance begins with what
    /// the others have not, so that it can be abbreviated.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = *b"simgpu\x40\0\x80\0gcgr\0\0";
        let byte = |number| u8::try_from(number).unwrap_or(u8::MAX);
        match self.part_of() {
            Some((parent, number)) => uuid[..2].copy_from_slice(&[byte(parent.index), byte(number + 1)]),
            None => uuid[15] = byte(self.index),
        }
        uuid
    }

    /// Its UUID as the driver's tools write it: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, or `MIG-…`.
    pub fn uuid_string(&self) -> String {
        let hex: String = self.uuid().iter().map(|byte| format!("{byte:02x}")).collect();
        let kind = if self.part_of().is_some() { "MIG" } else { "GPU" };
        format!(
            "{kind}-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }

    /// The bus number of its PCI address; domain, device and function are 0. An instance has its device's.
    pub fn pci_bus(&self) -> u32 {
        let device = self.part_of().map_or(self.index, |(parent, _)| parent.index);
        u32::try_from(device).unwrap_or(0) + 1
    }

    /// Its PCI address with an eight-digit domain, as NVML writes it: `00000000:01:00.0`.
    pub fn pci_address(&self) -> String {
        format!("00000000:{:02X}:00.0", self.pci_bus())
    }

    /// Bytes of memory it has.
    pub fn memory_total(&self) -> u64 {
        self.machine.memory_of(self.index)
    }

    /// Bytes of memory in use: by living processes, and what has no owner any more but is held by some. Of a
    /// device that is divided: on all its instances.
    pub fn memory_used(&self) -> u64 {
        let owned: u64 = self.processes().iter().map(|process| process.used).sum();
        let here = owned.saturating_add(self.machine.orphaned(self.index));
        self.instances()
            .map(|it| it.memory_used())
            .fold(here, u64::saturating_add)
    }

    /// Nanoseconds of work it has done since the machine was made, by whomever. Grows while a kernel
    /// runs, at least once in a time slice.
    pub fn busy_ns(&self) -> u64 {
        let slots = self.machine.layout().slots();
        let here: u64 = slots
            .map(|slot| slot.device[self.index].busy_ns.load(Relaxed))
            .sum();
        self.shared().busy_of_gone_ns.load(Relaxed).saturating_add(here)
    }

    /// The living processes that hold memory or a context on it.
    pub fn processes(&self) -> Vec<Process> {
        let mut list = Vec::new();
        for (index, slot) in self.machine.layout().slots().enumerate() {
            let here = &slot.device[self.index];
            let (used, contexts) = (here.used.load(Relaxed), here.contexts.load(Relaxed));
            if used == 0 && contexts == 0 {
                continue;
            }
            let Some(pid) = self.machine.locks.slot_owner(index) else {
                continue;
            };
            list.push(Process {
                pid: if pid == 0 { slot.pid.load(Relaxed) } else { pid },
                used,
                contexts,
                busy_ns: here.busy_ns.load(Relaxed),
                nr_launches: here.nr_launches.load(Relaxed),
            });
        }
        list
    }

    /// Every place on the machine that was ever taken, with its number.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, &'a Slot)> {
        self.machine.layout().slots().enumerate()
    }

    /// The pid of the living process in a place.
    pub(crate) fn owner(&self, slot: usize) -> Option<u32> {
        self.machine.locks.slot_owner(slot)
    }

    pub(crate) fn shared(&self) -> &'a SharedDevice {
        &self.machine.layout().device[self.index]
    }
}
