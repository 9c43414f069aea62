//! Processes that join and leave.

use std::sync::Arc;

use super::byte_seconds::ByteSeconds;
use super::energy::Energy;
use super::{
    Blocks, Ending, GroupId, Identity, Notice, Process, ProcessId, Saved, State, Tree, ended, enforce, usage,
};

impl Tree {
    /// Adds a process with its record from before, or with its initial settings; fills its control block and
    /// publishes it. A process that already has the pid's directory leaves first: the pid was reused, or it
    /// has executed another program. If its group no longer exists, the process is in the root.
    ///
    /// If the same process has the directory, its present settings are used instead of `saved`, because they
    /// may have changed since that copy was made.
    ///
    /// Before the call the caller sets `grace_msec`. The block must be handed out only afterwards.
    pub fn join(
        &self,
        mut identity: Identity,
        blocks: Arc<dyn Blocks>,
        saved: impl Into<Saved>,
    ) -> ProcessId {
        let (saved, pid, start_time) = (saved.into(), identity.pid, identity.start_time);
        let held = saved.group.filter(|_| saved.is_held);
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        let before = state.pids.get(&pid).copied();
        let known = before.and_then(|before| state.processes.get(&before));
        let goes_on = known.is_some_and(|known| known.identity.is_same(&identity));
        let current = known
            .filter(|known| known.identity.start_time == start_time)
            .map(|known| Saved::of_process(known, &state.devices));
        let saved = current.map_or(saved.clone(), |current| Saved {
            is_awaited: saved.is_awaited,
            ..current
        });
        let origins = known.filter(|known| known.identity.start_time == start_time);
        let origins = origins.map_or(saved.origins.clone(), |known| known.origins.clone());
        let is_exec = known.is_some_and(|known| known.identity.start_time == start_time);
        let ending = Ending {
            time: identity.started,
            how: if is_exec { "exec".to_owned() } else { String::new() },
            by: String::new(),
        };
        let old = before.and_then(|id| state.leave(id, ending, goes_on, &mut notices));
        let program = saved
            .program
            .as_deref()
            .filter(|program| program.identity.is_same(&identity));
        identity.started = program.map_or(identity.started, |program| program.identity.started);
        let id = state.number(&identity);
        // The same program registers again: its directory stays.
        notices.retain(|notice| !matches!(notice, Notice::Left { id: left, .. } if *left == id));
        let mut process = Process::new(id, identity, blocks, &state.devices);
        if let Some(old) = old.as_ref().filter(|_| goes_on) {
            process.events = old.events.going_on();
            process.byte_seconds = old.byte_seconds;
        } else if let Some(program) = program {
            process.byte_seconds = ByteSeconds::new(state.now(), program.byte_seconds);
        }
        process.settings = saved.settings.clone();
        process.origins = origins;
        saved.restore(&mut process, &state.devices);
        let holds = &mut process.settings.holds;
        holds.retain(|hold| state.holders.has(hold.holder));
        state.holders.note(holds, id.0);
        let mut refusals = std::mem::take(&mut process.refusals);
        refusals.begin(&process, state.devices.len());
        process.refusals = refusals;
        let group = saved.group.and_then(|group| state.groups.get(&group));
        if let Some(group) = group {
            process.inherited = group.inherited.clone();
        }
        state.prepare_contexts(&process);
        enforce::publish(&process, &state.devices);
        let energy = old
            .as_ref()
            .filter(|_| goes_on)
            .map(|old| old.energy.nanojoules());
        let energy = energy.or(program.map(|program| program.energy_nanojoules));
        let charged = (0..state.devices.len()).map(|device| usage::charged_nsec(&process, device));
        process.energy = Energy::new(energy.unwrap_or(0), charged);
        state.pids.insert(pid, id);
        state.orphaned.nr_joined += 1;
        state.processes.insert(id, Box::new(process));
        state.note_users(id);
        state.note_quotas(id.0);
        state.enter(id, saved.group, &mut notices);
        state.begin_stalls(id);
        if let Some(held) = held {
            state.release_group(held, &mut notices);
        }
        state.govern(id, saved.is_awaited);
        state.note_events(id, &mut Vec::new());
        if goes_on {
            notices.push(Notice::Events(id));
        }
        if let Some(old) = &old {
            state.reap(old.group, &mut notices);
        }
        drop(state);
        drop(old);
        notices.push(Notice::Joined { id, pid, start_time });
        self.tell(&notices);
        id
    }

