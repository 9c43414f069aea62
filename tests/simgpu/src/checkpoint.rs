//! Accounts of a process that has been moved to the host: its memory and contexts as the machine counts
//! them.

use std::sync::atomic::Ordering::Relaxed;

use crate::config::MAX_DEVICES;
use crate::held::Held;
use crate::layout::SlotDevice;
use crate::member::Member;
use crate::state::Machine;

/// Memory and contexts that a process held on each of its devices when it was suspended.
#[derive(Debug, Default)]
pub struct Suspended(Vec<OnDevice>);

#[derive(Debug)]
struct OnDevice {
    used: u64,
    contexts: u32,
    held: [u64; Held::ON_DEVICE],
}

impl Suspended {
    /// Returns the bytes on all devices.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|device| device.used).sum()
    }
}

fn take(here: &SlotDevice) -> OnDevice {
    OnDevice {
        used: here.used.swap(0, Relaxed),
        contexts: here.contexts.swap(0, Relaxed),
        held: here.held.each_ref().map(|bytes| bytes.swap(0, Relaxed)),
    }
}

impl Member {
    /// Frees all devices, and counts the memory as host memory.
    pub fn suspend(&self) -> Suspended {
        let devices = 0..MAX_DEVICES;
        let suspended = Suspended(devices.map(|device| take(self.here(device))).collect());
        self.hold_host(Held::HostCheckpoint, suspended.bytes());
        self.tell_host();
        suspended
    }

    /// Takes devices again: for pairs of devices of the machine, which are a permutation, the second in the
    /// place of the first. Returns `false`, and changes nothing, if one has not enough free memory.
    pub fn resume_on(&self, suspended: &Suspended, pairs: &[(usize, usize)]) -> bool {
        let paired = |device, (from, to): &(usize, usize)| (*from == device).then_some(*to);
        self.replace_devices(|old| pairs.iter().find_map(|pair| paired(old, pair)).unwrap_or(old));
        let is_done = self.resume(suspended);
        if !is_done {
            let back = |new, (from, to): &(usize, usize)| (*to == new).then_some(*from);
            self.replace_devices(|new| pairs.iter().find_map(|pair| back(new, pair)).unwrap_or(new));
        }
        is_done
    }

    /// Takes the devices again. Returns `false`, and changes nothing, if one has not enough free memory.
    fn resume(&self, suspended: &Suspended) -> bool {
        for (device, was) in suspended.0.iter().enumerate() {
            if was.used > 0 && !self.try_charge(device, Held::Context, was.used) {
                for (before, was) in suspended.0.iter().enumerate().take(device) {
                    self.uncharge(before, Held::Context, was.used);
                }
                return false;
            }
        }
        for (device, was) in suspended.0.iter().enumerate() {
            let here = self.here(device);
            here.contexts.store(was.contexts, Relaxed);
            for (word, bytes) in here.held.iter().zip(was.held) {
                word.store(bytes, Relaxed);
            }
        }
        self.drop_host(Held::HostCheckpoint, suspended.bytes());
        true
    }

    /// Makes known that this process serves requests for checkpoints, on a socket of this user.
    pub fn tell_checkpoints(&self, uid: u32) {
        self.place().checkpoints.store(uid.wrapping_add(1), Relaxed);
    }
}

impl Machine {
    /// Returns the slot of the process with this pid and the user of its socket, if it serves requests for
    /// checkpoints.
    pub fn checkpoints_of(&self, pid: u32) -> Option<(usize, u32)> {
        let mut slots = self.layout().slots().enumerate();
        slots.find_map(|(index, slot)| {
            let uid = slot.checkpoints.load(Relaxed).checked_sub(1)?;
            (self.locks.slot_owner(index) == Some(pid)).then_some((index, uid))
        })
    }
}
