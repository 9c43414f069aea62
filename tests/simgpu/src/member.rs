//! This process's place on the machine: what it holds, counted where all others can see it.

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::clock;
use crate::held::Held;
use crate::layout::{SharedDevice, Slot, SlotDevice};
use crate::state::Machine;

/// A process that uses the machine. Its place ends with the process, not with this value.
#[derive(Debug)]
pub struct Member {
    machine: &'static Machine,
    slot: usize,
}

impl Member {
    /// Takes a place on the machine. At most once in a process; a fork child must not use its
    /// parent's.
    pub fn join(machine: &'static Machine) -> io::Result<Member> {
        Ok(Member {
            machine,
            slot: machine.claim()?,
        })
    }

    /// The machine.
    pub fn machine(&self) -> &'static Machine {
        self.machine
    }

    /// Charges `bytes` of device memory to this process, unless the device has not that many left:
    /// exact, whoever else is charging.
    pub fn try_charge(&self, device: usize, kind: Held, bytes: u64) -> bool {
        let _guard = self.machine.locks.device(device);
        let total = self.machine.memory_of(device);
        // Most often everything fits, the dead included; only else is it worth asking who is alive.
        let with_dead: u64 = self
            .machine
            .layout()
            .slots()
            .map(|slot| slot.device[device].used.load(Relaxed))
            .sum::<u64>()
            .saturating_add(self.machine.orphaned_at_most(device));
        let fits = |used: u64| used.checked_add(bytes).is_some_and(|sum| sum <= total);
        if !fits(with_dead) && !fits(self.living_use(device)) {
            return false;
        }
        let here = self.here(device);
        let used = here.used.fetch_add(bytes, Relaxed) + bytes;
        here.peak.fetch_max(used, Relaxed);
        here.held[kind.index()].fetch_add(bytes, Relaxed);
        self.see(device);
        true
    }

    /// Takes back a charge.
    pub fn uncharge(&self, device: usize, kind: Held, bytes: u64) {
        self.here(device).used.fetch_sub(bytes, Relaxed);
        self.here(device).held[kind.index()].fetch_sub(bytes, Relaxed);
        self.see(device);
    }

    /// Counts bytes of host memory that are to be made.
    pub fn hold_host(&self, kind: Held, bytes: u64) {
        self.place().host[kind.index()].fetch_add(bytes, Relaxed);
    }

    /// They are there: the host has less, from now on.
    pub fn tell_host(&self) {
        self.machine.tell_host(self.slot);
    }

    /// Takes them back.
    pub fn drop_host(&self, kind: Held, bytes: u64) {
        self.place().host[kind.index()].fetch_sub(bytes, Relaxed);
        self.machine.tell_host(self.slot);
    }

    /// Bytes this process has charged.
    pub fn used(&self, device: usize) -> u64 {
        self.here(device).used.load(Relaxed)
    }

    /// Bytes the device has left.
    pub fn free(&self, device: usize) -> u64 {
        self.machine
            .memory_of(device)
            .saturating_sub(self.living_use(device))
    }

    /// Counts a context made (`1`) or destroyed (`-1`).
    pub fn count_context(&self, device: usize, change: i32) {
        let contexts = &self.here(device).contexts;
        match change {
            ..0 => contexts.fetch_sub(change.unsigned_abs(), Relaxed),
            _ => contexts.fetch_add(change.unsigned_abs(), Relaxed),
        };
    }

    /// Counts a kernel begun.
    pub fn count_launch(&self, device: usize) {
        self.here(device).nr_launches.fetch_add(1, Relaxed);
    }

    /// Counts work done for this process.
    pub(crate) fn count_busy(&self, device: usize, ns: u64) {
        self.here(device).busy_ns.fetch_add(ns, Relaxed);
        self.see(device);
    }

    /// Counts work of copy engines done for this process.
    pub fn count_copy(&self, device: usize, ns: u64) {
        self.here(device).copy_ns.fetch_add(ns, Relaxed);
    }

    /// Notes that the process does something on a device now.
    fn see(&self, device: usize) {
        let now = clock::since_1970_usec();
        let here = self.here(device);
        // Whoever is first: both are now.
        if here.began_usec.load(Relaxed) == 0 {
            here.began_usec.store(now, Relaxed);
        }
        here.seen_usec.store(now, Relaxed);
    }

    fn living_use(&self, device: usize) -> u64 {
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

    /// Its place, which no other living process has.
    pub fn slot(&self) -> usize {
        self.slot
    }

    fn place(&self) -> &'static Slot {
        &self.machine.layout().slot[self.slot]
    }

    pub(crate) fn here(&self, device: usize) -> &'static SlotDevice {
        &self.place().device[device]
    }

    pub(crate) fn shared(&self, device: usize) -> &'static SharedDevice {
        &self.machine.layout().device[device]
    }

    /// The bell of another process on a device.
    pub(crate) fn bell_of(&self, slot: usize, device: usize) -> &'static AtomicU32 {
        &self.machine.layout().slot[slot].device[device].bell
    }
}

#[cfg(test)]
impl Member {
    /// Two places on a fresh machine. In one process they are not told apart by their locks, which only
    /// charging looks at.
    pub(crate) fn two() -> [&'static Member; 2] {
        let thread = std::thread::current().id();
        let dir = std::env::temp_dir().join(format!("simgpu-test-{}-{thread:?}", std::process::id()));
        let machine: &'static Machine =
            Box::leak(Box::new(Machine::attach(&dir, crate::Config::default()).unwrap()));
        std::fs::remove_dir_all(dir).unwrap();
        [0, 1].map(|slot| &*Box::leak(Box::new(Member { machine, slot })))
    }
}
