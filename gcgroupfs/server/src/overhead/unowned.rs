//! Memory that no process owns: shared memory whose owner has freed it or has ended, while another process or
//! a descriptor still holds it.
//!
//! No driver call tells what it takes or which process holds it. The bytes in use on a device beyond those
//! of its processes are charged to each process that may hold them, up to what it may hold: what it has
//! opened, and what it has shared and then freed. Of a process that has ended, at most what it may have left
//! before, and what these bytes have grown by since the device last listed it.

use std::collections::{HashMap, HashSet};

use super::{Held, Source};
use gcgroupfs_model::tree::{Blocks, EndedOwner, ProcessId, Tree};

#[derive(Debug, Default)]
pub(super) struct Unowned {
    /// Bytes of a device beyond those of processes while no memory is shared: at the last look, and
    /// the least of the last two looks.
    idle: HashMap<usize, (u64, u64)>,
    /// Bytes that no process owned at the last look, if nothing changed meanwhile.
    bytes: HashMap<usize, u64>,
    /// Bytes that no process owned when [`settle`](Self::settle) last knew them.
    last: HashMap<usize, u64>,
    /// Devices that do not tell what processes hold.
    silent: HashSet<usize>,
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

impl Unowned {
    /// Notes what a process may hold. Returns whether it may hold anything.
    pub(super) fn note(&mut self, id: ProcessId, blocks: &dyn Blocks, device: usize) -> bool {
        let (freed, opened) = blocks.usage().shared(device);
        let others = self.last.get(&device).copied().unwrap_or(0);
        let claim = self.claims.entry((id, device)).or_insert_with(|| Claim {
            others,
            ..Claim::default()
        });
        claim.most = claim.most.saturating_add(freed.saturating_sub(claim.freed));
        claim.freed = freed;
        claim.most != 0 || opened != 0
    }

    /// Asks a device what processes hold. Where memory `is_shared`, finds what none of them owns; elsewhere
    /// what is in use without it. Both only if the bytes in use are equal before and after.
    pub(super) fn held(&mut self, source: &impl Source, device: usize, is_shared: bool) -> Option<Held> {
        self.bytes.remove(&device);
        let before = source.used(device);
        let held = source.held(device);
        let of_processes = held
            .as_ref()
            .and_then(|held| held.values().copied().sum::<Option<u64>>());
        let told = before.zip(of_processes);
        match told {
            Some(_) => self.silent.remove(&device),
            None => self.silent.insert(device),
        };
        if let Some((used, known)) = told
            && source.used(device) == before
        {
            let beyond = used.saturating_sub(known);
            let idle = self.idle.get(&device).copied();
            if is_shared {
                let (_, idle) = idle.unwrap_or_default();
                self.bytes.insert(device, beyond.saturating_sub(idle));
            } else {
                let (last, _) = idle.unwrap_or((beyond, beyond));
                self.idle.insert(device, (beyond, beyond.min(last)));
            }
        }
        held
    }

    /// Returns the bytes to charge to a process for memory that no process owns, at most what it may hold.
    /// `None`: they are not known.
    pub(super) fn share(&self, id: ProcessId, blocks: &dyn Blocks, device: usize) -> Option<u64> {
        let (_, opened) = blocks.usage().shared(device);
        let most = self.claims.get(&(id, device)).map_or(0, |claim| claim.most);
        let most = most.saturating_add(opened);
        match self.bytes.get(&device) {
            Some(bytes) => Some(most.min(*bytes)),
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

    /// Has groups charged for what is left of processes that had `ended` before the last look at a device,
    /// where memory `is_shared` or not. The device lists a process until its end is complete: its charge
    /// stays until then, and all charges stay if the look had no result.
    pub(super) fn settle(
        &mut self,
        tree: &Tree,
        (device, is_shared): (usize, bool),
        ended: &[EndedOwner],
        (running, is_listed): (impl Iterator<Item = (ProcessId, u32)>, impl Fn(&u32) -> bool),
    ) {
        let unowned = match self.bytes.get(&device) {
            Some(bytes) => *bytes,
            None if !is_shared || self.silent.contains(&device) => 0,
            None => return,
        };
        let last = self.last.insert(device, unowned).unwrap_or(0);
        for (id, _) in running.filter(|(_, pid)| is_listed(pid)) {
            if let Some(claim) = self.claims.get_mut(&(id, device)) {
                claim.others = unowned.saturating_sub(claim.most);
            }
        }
        if !is_shared {
            return;
        }
        let share = |owner: &EndedOwner| {
            let claim = self.claims.get(&(owner.id, device));
            let others = claim.map_or(last, |claim| claim.others);
            (owner.id, owner.bytes.min(unowned.saturating_sub(others)))
        };
        let ended = ended
            .iter()
            .filter(|owner| owner.device == device && !is_listed(&owner.pid));
        let shares: Vec<_> = ended.map(share).collect();
        let is_ended = |id: &ProcessId| shares.iter().any(|(ended, _)| ended == id);
        let running = self
            .claims
            .iter()
            .filter(|((id, on), _)| *on == device && !is_ended(id));
        let running: Vec<_> = running.map(|((id, _), claim)| (*id, claim.charged)).collect();
        tree.set_orphaned(device, unowned, &shares, &running);
    }

    /// Drops what is known of processes that have gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ProcessId) -> bool) {
        self.claims.retain(|(id, _), _| is_there(id));
    }
}
