//! Samples of all processes: what each holds beyond its ledger, and what it claims without evidence.

mod contexts;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::estimate::{Idle, Shown};
use super::evidence::{Driver, UseClaim, UseRecords};
use super::memory_claims::{MemoryClaim, Unconfirmed};
use super::unowned::Unowned;
use super::{AUDIT_PERIOD, Governed, Held, PAUSE, PERIOD, Source};
use crate::audit::Audit;
use gcgroup_abi::OTHER_DEVICE;
use gcgroupfs_model::tree::{Blocks, EndedOwner, Evidence, Ledger, OnUnmanaged, ProcessId, Tree};

#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Bytes beyond the ledger in the last sample, by process and device.
    pub(super) last: HashMap<(ProcessId, usize), u64>,
    /// When a process was last told what its contexts take.
    answered: HashMap<(ProcessId, usize), Instant>,
    uses: UseRecords,
    unconfirmed: Unconfirmed,
    unowned: Unowned,
    idle: Idle,
    /// Last estimate of a process's bytes beyond its allocations, by device.
    shares: HashMap<usize, u64>,
    /// Processes that have been compared with every device at least once.
    known: HashSet<ProcessId>,
    /// Processes and devices that had to do with each other at the last look, so that the next one sees the
    /// end of that.
    involved: HashSet<(ProcessId, usize)>,
    /// Processes and devices whose overhead is estimated.
    estimated: HashSet<(ProcessId, usize)>,
    audit: Audit,
    /// Number of audits that had been asked for at the last sample.
    asked: u64,
    /// Time at which counts were last written.
    written: Option<Instant>,
    /// Time of the last look at the devices.
    looked: Option<Instant>,
    /// Time of the last samples of devices.
    sampled: Option<Instant>,
}

/// A look at one device.
#[derive(Clone, Copy)]
struct Look<'a> {
    tree: &'a Tree,
    device: usize,
}

/// A process's own account of a device, read before NVML is asked.
struct Before {
    ledger: Option<Ledger>,
    memory: MemoryClaim,
    usage: Option<UseClaim>,
}

impl Before {
    fn of(Look { tree, device }: Look<'_>, (id, _, blocks): &Governed) -> Self {
        Self {
            ledger: Ledger::of(blocks.usage(), device),
            memory: MemoryClaim::of(blocks.usage(), device),
            usage: UseClaim::of(tree, *id, blocks.as_ref(), device),
        }
    }
}

/// Returns whether a process claims to use a device, or memory there, or a device whose number it does not
/// know: that may be this one.
fn claims_any(blocks: &dyn Blocks, device: usize) -> bool {
    [device, OTHER_DEVICE].into_iter().any(|slot| {
        let usage = blocks.usage();
        usage.charged(slot, u64::MAX) != 0 || usage.device(slot).is_some_and(|usage| usage.claims_use())
    })
}

impl Samples {
    /// Samples every process once, and lists the processes that use a device without a hook. Returns the time
    /// until the next sample.
    pub(super) fn take(&mut self, tree: &Tree, source: &impl Source) -> Duration {
        let (processes, asked) = (tree.ledgers(), tree.nr_audits_asked());
        // After the processes: one that ends in between is in both.
        let ended = tree.ended_owners();
        self.retain(&processes.iter().map(|(id, ..)| *id).collect(), &ended);
        let is_idle = processes.is_empty() && !tree.has_orphaned();
        let age = self.looked.map(|when| when.elapsed());
        if let Some(age) = age.filter(|age| is_idle && asked == self.asked && *age < AUDIT_PERIOD) {
            return AUDIT_PERIOD - age;
        }
        self.looked = Some(Instant::now());
        let can_tell = self.audit.can_tell();
        for device in 0..tree.nr_devices() {
            self.take_device(Look { tree, device }, source, (&processes, &ended), can_tell);
        }
        self.known.extend(processes.iter().map(|(id, ..)| *id));
        tree.look_at(processes.iter().map(|(id, ..)| *id));
        if self.written.is_none_or(|when| when.elapsed() >= PERIOD) {
            tree.note_all_users();
            tree.write_some_counts();
            self.written = Some(Instant::now());
        }
        let found = self.audit.take();
        if !can_tell {
            return PAUSE;
        }
        // Processes are charged energy by the samples of their time.
        let is_due = asked != self.asked || !processes.is_empty();
        if is_due && self.sampled.is_none_or(|when| when.elapsed() >= PERIOD) {
            let samples = (0..tree.nr_devices()).map(|device| source.sample(device));
            tree.set_device_samples(samples.collect());
            self.sampled = Some(Instant::now());
        }
        tree.set_unmanaged(found, asked);
        self.asked = asked;
        if is_idle { AUDIT_PERIOD } else { PERIOD }
    }

