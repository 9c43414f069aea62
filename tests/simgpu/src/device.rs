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

    /// Its place in the order of PCI addresses, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its UUID, the same for the same index on every simulated machine.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = *b"simgpu\x40\0\x80\0gcgr\0\0";
        uuid[15] = u8::try_from(self.index).unwrap_or(u8::MAX);
        uuid
    }

    /// Its UUID as the driver's tools write it: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub fn uuid_string(&self) -> String {
        let hex: String = self.uuid().iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }

    /// The bus number of its PCI address; domain, device and function are 0.
    pub fn pci_bus(&self) -> u32 {
        u32::try_from(self.index).unwrap_or(0) + 1
    }

    /// Its PCI address with an eight-digit domain, as NVML writes it: `00000000:01:00.0`.
    pub fn pci_address(&self) -> String {
        format!("00000000:{:02X}:00.0", self.pci_bus())
    }

    /// Bytes of memory it has.
    pub fn memory_total(&self) -> u64 {
        self.machine.config().memory
    }

    /// Bytes of memory in use: by living processes, and what has no owner any more but is held by some.
    pub fn memory_used(&self) -> u64 {
        let owned: u64 = self.processes().iter().map(|process| process.used).sum();
        owned.saturating_add(self.machine.orphaned(self.index))
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
