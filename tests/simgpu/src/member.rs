//! This process's slot on the machine: its usage, visible to all other processes.

use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicUsize};

use crate::clock;
use crate::config::MAX_DEVICES;
use crate::held::Held;
use crate::layout::{SharedDevice, Slot, SlotDevice};
use crate::state::Machine;

/// A process that uses the machine. Its slot is freed when the process ends, not when this value is dropped.
///
/// The process numbers devices as when it joined. A restore on other devices changes which devices of the
/// machine these are; all methods take the process's numbers.
#[derive(Debug)]
pub struct Member {
    machine: &'static Machine,
    slot: usize,
    /// Device of the machine, by the process's number: a permutation.
    devices: [AtomicUsize; MAX_DEVICES],
}

impl Member {
    /// Claims a slot on the machine. At most once per process; a forked child must not use its parent's slot.
    pub fn join(machine: &'static Machine) -> io::Result<Member> {
        Ok(Member::new(machine, machine.claim()?))
    }

    fn new(machine: &'static Machine, slot: usize) -> Member {
        Member {
            machine,
            slot,
            devices: std::array::from_fn(AtomicUsize::new),
        }
    }

    /// Returns the device of the machine with the process's number. Numbers beyond all devices stay.
    pub fn on_machine(&self, device: usize) -> usize {
        self.devices
            .get(device)
            .map_or(device, |device| device.load(SeqCst))
    }

    /// Returns the process's number of a device of the machine.
    pub fn number_of(&self, on_machine: usize) -> usize {
        let mut devices = self.devices.iter();
        devices
            .position(|device| device.load(SeqCst) == on_machine)
            .unwrap_or(on_machine)
    }

    /// Changes which devices of the machine the process has: `to(old)` takes the place of `old`, for a
    /// permutation `to`. The process must be idle and hold nothing.
    pub(crate) fn replace_devices(&self, to: impl Fn(usize) -> usize) {
        for device in &self.devices {
            let old = device.load(SeqCst);
            device.store(to(old), SeqCst);
        }
        // Its threads sleep at the bells of the previous devices.
        for device in &self.place().device {
            clock::ring(&device.bell);
        }
    }