    /// Drops what is remembered of processes that have gone.
    fn retain(&mut self, there: &HashSet<ProcessId>, ended: &[EndedOwner]) {
        self.last.retain(|(id, _), _| there.contains(id));
        self.answered.retain(|(id, _), _| there.contains(id));
        self.known.retain(|id| there.contains(id));
        self.involved.retain(|(id, _)| there.contains(id));
        self.estimated.retain(|(id, _)| there.contains(id));
        self.uses.retain(|id| there.contains(&id));
        self.unconfirmed.retain(there);
        let has_ended = |id: &ProcessId| ended.iter().any(|owner| owner.id == *id);
        self.unowned.retain(|id| there.contains(id) || has_ended(id));
    }

    /// Compares a device with the processes that have to do with it.
    fn take_device(
        &mut self,
        look: Look<'_>,
        source: &impl Source,
        (all, ended): (&[Governed], &[EndedOwner]),
        can_tell: bool,
    ) {
        let Look { tree, device } = look;
        let read = |process: &&Governed| Before::of(look, process);
        let (mut processes, others): (Vec<&Governed>, Vec<&Governed>) =
            all.iter().partition(|process| self.is_involved(look, process));
        let mut before: Vec<Before> = processes.iter().map(read).collect();
        let held = self.unowned.look(tree, source, device);
        // These have claimed nothing yet, or hide what they use.
        let is_listed = |pid: &u32| held.as_ref().is_some_and(|held| held.contains_key(pid));
        let listed = others.into_iter().filter(|(_, pid, _)| is_listed(pid));
        processes.extend(listed);
        // A ledger that is read after the device was asked proves nothing: the next look measures.
        let late = processes[before.len()..].iter().map(|process| Before {
            ledger: None,
            ..read(process)
        });
        before.extend(late.collect::<Vec<_>>());
        let driver = Driver::new(source, device, held.as_ref(), all);
        for (process, before) in processes.iter().zip(&before) {
            self.judge_use(tree, process, before, &driver);
        }
        let is_blind = held
            .as_ref()
            .is_none_or(|held| !processes.iter().any(|(_, pid, _)| held.contains_key(pid)));
        let told: Vec<_> = processes
            .iter()
            .map(|(_, pid, blocks)| {
                let has_context = blocks.usage().nr_contexts(device) != 0;
                Shown::of(held.as_ref(), *pid, has_context, is_blind)
            })
            .collect();
        let share = self.estimate(source, device, held.as_ref(), (&processes, &before, &told));
        let mut shown = Vec::new();
        for ((process, before), told) in processes.into_iter().zip(before).zip(told) {
            let (id, pid, _) = process;
            match told {
                Shown::Nothing => {}
                // A process that is not listed holds nothing.
                Shown::Bytes(bytes) => {
                    shown.push((*id, bytes.unwrap_or(0)));
                    self.note_estimated(look, *id, false);
                    self.measure(look, process, before, bytes);
                }
                Shown::Unknown => {
                    if let Some((ledger, share)) = before.ledger.zip(share) {
                        let bytes = ledger.allocations().saturating_add(share);
                        shown.push((*id, bytes));
                        self.note_estimated(look, *id, true);
                        self.settle(look, process, Some(ledger), (bytes, false));
                    }
                }
            }
            self.note_involved(look, process, is_listed(pid));
        }
        self.unowned.settle(tree, device, ended, (all, is_listed));
        let Some(held) = held else {
            return;
        };
        // Governed processes need not be listed.
        if all.is_empty() && held.is_empty() && !tree.has_orphaned() {
            self.idle.note(device, source.used(device));
        }
        tree.show_held(device, &shown);
        if can_tell {
            // Elsewhere a pid of the driver may be that of another process here.
            let action = match source.sees_everybody() {
                true => tree.on_unmanaged(),
                false => OnUnmanaged::Log,
            };
            self.find_unmanaged(tree, device, &held, action);
        }
    }

