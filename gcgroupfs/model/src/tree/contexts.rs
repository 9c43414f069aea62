//! Sizes of contexts: what they are expected to take, and what the daemon has measured.
//!
//! A size is used for the processes of one user only, because a process can choose what its contexts take.

use std::sync::Arc;
use std::time::Duration;

use gcgroup_abi::ContextKind;

use super::claims::device_total;
use super::process::Process;
use super::{Blocks, GroupId, MEMORY_LIMIT, Notice, ProcessId, State, Tree, enforce, usage};

/// Time for which a request to measure contexts is tried at short intervals; afterwards they are measured
/// with everything else.
const HURRY: Duration = Duration::from_millis(100);
/// Longest delay of a refusal in a group that is charged for all that ended processes had shared.
const MOST_DELAY: Duration = Duration::from_secs(2);

/// A process with contexts that are to be measured on a device: the device, and the process with its pid and
/// blocks.
pub type Awaited = (usize, (ProcessId, u32, Arc<dyn Blocks>));

/// A measurement of contexts.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Number of the request that it answers.
    pub request: u32,
    /// Bytes, perhaps negative, that contexts take beyond what is charged for them.
    pub missing: i64,
    /// Whether the driver told what the process holds, rather than all processes together.
    pub is_exact: bool,
}

impl Tree {
    /// Sets the bytes that a context is expected to take where its user has had none of that kind.
    pub fn set_default_context(&self, bytes: u64) {
        self.state.lock().contexts.default = bytes;
    }

    /// Returns the contexts that are to be measured at once.
    pub fn awaited_sizes(&self) -> Vec<Awaited> {
        let mut state = self.state.lock();
        let now = (state.devices.host.uptime)();
        let nr_devices = state.devices.len();
        let mut awaited = Vec::new();
        for process in state.processes.values_mut() {
            for device in 0..nr_devices {
                let number = process.size_request(device);
                let Some((number, kept)) = number.zip(process.devices.get_mut(device)) else {
                    continue;
                };
                if is_recent(&mut kept.size_asked, number, now, HURRY) {
                    let one = (process.id, process.identity.pid, process.blocks.clone());
                    awaited.push((device, one));
                }
            }
        }
        awaited
    }

    /// Tells a process what its contexts take beyond their charge, which it corrects. An exact size is the
    /// estimate for the next contexts of the user.
    pub fn answer_context(&self, id: ProcessId, device: usize, measured: Measured) {
        self.update(|state, notices| {
            let Some(process) = state.processes.get(&id) else {
                return;
            };
            let Measured {
                request,
                missing,
                is_exact,
            } = measured;
            let total = device_total(device, &state.devices);
            let of = process.usage().device(device);
            let asked = of.map(|of| (of.context_request(), of.context_estimated(total)));
            let overhead = usage::overhead(process, device, &state.devices);
            if let Ok(more) = u64::try_from(missing) {
                state.count_excess(id, device, [overhead, overhead.saturating_add(more)], notices);
                // The process charges it.
                state.grants.set_overhead(id, device, overhead);
            }
            if let Some(process) = state.processes.get(&id) {
                enforce::answer_context(process, device, request, missing.cast_unsigned());
            }
            if let Some(((number, Some(kind)), estimated)) = asked
                && is_exact
                && number == request
            {
                let size = estimated.saturating_add_signed(missing).min(total);
                state.set_size(id, device, kind, size);
            }
            notices.extend([Notice::Answered { id, device }, Notice::Ring(id)]);
        });
    }
}

impl Process {
    /// Returns the number of its request to measure contexts on a device, if that has no answer.
    fn size_request(&self, device: usize) -> Option<u32> {
        let (number, _) = self.usage().device(device)?.context_request();
        (number != enforce::context_answer(self, device)?).then_some(number)
    }
}

/// Returns whether a request is less than `most` old; `seen` is the last one that was seen, and when.
fn is_recent(seen: &mut (u32, Duration), number: u32, now: Duration, most: Duration) -> bool {
    if seen.0 != number {
        *seen = (number, now);
    }
    now.saturating_sub(seen.1) < most
}

