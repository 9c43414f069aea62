//! Donors: processes that can move memory out, the bytes each can move, and the bytes it has delivered.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gcgroup_abi::NO_LIMIT;

use super::{DELIVERY, Need, Sight};
use crate::tree::protection::{Protected, Source, choose};
use crate::tree::{Host, Notice, Process, ProcessId, State, enforce};

/// Time for which a donor that did not deliver is not asked, unless it delivers after all.
const REST: Duration = Duration::from_secs(30);

/// A donor must deliver more than this part of its bytes within [`DELIVERY`].
const STEP: u64 = 8;

/// A process that can move memory out.
struct Candidate {
    id: ProcessId,
    priority: u32,
    /// Bytes charged on the device.
    held: u64,
    /// Bytes that it can move out, or not bring in.
    bytes: u64,
}

impl Candidate {
    /// Returns `None` for a process that has no bytes to move out. `allowed`: the bytes that its groups let
    /// it swap out.
    fn of(process: &Process, allowed: u64, sight: &Sight, host: &Host) -> Option<Self> {
        if !process.can_swap() {
            return None;
        }
        let (usage, control, device) = (process.usage(), process.control(), sight.device);
        let charged = usage.charged(device, u64::MAX);
        let held = sight.held_by(process).unwrap_or(charged);
        let prepared = usage.prepared(device);
        let (on_device, device) = (usage.device(device)?, control.devices.get(device)?);
        let left = |limit: u64, used: u64| match limit {
            NO_LIMIT => NO_LIMIT,
            limit => limit.saturating_sub(used),
        };
        let bytes = on_device
            .swappable(charged)
            .saturating_add(prepared)
            .min(held)
            .min(left(
                device.memory_swap_max.load(Relaxed),
                on_device.swapped(host.memory),
            ))
            .min(left(
                control.memory_swap_max.load(Relaxed),
                usage.swapped_in_all(host.memory),
            ))
            .min(allowed);
        (bytes != 0).then(|| Self {
            id: process.id,
            priority: device.priority.load(Relaxed),
            held: charged.max(bytes),
            bytes,
        })
    }

    /// Returns it as a source with what is protected of it.
    fn source(&self, device: usize, protected: Protected) -> Source {
        Source {
            id: self.id,
            device,
            priority: self.priority,
            held: self.held,
            movable: self.bytes,
            protected,
        }
    }
}

impl State {
    /// Returns the processes of less priority that are to move memory out, in the order of [`choose`], and
    /// how many bytes; none if they have less than is wanted together, beyond what `memory.min` protects.
    /// `with_idle`: also those that did not deliver.
    pub(super) fn choose_donors(
        &self,
        need: &Need<'_>,
        sight: &Sight,
        with_idle: bool,
    ) -> Vec<(Source, u64)> {
        let Need {
            requester,
            wanted,
            factor,
            but,
        } = *need;
        let device = sight.device;
        let Some((priority, is_fixed)) = self.processes.get(&requester).and_then(|process| {
            let control = process.control().devices.get(device)?;
            Some((control.priority.load(Relaxed), process.usage().asks_for_fixed()))
        }) else {
            return Vec::new();
        };
        let is_asked = |id: ProcessId| id == requester && !is_fixed || but.contains(&id);
        let is_idle = |id: ProcessId| !with_idle && self.pressure.idle.contains_key(&(id, device));
        let candidates: Vec<_> = self
            .processes
            .values()
            .filter(|process| !is_asked(process.id) && !is_idle(process.id) && process.is_hook_ok())
            .filter_map(|process| {
                Candidate::of(
                    process,
                    self.swap_left(process, device),
                    sight,
                    &self.devices.host,
                )
            })
            .filter(|candidate| candidate.priority > priority || is_fixed && candidate.priority == priority)
            .collect();
        // Most requests on a machine without `--swap` end here, before protection is divided.
        if candidates.is_empty() {
            return Vec::new();
        }
        let protected = self.protected(None, device);
        let sources: Vec<_> = candidates
            .iter()
            .map(|one| one.source(device, protected.get(&one.id).copied().unwrap_or_default()))
            .collect();
        let chosen = choose(&sources, wanted.saturating_mul(factor));
        let all = chosen
            .iter()
            .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        if all >= wanted { chosen } else { Vec::new() }
    }

