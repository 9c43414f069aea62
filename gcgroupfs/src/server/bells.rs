//! Telling processes that their control block has something for them: by a packet to the hook's helper
//! thread, and by waking the threads that wait at gates.
//!
//! Called on whatever thread has changed something, and never waits: a process that does not read its packets
//! has one waiting already.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::message::{Tag, bare};
use gcgroup_abi::{Control, Gate, OTHER_DEVICE, Usage};
use nix::sys::socket::{MsgFlags, send};
use parking_lot::RwLock;

use crate::sys::{ControlMap, UsageMap, wake_all};
use crate::tree::{Blocks, Listener, Notice, ProcessId};

/// A process's blocks, mapped.
#[derive(Debug)]
pub struct Mapped {
    pub control: ControlMap,
    pub usage: UsageMap,
}

impl Blocks for Mapped {
    fn control(&self) -> &Control {
        &self.control
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// Everybody who can be rung.
#[derive(Debug, Default)]
pub struct Bells {
    bells: RwLock<HashMap<ProcessId, Bell>>,
}

#[derive(Debug)]
struct Bell {
    blocks: Arc<Mapped>,
    /// None while the hook's connection is lost.
    socket: Option<Arc<OwnedFd>>,
}

impl Bells {
    /// Makes a process known.
    pub fn hang(&self, id: ProcessId, blocks: Arc<Mapped>, socket: Arc<OwnedFd>) {
        self.bells.write().insert(
            id,
            Bell {
                blocks,
                socket: Some(socket),
            },
        );
    }

    /// Forgets a process's connection, for the caller to close, but still wakes its waiters.
    pub fn mute(&self, id: ProcessId) {
        if let Some(bell) = self.bells.write().get_mut(&id) {
            bell.socket = None;
        }
    }

    /// Forgets a process.
    pub fn remove(&self, id: ProcessId) {
        self.bells.write().remove(&id);
    }

    /// Wakes who waits for an answer about a device.
    fn wake(&self, id: ProcessId, device: usize) {
        let bells = self.bells.read();
        let control = bells.get(&id).map(|bell| bell.blocks.control());
        if let Some(control) = control.and_then(|control| control.devices.get(device)) {
            wake_all(&control.grant_answer);
        }
    }

    fn ring(&self, id: ProcessId) {
        // Nobody waits for this lock for longer than it takes to change the map: the send does not wait.
        let bells = self.bells.read();
        let Some(bell) = bells.get(&id) else { return };
        bell.blocks.wake();
        if let Some(socket) = &bell.socket {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            // EAGAIN: it has been rung before and not looked. Anything else: the event loop hears of it too.
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
    /// Wakes the threads that wait at gates that do not hold any more, and those that asked for room.
    fn wake(&self) {
        let asking = self.control.devices.iter().zip(&self.usage.devices);
        asking
            .filter(|(_, usage)| usage.pressure_wanted.load(Relaxed) != 0)
            .for_each(|(control, _)| wake_all(&control.pressure_answer));
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