impl State {
    /// Returns whether the refusal of a request, by its device and number, is to wait until what the group is
    /// charged too much, perhaps, is measured: contexts, and what ended processes have shared.
    pub(super) fn is_estimate_awaited(
        &mut self,
        id: ProcessId,
        (device, number): (usize, u32),
        group: GroupId,
    ) -> bool {
        let now = (self.devices.host.uptime)();
        let awaits = |process: &Process| {
            let request = process.size_request(device);
            let seen = process.devices.get(device).map(|kept| kept.size_asked);
            let (Some(request), Some(mut seen)) = (request, seen) else {
                return false;
            };
            is_recent(&mut seen, request, now, HURRY)
        };
        let is_in_group = |id: GroupId| self.chain(Some(id)).contains(&group);
        let has_new_context = self.within(group).into_iter().any(awaits);
        let kept = self
            .processes
            .get(&id)
            .and_then(|process| process.devices.get(device));
        let Some(mut delayed) = kept.map(|kept| kept.refusal_delayed) else {
            return false;
        };
        is_recent(&mut delayed, number, now, HURRY);
        let most = match self.orphaned.is_look_awaited(delayed.1, is_in_group) {
            true => MOST_DELAY,
            false if has_new_context => HURRY,
            false => Duration::ZERO,
        };
        let process = self.processes.get_mut(&id);
        if let Some(kept) = process.and_then(|process| process.devices.get_mut(device)) {
            kept.refusal_delayed = delayed;
        }
        is_recent(&mut delayed, number, now, most)
    }

    /// Notes new requests of a process.
    pub(super) fn note_contexts(&self, id: ProcessId, notices: &mut Vec<Notice>) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        if (0..self.devices.len()).any(|device| process.size_request(device).is_some()) {
            notices.push(Notice::ContextMade);
        }
    }

    /// Fills what concerns contexts in the block of a process that is not published yet.
    pub(super) fn prepare_contexts(&self, process: &Process) {
        for (slot, device) in self.devices.iter().enumerate() {
            let sizes = self.contexts.of(process.identity.uid, &device.uuid_text);
            enforce::estimate_contexts(process, slot, sizes);
        }
    }

    /// Sets the size of the last context of a process's user.
    fn set_size(&mut self, id: ProcessId, device: usize, kind: ContextKind, bytes: u64) {
        let (Some(process), Some(of)) = (self.processes.get(&id), self.devices.get(device)) else {
            return;
        };
        let uid = process.identity.uid;
        if !self.contexts.set(uid, &of.uuid_text, kind, bytes) {
            return;
        }
        let sizes = self.contexts.of(uid, &of.uuid_text);
        let processes = self.processes.values();
        for process in processes.filter(|process| process.identity.uid == uid) {
            enforce::estimate_contexts(process, device, sizes);
        }
    }

    /// Stores the bytes that a process holds beyond its ledger. Counts an excess over a limit that this
    /// causes.
    pub(super) fn grow_overhead(
        &mut self,
        id: ProcessId,
        device: usize,
        bytes: u64,
        notices: &mut Vec<Notice>,
    ) {
        let Self {
            processes, devices, ..
        } = self;
        let Some(process) = processes.get_mut(&id) else {
            return;
        };
        // The shown peak is the ledger's peak plus the present overhead; it must not fall below what it
        // was with the earlier overhead.
        process.keep_peaks(device, devices);
        let before = usage::overhead(process, device, devices);
        self.count_excess(id, device, [before, bytes], notices);
        if let Some(process) = self.processes.get(&id) {
            enforce::store_overhead(process, device, bytes);
        }
        self.observe(id);
        self.note_events(id, notices);
    }

    /// Charges the groups above for a process's bytes beyond its ledger, and counts the limits that are
    /// exceeded because of them.
    fn count_excess(
        &mut self,
        id: ProcessId,
        device: usize,
        [before, bytes]: [u64; 2],
        notices: &mut Vec<Notice>,
    ) {
        let Self {
            processes, devices, ..
        } = self;
        let Some(process) = processes.get_mut(&id) else {
            return;
        };
        let uuid = devices.get(device).map(|device| device.uuid_text.as_str());
        for (place, uuid) in [(None, None), (Some(device), uuid)] {
            let limit = process.settings.get(MEMORY_LIMIT, uuid).number();
            let current = usage::current(process, place, devices);
            let exceeds = current.saturating_add(bytes.saturating_sub(before)) > limit;
            if exceeds && current <= limit {
                if let Some(kept) = process.kept_mut(place) {
                    kept.nr_over_limit += 1;
                }
                notices.push(Notice::SettingsChanged(id));
            }
        }
        let groups = self.chain(self.processes.get(&id).and_then(|process| process.group));
        let excess = |state: &Self| -> Vec<(GroupId, Option<usize>)> {
            let places = groups.iter().flat_map(|id| [(*id, None), (*id, Some(device))]);
            let exceeds = |(id, place): &(GroupId, Option<usize>)| state.grants.excess(*id, *place) > 0;
            places.filter(exceeds).collect()
        };
        let exceeded = excess(self);
        self.grants.set_overhead(id, device, bytes);
        for (group, place) in excess(self).into_iter().filter(|place| !exceeded.contains(place)) {
            self.count_in_group(group, place, |sums| sums.nr_over_limit += 1, notices);
            notices.extend(self.counts_changed(group));
        }
    }
}
