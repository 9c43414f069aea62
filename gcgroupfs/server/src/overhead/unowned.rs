//! Memory that no process owns: shared memory whose owner has freed it or has ended, while another process or
//! a descriptor still holds it.
//!
//! No driver call tells what it takes or which process holds it. The bytes in use on a device beyond those
//! of its processes are charged to each process that may hold them, up to what it may hold: what it has
//! opened, and what it has shared and then freed. Of a process that has ended, at most what it may have left
//! before, and what these bytes have grown by since the device last listed it.
//!
//! The device tells the bytes in use and those of processes at different moments. So only bounds are known
//! ([`Bounds`]): charges are by the greater one, and what was there before is the lesser one.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Governed, Held, Source};
use gcgroupfs_model::tree::{Blocks, EndedOwner, Intake, ProcessId, Tree};

/// Number of times that a device is asked for its bytes while processes take memory meanwhile.
const TRIES: usize = 3;

/// Time after the first look in which a process that is not governed may be one that has not registered again
/// after a restart of the daemon, and may have opened memory.
const COMING_BACK: Duration = Duration::from_secs(10);

/// Part of a charge by which it may be too high for good.
const TOLERANCE: u64 = 8;

/// Bytes that no process owned during a look.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    /// At least these bytes had no owner all the time.
    least: u64,
    /// At most these bytes had none when the look began and have none now.
    most: u64,
}

impl Bounds {
    /// Returns the bounds by what was in use before and after the processes were listed, of which these
    /// `owned` bytes, and took at most `taken` bytes meanwhile.
    fn new([before, after]: [u64; 2], owned: u64, taken: u64) -> Self {
        Self {
            least: after.saturating_sub(owned.saturating_add(taken)),
            most: before.saturating_add(taken).saturating_sub(owned),
        }
    }

    fn without(self, bytes: u64) -> Self {
        Self {
            least: self.least.saturating_sub(bytes),
            most: self.most.saturating_sub(bytes),
        }
    }

    /// Returns how many of these bytes may be left of so many. `None`: the bounds differ too much.
    fn part(self, bytes: u64) -> Option<u64> {
        let (least, most) = (bytes.min(self.least), bytes.min(self.most));
        (most.saturating_sub(least) <= most / TOLERANCE).then_some(most)
    }

    /// Returns the bytes that were there at a look before, as far as the bounds permit.
    fn keep(self, before: u64) -> u64 {
        before.max(self.least).min(self.most)
    }

    fn width(self) -> u64 {
        self.most.saturating_sub(self.least)
    }
}

#[derive(Debug, Default)]
pub(super) struct Unowned {
    /// When the first look began.
    began: Option<Instant>,
    /// The least bytes of a device beyond those of processes while no memory is shared.
    idle: HashMap<usize, u64>,
    /// Bytes that no process owned at the last look, if it had a result.
    bounds: HashMap<usize, Bounds>,
    /// The least bytes that no process owned at the look before. Devices that have never told what processes
    /// hold are not there.
    last: HashMap<usize, u64>,
    /// Processes that may have freed shared memory during the last look, by device.
    restless: HashSet<(ProcessId, usize)>,
    claims: HashMap<(ProcessId, usize), Claim>,
}

/// The memory that a process has shared and freed.
#[derive(Debug, Default)]
struct Claim {
    /// Bytes of shared memory that the process had freed at the last look.
    freed: u64,
    /// Bytes of shared and freed memory that may still be held.
    most: u64,
    /// The bytes charged for this process.
    charged: u64,
    /// Bytes that no process owned when the device last listed the process, or before it was known, less
    /// those that it may have left itself.
    others: u64,
}

/// Readings of all processes for one device, with their blocks.
type Readings = BTreeMap<ProcessId, Reading>;
type Reading = (Arc<dyn Blocks>, Intake);

fn intakes(tree: &Tree, device: usize) -> Readings {
    let intake = |(id, _, blocks): Governed| {
        let intake = Intake::of(blocks.usage(), device).unwrap_or_default();
        (id, (blocks, intake))
    };
    tree.ledgers().into_iter().map(intake).collect()
}