    /// Returns whether a process may have to do with a device: it claims to, has done so since the last look,
    /// did at that one, or has not been compared yet.
    fn is_involved(&self, Look { tree, device }: Look<'_>, (id, _, blocks): &Governed) -> bool {
        claims_any(blocks.as_ref(), device)
            || self.involved.contains(&(*id, device))
            || !self.known.contains(id)
            || tree.evidence(*id, device) == Evidence::Asked
    }

    /// Notes whether the next look has to compare the process with the device again although it claims
    /// nothing there. If not, its next claim is a new one.
    fn note_involved(
        &mut self,
        Look { tree, device }: Look<'_>,
        (id, _, blocks): &Governed,
        is_listed: bool,
    ) {
        let overhead = blocks.control().devices.get(device);
        let overhead = overhead.map_or(0, |control| control.memory_overhead.load(Relaxed));
        let lasts = is_listed
            || overhead != 0
            || self.last.contains_key(&(*id, device))
            || matches!(tree.evidence(*id, device), Evidence::Asked | Evidence::Refuted)
            || claims_any(blocks.as_ref(), device);
        if lasts {
            self.involved.insert((*id, device));
            return;
        }
        self.involved.remove(&(*id, device));
        tree.set_evidence(*id, device, Evidence::Unknown);
    }

    /// Tells the tree whether a process's overhead is estimated, if that has changed.
    fn note_estimated(&mut self, Look { tree, device }: Look<'_>, id: ProcessId, is_estimated: bool) {
        let has_changed = match is_estimated {
            true => self.estimated.insert((id, device)),
            false => self.estimated.remove(&(id, device)),
        };
        if has_changed {
            tree.set_overhead_estimated(id, device, is_estimated);
        }
    }

    /// Returns the bytes beyond its allocations that are estimated for each process whose bytes are not
    /// known: the lesser of the last two estimates, since memory of a process that ends, or of an allocation
    /// that is not yet charged in full, is in use for a moment. `None` if there is no such process, no
    /// earlier estimate, or a ledger has changed since it was read.
    fn estimate(
        &mut self,
        source: &impl Source,
        device: usize,
        held: Option<&Held>,
        (processes, before, told): (&[&Governed], &[Before], &[Shown]),
    ) -> Option<u64> {
        let unknown: Vec<Ledger> = before
            .iter()
            .zip(told)
            .filter(|(_, told)| **told == Shown::Unknown)
            .map(|(before, _)| before.ledger)
            .collect::<Option<_>>()?;
        let last = self.shares.remove(&device);
        if unknown.is_empty() {
            return None;
        }
        let used = source.used(device)?;
        let is_same = |((_, _, blocks), before): (&&Governed, &Before)| {
            let settled = before.ledger.filter(Ledger::is_settled);
            settled.is_some() && settled == Ledger::of(blocks.usage(), device)
        };
        if !processes.iter().zip(before).all(is_same) {
            return None;
        }
        let known = held.into_iter().flat_map(HashMap::values).flatten();
        let known = known.fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let share = self.idle.share(device, used, known, &unknown)?;
        self.shares.insert(device, share);
        last.map(|last| last.min(share))
    }