    /// Returns the machine.
    pub fn machine(&self) -> &'static Machine {
        self.machine
    }

    /// Charges `bytes` of device memory to this process. Returns `false` if the device has not that many
    /// left; exact under concurrent charges.
    pub fn try_charge(&self, device: usize, kind: Held, bytes: u64) -> bool {
        let on_machine = self.on_machine(device);
        let _guard = self.machine.locks.device(on_machine);
        let total = self.machine.memory_of(on_machine);
        // Usually everything fits even with dead processes counted; liveness is checked only otherwise.
        let with_dead: u64 = self
            .machine
            .layout()
            .slots()
            .map(|slot| slot.device[on_machine].used.load(Relaxed))
            .sum::<u64>()
            .saturating_add(self.machine.orphaned_at_most(on_machine));
        let fits = |used: u64| used.checked_add(bytes).is_some_and(|sum| sum <= total);
        if !fits(with_dead) && !fits(self.living_use(device)) {
            return false;
        }
        let here = self.here(device);
        self.shared(device).nr_charges.fetch_add(1, SeqCst);
        let used = here.used.fetch_add(bytes, SeqCst) + bytes;
        here.peak.fetch_max(used, Relaxed);
        // After `used`, so that a reader of `taken` and then `used` sees each such charge in both.
        here.taken.fetch_add(bytes, SeqCst);
        here.held[kind.index()].fetch_add(bytes, Relaxed);
        self.see(device);
        true
    }

    /// Drops a charge.
    pub fn uncharge(&self, device: usize, kind: Held, bytes: u64) {
        self.here(device).used.fetch_sub(bytes, Relaxed);
        self.here(device).held[kind.index()].fetch_sub(bytes, Relaxed);
        self.see(device);
    }

    /// Counts bytes of host memory before they are allocated.
    pub fn hold_host(&self, kind: Held, bytes: u64) {
        self.place().host[kind.index()].fetch_add(bytes, Relaxed);
    }

    /// Publishes the host memory left after an allocation.
    pub fn tell_host(&self) {
        self.machine.tell_host(self.slot);
    }

    /// Drops bytes of host memory from the count and publishes what is left.
    pub fn drop_host(&self, kind: Held, bytes: u64) {
        self.place().host[kind.index()].fetch_sub(bytes, Relaxed);
        self.machine.tell_host(self.slot);
    }

    /// Returns the bytes charged to this process.
    pub fn used(&self, device: usize) -> u64 {
        self.here(device).used.load(Relaxed)
    }

    /// Returns the bytes of free memory of the device.
    pub fn free(&self, device: usize) -> u64 {
        self.machine
            .memory_of(self.on_machine(device))
            .saturating_sub(self.living_use(device))
    }

    /// Adds `change` to the number of contexts: 1 for one created, -1 for one destroyed.
    pub fn count_context(&self, device: usize, change: i32) {
        let contexts = &self.here(device).contexts;
        match change {
            ..0 => contexts.fetch_sub(change.unsigned_abs(), Relaxed),
            _ => contexts.fetch_add(change.unsigned_abs(), Relaxed),
        };
    }

    /// Counts a kernel start.
    pub fn count_launch(&self, device: usize) {
        self.here(device).nr_launches.fetch_add(1, Relaxed);
    }

    /// Adds nanoseconds of device time.
    pub(crate) fn count_busy(&self, device: usize, ns: u64) {
        self.here(device).busy_ns.fetch_add(ns, Relaxed);
        self.see(device);
    }

    /// Adds nanoseconds of copy engine time.
    pub fn count_copy(&self, device: usize, ns: u64) {
        self.here(device).copy_ns.fetch_add(ns, Relaxed);
    }

    /// Records that the process uses the device now.
    fn see(&self, device: usize) {
        let now = clock::since_1970_usec();
        let here = self.here(device);
        // Concurrent callers store about the same time.
        if here.began_usec.load(Relaxed) == 0 {
            here.began_usec.store(now, Relaxed);
        }
        here.seen_usec.store(now, Relaxed);
    }

    fn living_use(&self, device: usize) -> u64 {
        let device = self.on_machine(device);
        let slots = self.machine.layout().slots().enumerate();
        slots
            .map(|(index, slot)| (index, slot.device[device].used.load(Relaxed)))
            .filter(|&(index, used)| {
                used != 0 && (index == self.slot || self.machine.locks.slot_owner(index).is_some())
            })
            .map(|(_, used)| used)
            .sum::<u64>()
            .saturating_add(self.machine.orphaned(device))
    }

    /// Returns the slot's index; no other living process has it.
    pub fn slot(&self) -> usize {
        self.slot
    }

    pub(crate) fn place(&self) -> &'static Slot {
        &self.machine.layout().slot[self.slot]
    }

    pub(crate) fn here(&self, device: usize) -> &'static SlotDevice {
        &self.place().device[self.on_machine(device)]
    }

    pub(crate) fn shared(&self, device: usize) -> &'static SharedDevice {
        &self.machine.layout().device[self.on_machine(device)]
    }

    /// Returns the bell of another process on a device.
    pub(crate) fn bell_of(&self, slot: usize, device: usize) -> &'static AtomicU32 {
        &self.machine.layout().slot[slot].device[self.on_machine(device)].bell
    }
}

#[cfg(test)]
impl Member {
    /// Returns two slots on a new machine. Within one process their locks do not distinguish them; only
    /// charging depends on that.
    pub(crate) fn two() -> [&'static Member; 2] {
        let thread = std::thread::current().id();
        let dir = std::env::temp_dir().join(format!("simgpu-test-{}-{thread:?}", std::process::id()));
        let machine: &'static Machine =
            Box::leak(Box::new(Machine::attach(&dir, crate::Config::default()).unwrap()));
        std::fs::remove_dir_all(dir).unwrap();
        [0, 1].map(|slot| &*Box::leak(Box::new(Member::new(machine, slot))))
    }
}
