//! Doorbells: tell a process that its control block has changed, by a packet to the hook's helper thread, and
//! wake the threads that wait at gates.
//!
//! Called on the thread that made the change; never waits. If a process does not read its packets, one is
//! already pending.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::message::{Tag, bare};
use gcgroup_abi::{Control, Gate, OTHER_DEVICE};
use nix::sys::socket::{MsgFlags, send};
use parking_lot::RwLock;

use gcgroupfs_model::tree::{Blocks, Listener, Notice, ProcessId, Untrusted};
use gcgroupfs_sys::{ControlMap, UsageMap, wake_all};

/// A process's mapped blocks.
#[derive(Debug)]
pub(super) struct Mapped {
    pub control: ControlMap,
    pub usage: UsageMap,
}

impl Blocks for Mapped {
    fn control(&self) -> &Control {
        &self.control
    }

    fn usage(&self) -> Untrusted<'_> {
        self.usage.untrusted()
    }
}

/// Doorbells of all registered processes.
#[derive(Debug, Default)]
pub(super) struct Bells {
    bells: RwLock<HashMap<ProcessId, Bell>>,
}

#[derive(Debug)]
struct Bell {
    blocks: Arc<Mapped>,
    /// `None` while the hook's connection is lost.
    socket: Option<Arc<OwnedFd>>,
}

impl Bells {
    /// Adds a process.
    pub(super) fn hang(&self, id: ProcessId, blocks: Arc<Mapped>, socket: Arc<OwnedFd>) {
        self.bells.write().insert(
            id,
            Bell {
                blocks,
                socket: Some(socket),
            },
        );
    }

    /// Drops a process's connection, for the caller to close; its waiting threads are still woken.
    pub(super) fn mute(&self, id: ProcessId) {
        if let Some(bell) = self.bells.write().get_mut(&id) {
            bell.socket = None;
        }
    }

    /// Removes a process.
    pub(super) fn remove(&self, id: ProcessId) {
        self.bells.write().remove(&id);
    }

    /// Wakes the threads that wait for a grant, or for the measurement of a context, on a device.
    fn wake(&self, id: ProcessId, device: usize) {
        let bells = self.bells.read();
        let control = bells.get(&id).map(|bell| bell.blocks.control());
        if let Some(control) = control.and_then(|control| control.devices.get(device)) {
            wake_all(&control.grant_answer);
            wake_all(&control.context_answer);
        }
    }

    fn ring(&self, id: ProcessId) {
        // Writers of the map do not wait long for this lock, because the send does not block.
        let bells = self.bells.read();
        let Some(bell) = bells.get(&id) else { return };
        bell.blocks.wake();
        if let Some(socket) = &bell.socket {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            // EAGAIN: a doorbell is already pending. On other errors the event loop notices the lost
            // connection, too.
            let _ = send(socket.as_raw_fd(), &bare(Tag::Doorbell), flags);
        }
    }
}

impl Listener for Bells {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Ring(id) => self.ring(*id),
            Notice::Answered { id, device } => self.wake(*id, *device),
            _ => {}
        }
    }
}

impl Mapped {
    /// Wakes the threads that wait at gates that are no longer frozen, and those that wait for an answer to a
    /// request for memory pressure.
    fn wake(&self) {
        let usage = self.usage.untrusted();
        for (slot, control) in self.control.devices.iter().enumerate() {
            if usage
                .device(slot)
                .is_some_and(|usage| usage.pressure_wanted() != 0)
            {
                wake_all(&control.pressure_answer);
            }
        }
        let used = self.control.nr_devices.load(Relaxed) as usize;
        let (known, other) = (
            self.control.devices.iter().take(used),
            self.control.devices.get(OTHER_DEVICE),
        );
        known
            .chain(other)
            .map(|device| &device.gate)
            .filter(|gate| gate.load(Relaxed) != Gate::Frozen as u32)
            .for_each(wake_all);
    }
}
