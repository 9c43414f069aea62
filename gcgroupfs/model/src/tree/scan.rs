//! Interface of the scan of the devices: what it compares, and what it has found.

use std::sync::Arc;

use super::{Blocks, Evidence, Notice, OnUnmanaged, Process, ProcessId, Tree, Unmanaged};

impl Tree {
    /// Stores the number of bytes that the process holds on a device beyond its own ledger, according to the
    /// driver. Counts an excess over a limit that this causes.
    pub fn set_overhead(&self, id: ProcessId, device: usize, bytes: u64) {
        self.update(|state, notices| {
            let is_suspended = |process: &Process| process.suspension.is_locked;
            let process = state.processes.get(&id);
            // Of a suspended process, NVML shows nothing.
            if device < state.devices.len() && !process.is_some_and(|process| is_suspended(process)) {
                state.grow_overhead(id, device, bytes, notices);
            }
        });
    }

    /// Notes whether these bytes are estimated, because the driver does not tell what the process holds.
    pub fn set_overhead_estimated(&self, id: ProcessId, device: usize, is_estimated: bool) {
        if let Some(process) = self.state.lock().processes.get_mut(&id)
            && let Some(kept) = process.devices.get_mut(device)
        {
            kept.is_overhead_estimated = is_estimated;
        }
    }

    /// Returns whether there is evidence that the process uses a device as it claims; `Unknown` if it has
    /// left.
    pub fn evidence(&self, id: ProcessId, device: usize) -> Evidence {
        let state = self.state.lock();
        let process = state.processes.get(&id);
        let kept = process.and_then(|process| process.devices.get(device));
        kept.map_or(Evidence::Unknown, |kept| kept.evidence)
    }

    /// Returns the time for which a device was kept free for a process, nanoseconds; 0 if it has left.
    pub fn held_nsec(&self, id: ProcessId, device: usize) -> u64 {
        let state = self.state.lock();
        let process = state.processes.get(&id);
        let kept = process.and_then(|process| process.devices.get(device));
        kept.map_or(0, |kept| kept.held.nsec())
    }

    /// Stores whether there is evidence that the process uses a device as it claims.
    pub fn set_evidence(&self, id: ProcessId, device: usize, evidence: Evidence) {
        let mut state = self.state.lock();
        let process = state.processes.get_mut(&id);
        let before = process
            .and_then(|process| process.kept_mut(Some(device)))
            .map(|kept| std::mem::replace(&mut kept.evidence, evidence));
        drop(state);
        let before = before.unwrap_or(evidence);
        if (before == Evidence::Refuted) != (evidence == Evidence::Refuted) {
            // Other processes may proceed, or have to wait.
            self.tell(&[Notice::Rung(id)]);
        }
    }

    /// Stores how many bytes NVML shows each of these processes to hold on a device, contexts included.
    pub fn show_held(&self, device: usize, held: &[(ProcessId, u64)]) {
        // In parts, so that other threads get the lock in between.
        for some in held.chunks(64) {
            let mut state = self.state.lock();
            for (id, bytes) in some {
                let process = state.processes.get(id);
                if process.is_some_and(|process| !process.suspension.is_locked) {
                    state.grants.show(*id, device, *bytes);
                }
            }
        }
    }

    /// Returns the pid and the blocks of each process that is not suspended, for comparison with the driver's
    /// data.
    pub fn ledgers(&self) -> Vec<(ProcessId, u32, Arc<dyn Blocks>)> {
        let state = self.state.lock();
        let ledger = |(pid, id): (&u32, &ProcessId)| {
            let process = state.processes.get(id)?;
            (!process.suspension.is_locked).then(|| (*id, *pid, process.blocks.clone()))
        };
        state.pids.iter().filter_map(ledger).collect()
    }

    /// Returns the number of requests for a scan for GPU processes without a hook.
    pub fn nr_audits_asked(&self) -> u64 {
        self.state.lock().audit.nr_asked()
    }

    /// Stores the result of a scan, which answers the first `asked` requests.
    pub fn set_unmanaged(&self, found: Vec<Unmanaged>, asked: u64) {
        let has_changed = self.state.lock().audit.answer(found, asked);
        if has_changed {
            self.tell(&[Notice::RootEvents]);
        }
    }

    /// Sets what is done about processes that use a device without a hook.
    pub fn set_on_unmanaged(&self, action: OnUnmanaged) {
        self.state.lock().audit.on_unmanaged = action;
    }

    pub fn on_unmanaged(&self) -> OnUnmanaged {
        self.state.lock().audit.on_unmanaged
    }
}
