//! Sizes of contexts, published as the estimate for the next contexts of the user, and requests of processes
//! to measure a new context.
//!
//! A size is used for the processes of one user only, because a process can choose what its contexts take.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{CONTEXT_CHANGED, CONTEXT_UNKNOWN, ContextKind};

use super::claims::device_total;
use super::process::Process;
use super::{Blocks, GroupId, MEMORY_LIMIT, Notice, ProcessId, State, Tree, enforce, usage};

/// A process's request to measure a new context.
#[derive(Debug, Clone)]
pub struct ContextRequest {
    pub id: ProcessId,
    pub pid: u32,
    pub blocks: Arc<dyn Blocks>,
    pub device: usize,
    number: u32,
    /// `None`: several kinds at once.
    kind: Option<ContextKind>,
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// Bytes, perhaps negative, that contexts take beyond what is charged for them.
    Missing(i64),
    /// The process changed its ledger meanwhile.
    Changed,
    /// The device does not tell.
    Unknown,
}

impl Tree {
    /// Tells the processes that join from now on that new contexts are measured on request.
    pub fn measure_contexts(&self) {
        self.state.lock().contexts.are_measured = true;
    }

    /// Returns all unanswered requests to measure a new context.
    pub fn context_requests(&self) -> Vec<ContextRequest> {
        let state = self.state.lock();
        let processes = state.processes.values();
        let requests = processes.flat_map(|process| {
            (0..state.devices.len()).filter_map(|device| ContextRequest::of(process, device))
        });
        requests.collect()
    }

    /// Answers a request. A measured size is the estimate for the next contexts of the user.
    pub fn answer_context(&self, request: &ContextRequest, measured: Measured) {
        let &ContextRequest {
            id, device, number, ..
        } = request;
        let mut state = self.state.lock();
        let Some(process) = state.processes.get(&id) else {
            return;
        };
        let missing = match measured {
            Measured::Missing(missing) => missing.cast_unsigned(),
            Measured::Changed => CONTEXT_CHANGED,
            Measured::Unknown => CONTEXT_UNKNOWN,
        };
        enforce::answer_context(process, device, number, missing);
        if let (Measured::Missing(missing), Some(kind)) = (measured, request.kind) {
            let total = device_total(device, &state.devices);
            let usage = process.usage().device(device);
            let estimated = usage.map_or(0, |usage| usage.context_estimated(total));
            let size = estimated.saturating_add_signed(missing).min(total);
            state.set_size(id, device, kind, size);
        }
        drop(state);
        self.tell(&[Notice::Answered { id, device }]);
    }
}

impl ContextRequest {
    fn of(process: &Process, device: usize) -> Option<Self> {
        let (number, kind, _) = process.usage().device(device)?.context_request();
        let answered = process
            .control()
            .devices
            .get(device)?
            .context_answer
            .load(Relaxed);
        (number != answered).then(|| Self {
            id: process.id,
            pid: process.identity.pid,
            blocks: process.blocks.clone(),
            device,
            number,
            kind,
        })
    }
}

impl State {
    /// Notes new requests of a process. A size for which a context was refused is forgotten: it may be wrong,
    /// and the next context is made and measured.
    pub(super) fn note_contexts(&mut self, id: ProcessId, notices: &mut Vec<Notice>) {
        for device in 0..self.devices.len() {
            let Some(process) = self.processes.get(&id) else {
                return;
            };
            let Some(request) = ContextRequest::of(process, device) else {
                continue;
            };
            let usage = process.usage().device(device);
            if !usage.is_some_and(|usage| usage.context_request().2) {
                notices.push(Notice::ContextMade);
                continue;
            }
            enforce::answer_context(process, device, request.number, CONTEXT_UNKNOWN);
            let kinds = request.kind.map_or(ContextKind::ALL.to_vec(), |kind| vec![kind]);
            for kind in kinds {
                self.set_size(id, device, kind, 0);
            }
        }
    }

    /// Fills what concerns contexts in the block of a process that is not published yet.
    pub(super) fn prepare_contexts(&self, process: &Process) {
        enforce::measures_contexts(process, self.contexts.are_measured);
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
        let group = self.processes.get(&id).and_then(|process| process.group);
        let groups = self.chain(group);
        let excess = |state: &Self| -> Vec<(GroupId, Option<usize>)> {
            let places = groups.iter().flat_map(|id| [(*id, None), (*id, Some(device))]);
            let exceeds = |(id, place): &(GroupId, Option<usize>)| state.grants.excess(*id, *place) > 0;
            places.filter(exceeds).collect()
        };
        let before = excess(self);
        let Self {
            processes, devices, ..
        } = self;
        let Some(process) = processes.get_mut(&id) else {
            return;
        };
        // The shown peak is the ledger's peak plus the present overhead; it must not fall below what it
        // was with the earlier overhead.
        process.keep_peaks(device, devices);
        let uuid = devices.get(device).map(|device| device.uuid_text.as_str());
        let places = [(None, None), (Some(device), uuid)];
        let exceeds = |process: &Process, (place, uuid): (Option<usize>, Option<&str>)| {
            let limit = process.settings.get(MEMORY_LIMIT, uuid).number();
            usage::current(process, place, devices) > limit
        };
        let exceeded = places.map(|place| exceeds(process, place));
        enforce::store_overhead(process, device, bytes);
        for (place, exceeded) in places.into_iter().zip(exceeded) {
            if !exceeded && exceeds(process, place) {
                if let Some(kept) = process.kept_mut(place.0) {
                    kept.nr_over_limit += 1;
                }
                notices.push(Notice::SettingsChanged(id));
            }
        }
        self.grants.set_overhead(id, device, bytes);
        for (group, place) in excess(self).into_iter().filter(|place| !before.contains(place)) {
            self.count_in_group(group, place, |sums| sums.nr_over_limit += 1, notices);
            notices.push(Notice::GroupChanged(group));
        }
        self.observe(id);
        self.note_events(id, notices);
    }
}