    /// Removes a process, which has ended. Its charges are dropped, its counts stay
    /// in the totals. Does nothing if it has left already.
    ///
    /// Returns its final record without counts; no further writes to it are possible.
    pub fn leave(&self, id: ProcessId, ending: impl Into<Ending>) -> Option<Saved> {
        let mut notices = Vec::new();
        // Dropped after the lock, because the last owner of the blocks unmaps them.
        let mut state = self.state.lock();
        let process = state.processes.get(&id);
        let mut saved = process.map(|process| Saved::of_process(process, &state.devices));
        if let Some(saved) = &mut saved {
            saved.take_counts();
        }
        let gone = state.leave(id, ending.into(), false, &mut notices);
        if let Some(gone) = &gone {
            state.reap(gone.group, &mut notices);
        }
        drop(state);
        drop(gone);
        self.tell(&notices);
        saved
    }
}

impl State {
    /// Returns the number of a process's program: 48 bits of a hash (splitmix64's mixing), not zero, which is
    /// the root's.
    pub(super) fn number(&self, identity: &Identity) -> ProcessId {
        let (text, stack) = identity.image.unwrap_or_default();
        let mix = |mut word: u64| {
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        };
        let hash = [u64::from(identity.pid), identity.start_time, text, stack]
            .into_iter()
            .fold(0, |hash: u64, word| {
                mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ mix(word))
            });
        let mut number = (hash >> 16).max(1);
        while self.processes.contains_key(&ProcessId(number)) {
            number = (number + 1).max(1) & ((1 << 48) - 1);
        }
        ProcessId(number)
    }

    /// Removes a process. If it `goes_on` here at once, its counts are not added to those of processes that
    /// have left.
    pub(super) fn leave(
        &mut self,
        id: ProcessId,
        ending: Ending,
        goes_on: bool,
        notices: &mut Vec<Notice>,
    ) -> Option<Box<Process>> {
        self.leave_stalls(id);
        self.note_refusals(id, notices);
        self.sample_bytes(id);
        self.charge_rest(id);
        self.account_energy(id);
        if let Some(process) = self.processes.get(&id).filter(|_| !goes_on) {
            let (group, byte_seconds) = (process.group, process.byte_seconds.get());
            for id in self.chain(group) {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.add_byte_seconds(byte_seconds);
                }
            }
        }
        if !goes_on {
            self.keep_shared(id);
        }
        self.exit(id, goes_on, notices);
        self.grants.leave(id);
        self.swap_grants.leave(id);
        self.asking.remove(&id);
        self.host_claims.remove(id);
        let process = self.processes.remove(&id)?;
        self.device_users.remove(id);
        self.note_quotas(id.0);
        self.holders.drop_target(&process.settings.holds, id.0);
        let Identity { pid, start_time, .. } = process.identity;
        if self.pids.get(&pid) == Some(&id) {
            self.pids.remove(&pid);
        }
        if !goes_on {
            let is_empty = |id: &GroupId| self.groups.get(id).is_some_and(|group| group.nr_members == 0);
            let ended = self.chain(process.group).into_iter().filter(is_empty);
            self.quota_ends.extend(ended.collect::<Vec<_>>());
            self.depart_from_root(&process, ending, notices);
        }
        self.tie(notices);
        notices.push(Notice::Left { id, pid, start_time });
        self.forget_pressure(id);
        Some(process)
    }

    /// Adds a leaving process's counts to the root's, and records its end.
    fn depart_from_root(&mut self, process: &Process, ending: Ending, notices: &mut Vec<Notice>) {
        let exited = self.exited(process, ending);
        self.departed += exited.sums;
        let Identity { pid, start_time, .. } = process.identity;
        let mut saved = Box::new(Saved::of_process(process, &self.devices));
        let has_counts = !saved.take_counts().is_empty();
        saved.exited = Some(Box::new(exited.clone()));
        ended::remember(&mut self.exited, exited);
        // Done first: records not written after it are lost, and those written before it would count twice.
        let departed = Notice::Departed {
            pid,
            start_time,
            saved,
        };
        notices.insert(0, departed);
        notices.extend(has_counts.then_some(Notice::RootChanged));
    }
}
