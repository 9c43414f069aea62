//! Notes and shows which processes wait for which others.

use std::cmp::Reverse;

use super::waits::{Awaited, Wait, WaitsFor};
use super::{Process, ProcessId, State};

impl State {
    /// Returns for which processes one waits or has waited, on each device the one of now first, then those
    /// that it has waited for longest.
    pub(super) fn waits_of<'a>(&'a self, process: &'a Process) -> Vec<Wait<'a>> {
        let mut all = Vec::new();
        for (device, kept) in process.devices.iter().enumerate() {
            let now = &kept.waits.now;
            let is_now = |one: &Awaited| now.iter().any(|(id, what, _)| (*id, *what) == (one.id, one.what));
            let waits = kept.waits.each.iter().map(|one| {
                let uuid = self.devices.get(device).map(|device| device.uuid_text.as_str());
                let alive = self.processes.get(&one.id);
                Wait {
                    device,
                    what: one.what,
                    pid: one.pid,
                    comm: &one.comm,
                    priority: alive.map(|process| process.priority(Some(device), uuid)),
                    usec: one.nsec / 1000,
                    is_now: is_now(one),
                }
            });
            let start = all.len();
            all.extend(waits);
            all[start..].sort_by_key(|wait| Reverse((wait.is_now, wait.usec)));
        }
        all
    }

    /// Records for which process's turn another one waits on a device from `now` on (nanoseconds).
    pub(super) fn note_wait(
        &mut self,
        place: (ProcessId, usize),
        next: Option<(ProcessId, WaitsFor)>,
        now: u64,
    ) {
        self.go_on_waiting(place, false, next, now);
    }

    /// Records which process has the memory that another one waits for on a device.
    pub(super) fn note_wait_for_room(&mut self, place: (ProcessId, usize), next: Option<ProcessId>) {
        let now = (self.devices.host.now)();
        self.go_on_waiting(place, true, next.map(|id| (id, WaitsFor::Room)), now);
    }

    fn go_on_waiting(
        &mut self,
        (id, device): (ProcessId, usize),
        is_for_room: bool,
        next: Option<(ProcessId, WaitsFor)>,
        now: u64,
    ) {
        let next = next.and_then(|(awaited, what)| {
            let identity = &self.processes.get(&awaited)?.identity;
            Some(Awaited {
                id: awaited,
                what,
                pid: identity.pid,
                comm: identity.comm.clone(),
                nsec: 0,
            })
        });
        let process = self.processes.get_mut(&id);
        if let Some(kept) = process.and_then(|process| process.kept_mut(Some(device))) {
            kept.waits.go_on(now, is_for_room, next);
        }
    }
}
