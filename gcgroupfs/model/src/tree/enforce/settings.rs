//! Settings in force, each published as its row in the table of settings says.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{ControlDevice, Gate, NO_LIMIT};

use crate::tree::Device;
use crate::tree::process::{Process, is_closed, slots};
use crate::tree::settings::{MEMORY_LIMIT, MEMORY_SWAP_MAX, Publish, SETTINGS, Setting};

/// Slot of a control block, and its device; none of [`OTHER_DEVICE`].
#[derive(Debug, Clone, Copy)]
struct Slot<'a> {
    index: usize,
    device: Option<&'a Device>,
}

impl<'a> Slot<'a> {
    /// Returns the device's index and UUID.
    fn names(self) -> (Option<usize>, Option<&'a str>) {
        let device = self.device;
        (
            device.map(|_| self.index),
            device.map(|device| device.uuid_text.as_str()),
        )
    }

    fn of(self, process: &Process) -> Option<&ControlDevice> {
        process.control().devices.get(self.index)
    }
}

/// Puts the process's settings in force. Returns whether a gate has closed or opened, or memory may have to
/// move.
pub(in crate::tree) fn settings(process: &Process, devices: &[Device]) -> bool {
    let mut changed = false;
    for of in SETTINGS {
        changed |= setting(process, of, devices);
    }
    changed
}

/// Puts one setting of the process in force. Returns as [`settings`] does.
pub(in crate::tree) fn setting(process: &Process, setting: &Setting, devices: &[Device]) -> bool {
    let publish = match setting.publish {
        None => return false,
        Some(Publish::Freeze) => freeze,
        Some(Publish::Limit) => memory_limit,
        Some(Publish::Priority) => priority,
        Some(Publish::SwapMax) => memory_swap_max,
        Some(Publish::Visible) => memory_visible,
        #[cfg(any(test, feature = "fixture"))]
        Some(Publish::Sample) => sample,
    };
    let mut changed = publish(process, None);
    for index in slots(devices.len()) {
        let device = devices.get(index);
        changed |= publish(process, Some(Slot { index, device }));
    }
    changed
}

/// Publishes `memory.limit`.
fn memory_limit(process: &Process, slot: Option<Slot<'_>>) -> bool {
    let bytes = |uuid| process.settings.get(MEMORY_LIMIT, uuid).number();
    let (word, bytes) = match slot {
        None => (&process.control().memory_limit, bytes(None)),
        Some(slot) => {
            let Some(control) = slot.of(process) else {
                return false;
            };
            let (_, uuid) = slot.names();
            (
                &control.memory_limit,
                uuid.map_or(NO_LIMIT, |uuid| bytes(Some(uuid))),
            )
        }
    };
    // Swap moves memory for it, and pools release what they do not use.
    word.swap(bytes, Relaxed) != bytes
}

/// Publishes `memory.swap.max`.
fn memory_swap_max(process: &Process, slot: Option<Slot<'_>>) -> bool {
    let Some(slot) = slot else {
        let own = process.settings.get(MEMORY_SWAP_MAX, None).number();
        process.control().enables_swap.store(u64::from(own != 0), Relaxed);
        let before = process.control().memory_swap_max.swap(own, Relaxed);
        return before != own && process.can_swap();
    };
    if let Some(control) = slot.of(process) {
        let (_, uuid) = slot.names();
        let bytes = uuid.map_or(NO_LIMIT, |_| process.settings.get(MEMORY_SWAP_MAX, uuid).number());
        control.memory_swap_max.store(bytes, Relaxed);
    }
    false
}

/// Publishes `memory.visible`.
fn memory_visible(process: &Process, slot: Option<Slot<'_>>) -> bool {
    if let Some((slot, control)) = slot.and_then(|slot| Some((slot, slot.of(process)?))) {
        let (index, uuid) = slot.names();
        let visible = process.visible(index, uuid).number();
        control.memory_visible.store(visible, Relaxed);
    }
    false
}

/// Publishes `compute.priority`.
fn priority(process: &Process, slot: Option<Slot<'_>>) -> bool {
    if let Some((slot, control)) = slot.and_then(|slot| Some((slot, slot.of(process)?))) {
        let (index, uuid) = slot.names();
        control.priority.store(process.priority(index, uuid), Relaxed);
    }
    false
}

/// Publishes `compute.freeze`.
fn freeze(process: &Process, slot: Option<Slot<'_>>) -> bool {
    let Some((slot, control)) = slot.and_then(|slot| Some((slot, slot.of(process)?))) else {
        return false;
    };
    let (index, uuid) = slot.names();
    gate(control, process.freeze(index, uuid), process.gate(slot.index))
}

/// Sets one gate.
fn gate(control: &ControlDevice, freeze: bool, open: Gate) -> bool {
    if is_closed(control) == freeze {
        return false;
    }
    let gate = if freeze { Gate::Frozen } else { open };
    control.change_freeze(gate);
    true
}

/// Publishes `compute.sample`, in a word that nothing uses in the tests that set it.
#[cfg(any(test, feature = "fixture"))]
fn sample(process: &Process, slot: Option<Slot<'_>>) -> bool {
    let sample = process.settings.own(crate::tree::SAMPLE, None);
    if let (None, Some(sample)) = (slot, sample) {
        process.control().host_answer.store(sample.priority(), Relaxed);
    }
    false
}
