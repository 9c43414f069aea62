//! One device as seen from outside: its properties, memory use, busy time and processes.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::layout::{SharedDevice, Slot};
use crate::quirks::Quirk;
use crate::state::Machine;

/// The product name of every simulated device.
pub const NAME: &str = "Simulated GPU";

/// The compute capability of every simulated device: major and minor.
pub const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);

/// Most sums of the memory in use, one after another, while processes keep charging.
const MOST_SUMS: usize = 100;

/// One device of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    machine: &'a Machine,
    index: usize,
}

/// A living process that uses a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process's pid in the caller's pid namespace.
    pub pid: u32,
    /// Bytes of device memory, including the memory of contexts.
    pub used: u64,
    /// Number of contexts on the device.
    pub contexts: u32,
    /// Nanoseconds of device time used.
    pub busy_ns: u64,
    /// Kernels started.
    pub nr_launches: u64,
}

impl Machine {
    /// Returns the devices without MIG instances, in the order of their PCI addresses.
    pub fn devices(&self) -> impl Iterator<Item = Device<'_>> {
        (0..self.config().devices).map(|index| Device::new(self, index))
    }

    /// Returns the device or instance with this index, if it exists.
    pub fn device(&self, index: usize) -> Option<Device<'_>> {
        (index < self.config().devices || index < self.places()).then(|| Device::new(self, index))
    }
}

impl<'a> Device<'a> {
    fn new(machine: &'a Machine, index: usize) -> Self {
        Device { machine, index }
    }

    /// Returns the device's index on the machine: devices in the order of PCI addresses, from 0, then all MIG
    /// instances.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the product name, for a MIG instance with its profile (`Simulated GPU MIG 1g.5gb`).
    pub fn name(&self) -> String {
        match self.machine.instance(self.index) {
            Some(it) => format!("{NAME} MIG {}g.{}gb", it.slices, it.memory >> 30),
            None if self.index % 2 == 1 && Quirk::TwoChips.is_on() => format!("{NAME} 2"),
            None => NAME.to_owned(),
        }
    }

    /// Returns whether the device is in MIG mode, where only its instances do work.
    pub fn is_divided(&self) -> bool {
        self.machine.mig().is_enabled(self.index)
    }

    /// Returns the device's MIG instances.
    pub fn instances(&self) -> impl Iterator<Item = Device<'a>> + use<'a> {
        let (machine, parent) = (self.machine, self.index);
        let first = machine.config().devices;
        let instances: Vec<_> = machine.mig().instances().enumerate().collect();
        instances
            .into_iter()
            .filter(move |(_, instance)| instance.parent == parent)
            .map(move |(place, _)| Device::new(machine, first + place))
    }

    /// For a MIG instance: returns its parent device and its number among the parent's instances, from 0.
    pub fn part_of(&self) -> Option<(Device<'a>, usize)> {
        let parent = Device::new(self.machine, self.machine.instance(self.index)?.parent);
        let number = parent.instances().position(|it| it.index == self.index)?;
        Some((parent, number))
    }

    /// Returns the number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        let slices = self.machine.instance(self.index).map(|it| it.slices);
        slices
            .filter(|slices| *slices < 7)
            .map_or(132, |slices| 16 * slices)
    }

    /// Returns the UUID, which depends only on the index. The first bytes of an instance's UUID are unique,
    /// so that it can be abbreviated.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = *b"simgpu\x40\0\x80\0gcgr\0\0";
        let byte = |number| u8::try_from(number).unwrap_or(u8::MAX);
        match self.part_of() {
            Some((parent, number)) => uuid[..2].copy_from_slice(&[byte(parent.index), byte(number + 1)]),
            None => uuid[15] = byte(self.index),
        }
        uuid
    }

    /// Returns the UUID in the driver's text form: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, or `MIG-…`.
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

    /// Returns the PCI bus number; domain, device and function are 0. An instance has its parent's.
    pub fn pci_bus(&self) -> u32 {
        let device = self.part_of().map_or(self.index, |(parent, _)| parent.index);
        u32::try_from(device).unwrap_or(0) + 1
    }

    /// Returns the PCI address with an eight-digit domain, as NVML writes it: `00000000:01:00.0`.
    pub fn pci_address(&self) -> String {
        format!("00000000:{:02X}:00.0", self.pci_bus())
    }

    /// Returns the total memory in bytes.
    pub fn memory_total(&self) -> u64 {
        self.machine.memory_of(self.index)
    }

    /// Returns the bytes of memory in use: by living processes, and exported memory without an owner that is
    /// still held. For a device in MIG mode, its instances are included. Never more than was in use at some
    /// moment of the call, as a driver's own count.
    pub fn memory_used(&self) -> u64 {
        let here = self.consistent(|| {
            let owned: u64 = self.processes().iter().map(|process| process.used).sum();
            owned.saturating_add(self.machine.orphaned(self.index))
        });
        self.instances()
            .map(|it| it.memory_used())
            .fold(here, u64::saturating_add)
    }

    /// Returns a sum during which no process has charged memory; the least of several if there is none.
    fn consistent(&self, mut sum: impl FnMut() -> u64) -> u64 {
        let nr_charges = || self.shared().nr_charges.load(SeqCst);
        let mut least = u64::MAX;
        for _ in 0..MOST_SUMS {
            let before = nr_charges();
            let found = sum();
            if nr_charges() == before {
                return found;
            }
            least = least.min(found);
        }
        least
    }

    /// Returns the nanoseconds of work done since the machine was created, for all processes. Grows while a
    /// kernel runs, at least once per time slice.
    pub fn busy_ns(&self) -> u64 {
        let slots = self.machine.layout().slots();
        let here: u64 = slots
            .map(|slot| slot.device[self.index].busy_ns.load(Relaxed))
            .sum();
        self.shared().busy_of_gone_ns.load(Relaxed).saturating_add(here)
    }

    /// Returns the living processes that hold memory or a context on the device.
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

    /// Returns every slot that was ever claimed, with its index.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, &'a Slot)> {
        self.machine.layout().slots().enumerate()
    }

    /// Returns the pid of the living process in a slot.
    pub(crate) fn owner(&self, slot: usize) -> Option<u32> {
        self.machine.locks.slot_owner(slot)
    }

    pub(crate) fn shared(&self) -> &'a SharedDevice {
        &self.machine.layout().device[self.index]
    }
}

#[cfg(test)]
mod tests {
    use crate::held::Held;
    use crate::member::Member;

    #[test]
    fn sum_in_which_a_process_charges_is_taken_again() {
        let [member, _] = Member::two();
        let device = member.machine().device(0).unwrap();
        let mut nr_sums = 0;
        let found = device.consistent(|| {
            nr_sums += 1;
            assert!(nr_sums > 3 || member.try_charge(0, Held::Linear, 1));
            10 - nr_sums
        });
        assert_eq!((found, nr_sums), (6, 4));
        let least = device.consistent(|| {
            nr_sums += 1;
            assert!(member.try_charge(0, Held::Linear, 1));
            nr_sums
        });
        assert_eq!(least, 5, "of sums that all fail");
    }
}
