//! Ends of registrations, processes and jobs: reported by the kernel, or found by periodic checks.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use tracing::{debug, warn};

use super::super::live_processes::Program;
use super::Registry;
use crate::host::unix_time;
use crate::journal::Key;
use crate::socket::{TEND, TICK};
use gcgroupfs_sys::process;

impl Registry {
    /// Handles the loss of a process's connection. The process has ended, executes another program, or has
    /// closed a descriptor it did not know. In the last case its directory stays, and changes still reach it
    /// through shared memory.
    pub(in crate::socket) fn lost(&mut self, process: u64, connection: u64) {
        let Some(known) = self.live.get_mut(process) else {
            return;
        };
        let Some(registration) = &mut known.registration else {
            return;
        };
        if registration.connection != Some(connection) {
            return;
        }
        registration.connection = None;
        let (id, pid) = (registration.id, known.key.pid);
        self.bells.mute(id);
        match known.program() {
            Program::Same => {
                if self.log_limit.allows(known.uid(), Instant::now()) {
                    warn!(PID = pid, UID = known.uid(), "{pid}: connection to its hook lost");
                }
                self.tree.set_hook(id, false);
            }
            Program::Other => self.end_registration(process),
            // Its pidfd reports the end soon, and then how it has ended.
            Program::Ending => {}
        }
    }

    /// Handles the end of a process, reported by its pidfd.
    pub(in crate::socket) fn died(&mut self, process: u64) {
        self.end_registration(process);
        let ending = self.live.get_mut(process).map(|known| known.ending());
        if let Some(key) = self.live.remove(process) {
            self.unregistered.ended(key, ending.unwrap_or_default());
            self.tree.end_holder(key.pid, key.start_time);
        }
    }

    /// Checks the awaited processes and those whose connection is lost. Returns when to check again, if any
    /// are left.
    pub(in crate::socket) fn tend(&mut self, now: Instant) -> Option<Duration> {
        for key in self.awaited.tend(now) {
            if self.live.find(key).is_none_or(|known| !known.is_asking) {
                self.tree.clear_ungoverned((key.pid, key.start_time));
            }
        }
        let is_any_lost = self.tend_lost();
        let sums = [self.log_limit.sum_up(now), self.activity_log.sum_up(now)];
        let later = sums.into_iter().flatten().min();
        self.awaited
            .is_any()
            .then_some(TICK)
            .or(is_any_lost.then_some(TEND))
            .or(later)
    }

    /// Watches the remembered processes that are in groups and the holders, so that their end is noticed at
    /// once: a group held for a process is not removed.
    pub(in crate::socket) fn watch_unregistered(&mut self, mut new_number: impl FnMut() -> u64) {
        let holders = self.holders().into_iter();
        for key in self.unregistered.in_groups().into_iter().chain(holders) {
            match self.live.watch(new_number(), key) {
                Ok(()) => {}
                Err(Errno::ESRCH) => {
                    self.unregistered.ended(key, unix_time().into());
                    self.tree.end_holder(key.pid, key.start_time);
                }
                // They are also checked periodically.
                Err(error) => debug!("{}: cannot be watched: {error}", key.pid),
            }
        }
    }

    /// Removes remembered processes that have ended, transient groups that only they were in, and holders
    /// that could not be watched and have ended. Returns whether any of these processes are left.
    pub(in crate::socket) fn tend_unregistered(&mut self) -> bool {
        let mut is_any_left = false;
        let holders = self.holders().into_iter();
        for Key { pid, start_time } in holders.filter(|key| self.live.find(*key).is_none()) {
            match process::is_alive(pid, start_time) {
                true => is_any_left = true,
                false => self.tree.end_holder(pid, start_time),
            }
        }
        is_any_left |= self.unregistered.tend();
        self.tree.reap_transient(None);
        is_any_left
    }

    /// Ends the registrations of processes that lost their connection and execute another program. Returns
    /// whether others with a lost connection remain.
    fn tend_lost(&mut self) -> bool {
        let mut is_any_left = false;
        for process in self.live.lost() {
            match self.live.get_mut(process) {
                Some(known) if known.program() == Program::Same => is_any_left = true,
                _ => self.end_registration(process),
            }
        }
        is_any_left
    }

    /// Removes the process's directory; its settings are remembered until it ends.
    fn end_registration(&mut self, process: u64) {
        let Some(known) = self.live.get_mut(process) else {
            return;
        };
        let Some(registration) = known.registration.take() else {
            return;
        };
        let (key, is_asking, ending) = (known.key, known.is_asking, known.ending());
        if let Some(identity) = self.tree.identity(registration.id)
            && self.may_debug_of(identity.uid)
        {
            debug!(
                PID = identity.pid,
                UID = identity.uid,
                "{} ({}) left",
                identity.pid,
                identity.comm
            );
        }
        // Stored before the counts appear as those of an ended program, so that a daemon killed then has
        // shown nothing that the next one does not know.
        self.tree.write_counts_of(registration.id);
        // Done before it leaves its group, which would otherwise be removed with its last member.
        if let Some(mut saved) = self.tree.saved(registration.id) {
            saved.take_counts();
            self.unregistered.insert(key, saved);
            if is_asking {
                self.unregistered.set_ungoverned(key);
            }
        }
        // Settings may have been written meanwhile.
        match self.tree.leave(registration.id, ending) {
            Some(saved) if !saved.is_default() => self.unregistered.insert(key, saved),
            _ => self.unregistered.remove(key),
        }
        self.bells.remove(registration.id);
    }
}