/// Returns whether a device lists processes that are not governed.
fn has_others(tree: &Tree, held: Option<&Held>) -> bool {
    let governed: HashSet<u32> = tree.ledgers().into_iter().map(|(_, pid, _)| pid).collect();
    let mut listed = held.into_iter().flat_map(HashMap::keys);
    listed.any(|pid| !governed.contains(pid))
}

impl Unowned {
    /// Notes what a process may hold. Returns whether it shares or may hold anything.
    fn note(&mut self, id: ProcessId, blocks: &dyn Blocks, device: usize) -> bool {
        // Before the freed bytes, among which shared memory is counted before it is no longer shared.
        let shares = blocks.usage().shares_memory();
        let (freed, opened) = blocks.usage().shared(device);
        let others = self.last.get(&device).copied().unwrap_or(0);
        let claim = self.claims.entry((id, device)).or_insert_with(|| Claim {
            others,
            ..Claim::default()
        });
        claim.most = claim.most.saturating_add(freed.saturating_sub(claim.freed));
        claim.freed = freed;
        shares || claim.most != 0 || opened != 0
    }

    /// Notes what processes may hold. Returns whether any memory is shared.
    fn is_shared(&mut self, tree: &Tree, processes: &Readings, device: usize) -> bool {
        let note = |(id, (blocks, _)): (&ProcessId, &Reading)| self.note(*id, blocks.as_ref(), device);
        let is_any = processes.iter().map(note).fold(false, |any, one| any | one);
        is_any || tree.has_orphaned()
    }

    /// Asks a device what processes hold. Where memory is shared, finds what none of them owns; elsewhere
    /// what is in use without it.
    pub(super) fn look(&mut self, tree: &Tree, source: &impl Source, device: usize) -> Option<Held> {
        let is_new = self.began.get_or_insert_with(Instant::now).elapsed() < COMING_BACK;
        self.bounds.remove(&device);
        self.restless.retain(|(_, on)| *on != device);
        let mut held = None;
        for _ in 0..TRIES {
            let (nr_joined, earlier) = (tree.nr_joined(), intakes(tree, device));
            let was_shared = self.is_shared(tree, &earlier, device);
            let before = source.used(device);
            held = source.held(device);
            let after = before.and_then(|_| source.used(device));
            let later = intakes(tree, device);
            // Memory may have been shared, and freed, only now.
            let is_shared = self.is_shared(tree, &later, device) || was_shared;
            let new = later.keys().filter(|id| !earlier.contains_key(id));
            let has_missed = tree.nr_joined() - nr_joined != new.count() as u64;
            let taken = self.taken(earlier, later, device);
            let mut bytes = held.iter().flat_map(HashMap::values).copied();
            let owned = bytes.try_fold(0, |sum: u64, one| Some(sum.saturating_add(one?)));
            let used = before.zip(after).filter(|_| held.is_some());
            let Some(((before, after), owned)) = used.zip(owned) else {
                break;
            };
            // A process that came and went may have taken anything.
            let taken = if has_missed { u64::MAX } else { taken };
            let bounds = Bounds::new([before, after], owned, taken);
            let may_share = is_shared || is_new && has_others(tree, held.as_ref());
            let least = if may_share { 0 } else { bounds.least };
            let idle = self.idle.entry(device).or_default();
            *idle = (*idle).min(bounds.most).max(least);
            let idle = *idle;
            self.last.entry(device).or_default();
            let bounds = bounds.without(idle);
            let known = self.bounds.get(&device);
            if is_shared && known.is_none_or(|known| bounds.width() < known.width()) {
                self.bounds.insert(device, bounds);
            }
            if !is_shared || bounds.width() == 0 {
                break;
            }
        }
        held
    }