    /// Records whether there is evidence that the process uses the device as it claims.
    fn judge_use<S: Source>(
        &mut self,
        tree: &Tree,
        (id, pid, _): &Governed,
        before: &Before,
        driver: &Driver<'_, S>,
    ) {
        let Some(claim) = &before.usage else { return };
        let evidence = self.uses.judge(Instant::now(), (*id, *pid), claim, driver);
        tree.set_evidence(*id, driver.device, evidence);
        if evidence == Evidence::Refuted && claim.claims_now {
            self.audit.claims_use(*pid, driver.device, driver.bytes(*pid));
        }
    }

    /// Compares what the process holds, `None` if the device does not list it, with what it claims and has
    /// charged.
    fn measure(&mut self, look: Look<'_>, process: &Governed, before: Before, held: Option<u64>) {
        let (device, (id, pid, blocks)) = (look.device, process);
        let claims = [before.memory, MemoryClaim::of(blocks.usage(), device)];
        let beyond = self.unconfirmed.note((*id, device), claims, held, Instant::now());
        if let Some(beyond) = beyond {
            self.audit.claims_more(*pid, device, beyond);
        }
        let found = self.settle(look, process, before.ledger, (held.unwrap_or(0), true));
        let found = found.saturating_sub(self.unowned.charged(*id, device));
        let contexts = blocks.usage().nr_contexts(device);
        self.audit.beyond_ledger(*pid, device, found, contexts);
    }

    /// Lists the processes on the device that have no hook. They are looked up after the device was asked: a
    /// process registers before it uses one.
    fn find_unmanaged(&mut self, tree: &Tree, device: usize, held: &Held, action: OnUnmanaged) {
        let unmanaged = held.iter().filter(|(pid, _)| tree.find(**pid).is_none());
        for (pid, bytes) in unmanaged {
            self.audit.no_hook(*pid, device, *bytes, action);
        }
    }

    /// Charges what the process holds beyond its ledger, and its share of what no process owns, in addition
    /// to what it has charged for contexts. While the process has yet to correct that charge, nothing
    /// changes. `held` is as in [`answer_request`]. Returns the part that is certain: contexts, and the
    /// lesser of the last two samples.
    fn settle(
        &mut self,
        look: Look<'_>,
        process: &Governed,
        before: Option<Ledger>,
        held: (u64, bool),
    ) -> u64 {
        let (Look { tree, device }, (id, _, blocks)) = (look, process);
        let id = *id;
        let last = self.last.get(&(id, device)).copied().unwrap_or(0);
        let is_corrected = |answered: &Instant| answered.elapsed() >= PERIOD;
        if self.answer_request(look, process, before, held)
            || !self.answered.get(&(id, device)).is_none_or(is_corrected)
        {
            return last;
        }
        let share = self.unowned.share(id, blocks.as_ref(), device);
        let share = share.unwrap_or_else(|| self.unowned.charged(id, device));
        let held = held.0.saturating_add(share);
        let after = Ledger::of(blocks.usage(), device);
        let (Some(ledger), Some(control)) = (
            before.filter(|before| before.is_settled() && Some(*before) == after),
            blocks.control().devices.get(device),
        ) else {
            return last;
        };
        let (known, contexts) = (control.memory_overhead.load(Relaxed), ledger.contexts());
        let found = ledger.overhead(held, known.saturating_add(contexts));
        let found = found.saturating_sub(contexts);
        if found == 0 {
            self.last.remove(&(id, device));
        } else {
            self.last.insert((id, device), found);
        }
        self.unowned.charge(id, device, share);
        let overhead = found.max(last);
        if overhead != known {
            tree.set_overhead(id, device, overhead);
        }
        found.min(last).saturating_add(contexts)
    }
}