    /// Asks each of these processes to move so many bytes out.
    pub(super) fn ask(
        &mut self,
        chosen: Vec<(Source, u64)>,
        sight: &Sight,
        notices: &mut Vec<Notice>,
    ) -> Vec<Asked> {
        let device = sight.device;
        let mut asked = Vec::new();
        for (one, bytes) in chosen {
            let grace = self.processes.get(&one.id).map(|process| self.grace_of(process));
            let (Some(grace), Some(process)) = (grace, self.processes.get_mut(&one.id)) else {
                break;
            };
            if let Some(generation) = enforce::reclaim(process, device, bytes, true) {
                asked.push(Asked::new(process, (generation, bytes), sight, grace));
            }
            if let Some(kept) = process.kept_mut(Some(device)) {
                kept.nr_reclaim += 1;
            }
            self.note_events(one.id, notices);
            notices.push(Notice::Ring(one.id));
        }
        asked
    }
}

/// A donor that was asked.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) id: ProcessId,
    generation: u32,
    bytes: u64,
    /// Bytes held at that time, if NVML reports them.
    held: Option<u64>,
    pub(super) delivered: u64,
    /// Set when the donor says that it has finished; `has_answered`: when it said so before NVML was asked.
    says_so: bool,
    has_answered: bool,
    /// Time of the last delivery of a [`STEP`]th, or at which the donor begins to move, and what was
    /// delivered by then.
    last: (Instant, u64),
}

impl Asked {
    /// `grace`: the time that the donor has before it moves anything.
    pub(super) fn new(
        process: &Process,
        (generation, bytes): (u32, u64),
        sight: &Sight,
        grace: Duration,
    ) -> Self {
        Self {
            id: process.id,
            generation,
            bytes,
            held: sight.held_by(process),
            delivered: 0,
            says_so: false,
            has_answered: false,
            last: (sight.at + grace, 0),
        }
    }

    /// Updates what the donor has delivered. A process that has left has delivered everything.
    pub(super) fn look(&mut self, process: Option<&Process>, sight: &Sight) {
        let usage = process.and_then(|process| Some((process, process.usage().device(sight.device)?)));
        let Some((process, usage)) = usage else {
            (self.delivered, self.has_answered) = (self.bytes, true);
            return;
        };
        let seen = self.held.zip(sight.held_by(process));
        let says_so = reaches(usage.reclaim_generation(), self.generation);
        let said_so = std::mem::replace(&mut self.says_so, says_so);
        self.has_answered = says_so && (said_so || seen.is_none());
        let delivered = match seen {
            Some((before, held)) => before.saturating_sub(held),
            None if self.has_answered => self.bytes,
            None => 0,
        };
        self.delivered = self.delivered.max(delivered);
        if self.delivered > self.last.1.saturating_add(self.bytes / STEP) {
            self.last = (sight.at, self.delivered);
        }
    }

    /// Returns whether the donor will deliver nothing more.
    pub(super) fn is_done(&self) -> bool {
        self.has_answered || self.delivered >= self.bytes
    }

    /// Returns whether the donor fails to deliver: it says that it has finished and has not, or delivers
    /// less than a [`STEP`]th within [`DELIVERY`].
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        if self.is_done() {
            return self.delivered < self.bytes / 2;
        }
        now.saturating_duration_since(self.last.0) >= DELIVERY
    }

    pub(super) fn idle(&self, now: Instant) -> Idle {
        Idle {
            generation: self.generation,
            least: self.held.map(|held| held.saturating_sub(self.bytes / 2)),
            until: now + REST,
        }
    }
}

/// A donor that did not deliver.
#[derive(Debug)]
pub(super) struct Idle {
    generation: u32,
    /// The donor has delivered once it holds no more than these bytes.
    least: Option<u64>,
    until: Instant,
}

impl Idle {
    pub(super) fn is_still(&self, process: &Process, sight: &Sight) -> bool {
        let has_delivered = match self.least.zip(sight.held_by(process)) {
            Some((least, held)) => held <= least,
            None => {
                let usage = process.usage().device(sight.device);
                usage.is_none_or(|usage| reaches(usage.reclaim_generation(), self.generation))
            }
        };
        sight.at < self.until && !has_delivered
    }
}

/// Returns whether a generation is not behind another; both wrap.
fn reaches(dealt_with: u32, generation: u32) -> bool {
    dealt_with.wrapping_sub(generation) < 1 << 31
}