    /// Returns the most bytes that processes have taken between two readings. Notes which of them may have
    /// freed shared memory.
    fn taken(&mut self, earlier: Readings, mut later: Readings, device: usize) -> u64 {
        let mut taken: u64 = 0;
        let mut compare = |id, before: Intake, after: Intake| {
            taken = taken.saturating_add(before.until(&after));
            if !before.is_quiet(&after) {
                self.restless.insert((id, device));
            }
        };
        for (id, (blocks, before)) in earlier {
            // One that has left since may have taken memory too.
            later.remove(&id);
            compare(id, before, Intake::of(blocks.usage(), device).unwrap_or(before));
        }
        for (id, (_, new)) in later {
            compare(id, Intake::default(), new);
        }
        taken
    }

    /// Returns the bytes to charge to a process for memory that no process owns, at most what it may hold.
    /// `None`: they are not known.
    pub(super) fn share(&self, id: ProcessId, blocks: &dyn Blocks, device: usize) -> Option<u64> {
        let (_, opened) = blocks.usage().shared(device);
        let most = self.claims.get(&(id, device)).map_or(0, |claim| claim.most);
        let most = most.saturating_add(opened);
        match self.bounds.get(&device) {
            Some(bounds) => bounds.part(most),
            None => Some(0).filter(|_| most == 0),
        }
    }

    /// Returns the bytes that are charged to a process.
    pub(super) fn charged(&self, id: ProcessId, device: usize) -> u64 {
        self.claims.get(&(id, device)).map_or(0, |claim| claim.charged)
    }

    /// Notes that `share` bytes are charged to a process.
    pub(super) fn charge(&mut self, id: ProcessId, device: usize, share: u64) {
        if let Some(claim) = self.claims.get_mut(&(id, device)) {
            // Bytes that no process holds now are not held later either.
            claim.most = claim.most.min(share);
            claim.charged = share;
        }
    }

    /// Has groups charged for what is left of processes that had `ended` before the last look at a device.
    /// The device lists a process until its end is complete: its charge stays until then, and all charges
    /// stay if the look had no result.
    pub(super) fn settle(
        &mut self,
        tree: &Tree,
        device: usize,
        ended: &[EndedOwner],
        (running, is_listed): (&[Governed], impl Fn(&u32) -> bool),
    ) {
        let bounds = match self.bounds.get(&device) {
            Some(bounds) => *bounds,
            None if self.last.contains_key(&device) && tree.has_orphaned() => return,
            // Nothing is shared, or the device never tells.
            None => Bounds::default(),
        };
        let last = self.last.get_mut(&device);
        let last = last.map_or(0, |last| mem::replace(last, bounds.keep(*last)));
        for (id, _, blocks) in running.iter().filter(|(_, pid, _)| is_listed(pid)) {
            let Some(claim) = self.claims.get_mut(&(*id, device)) else {
                continue;
            };
            let own = claim.most.saturating_add(blocks.usage().shared_pools(device));
            let others = bounds.without(own);
            claim.others = match self.restless.contains(&(*id, device)) {
                true => claim.others.min(others.most),
                false => others.keep(claim.others),
            };
        }
        if !tree.has_orphaned() || bounds.part(u64::MAX).is_none() {
            return;
        }
        let share = |owner: &EndedOwner| {
            let claim = self.claims.get(&(owner.id, device));
            let others = claim.map_or(last, |claim| claim.others);
            Some((owner.id, bounds.without(others).part(owner.bytes)?))
        };
        let ended = ended
            .iter()
            .filter(|owner| owner.device == device && !is_listed(&owner.pid));
        let shares: Vec<_> = ended.filter_map(share).collect();
        let is_ended = |id: &ProcessId| shares.iter().any(|(ended, _)| ended == id);
        let running = self
            .claims
            .iter()
            .filter(|((id, on), _)| *on == device && !is_ended(id));
        let running: Vec<_> = running.map(|((id, _), claim)| (*id, claim.charged)).collect();
        tree.set_orphaned(device, bounds.most, &shares, &running);
    }

    /// Drops what is known of processes that have gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ProcessId) -> bool) {
        self.claims.retain(|(id, _), _| is_there(id));
        self.restless.retain(|(id, _)| is_there(id));
    }
}
