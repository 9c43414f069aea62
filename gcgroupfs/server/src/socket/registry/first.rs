//! The first registration of a process: the group in which it begins, and its settings.

use gcgroup_abi::message::{GroupName, Hello};
use nix::errno::Errno;
use tracing::{debug, warn};

use super::super::initial_group::{
    Credentials, GroupFacts, InitialGroup, Prospect, find_initial_group, find_requested, foresee_group,
    is_below,
};
use super::super::rule_queries::DevicesRequest;
use super::Registry;
use crate::journal::Key;
use gcgroupfs_model::rules::{Group, Verdict};
use gcgroupfs_model::tree::{GroupId, MEMORY_SWAP_MAX, Origin, Origins, Saved, Settings, Value};
use gcgroupfs_sys::process::{self, Peer, Stat};

/// Attempts to choose and hold a group that may be emptied and removed meanwhile.
const MAX_GROUP_CHOICES: usize = 8;

/// Maximum number of ancestors examined.
const MAX_ANCESTORS: usize = 64;

/// A process that registers for the first time.
pub(super) struct FirstRegistration<'a> {
    pub(super) pid: u32,
    pub(super) stat: &'a Stat,
    pub(super) who: &'a Credentials,
    pub(super) verdict: &'a Verdict,
    pub(super) hello: &'a Hello,
}

impl Registry {
    /// Returns the record of a new process, whose group is held until the process has joined, and whether
    /// its request for a group is fulfilled.
    ///
    /// # Errors
    /// As [`choose_group`](Self::choose_group).
    pub(super) fn first_record(&mut self, first: &FirstRegistration<'_>) -> nix::Result<(Saved, bool)> {
        let (group, is_kept) = self.choose_group(first)?;
        let (settings, origins) = self.settings_of(first, group);
        let mut saved = Saved::from(settings);
        (saved.group, saved.origins) = (group, origins);
        Ok((saved, is_kept))
    }

    /// Chooses the group in which a new process begins and holds it until the process has joined, because it
    /// might be emptied and removed meanwhile. Also returns whether the process's request is fulfilled.
    ///
    /// # Errors
    /// `EAGAIN` if the group was removed each time before it could be held; `EACCES` if the process, or the
    /// rule that it matches, insists on another group.
    fn choose_group(&mut self, first: &FirstRegistration<'_>) -> nix::Result<(Option<GroupId>, bool)> {
        let (pid, hello, who) = (first.pid, first.hello, first.who);
        for _ in 0..MAX_GROUP_CHOICES {
            let key = Key {
                pid,
                start_time: first.stat.start_time,
            };
            let origin = self.origin(key, first.stat);
            let wish_above = origin.as_ref().map(|origin| origin.wish);
            let facts = GroupFacts {
                above: self.binding(origin.as_ref(), first.verdict),
                verdict: first.verdict,
                wish: hello.group.as_str(),
                names_job: hello.names_job != 0,
                who,
            };
            let InitialGroup {
                group,
                is_as_requested,
                troubles,
                warnings,
            } = find_initial_group(&self.tree, &facts);
            let is_kept = is_as_requested || self.is_kept(hello.group, group, wish_above);
            let required = first.verdict.required;
            if (hello.insists != 0 || required) && !is_kept || required && !troubles.is_empty() {
                debug!("{pid} must begin in its group: {troubles:?}");
                // The groups that were made for it.
                self.tree.reap_transient(None);
                return Err(Errno::EACCES);
            }
            if group.is_some_and(|group| !self.tree.hold_group(group)) {
                continue;
            }
            let all = troubles.into_iter().chain(warnings);
            for trouble in all.filter(|_| self.may_log_of(who.uid)) {
                warn!("{pid} ({}) of user {} {trouble}", first.stat.comm, who.uid);
            }
            return Ok((group, is_kept));
        }
        Err(Errno::EAGAIN)
    }

    /// Returns the group of a process that has not registered and asks for `wish`: its own, if it was
    /// registered as another program; that of its job or nearest governed ancestor; within that, the
    /// requested group if there is one. Rules are not evaluated: they are for processes that use CUDA, not
    /// for monitors.
    pub(in crate::socket) fn group_before_registration(
        &self,
        peer: &Peer,
        wish: GroupName,
    ) -> Option<GroupId> {
        let key = Key {
            pid: peer.pid,
            start_time: peer.stat.start_time,
        };
        if let Some(saved) = self.saved(key) {
            return saved.group;
        }
        let origin = self.origin(key, &peer.stat);
        let above = origin.and_then(|origin| origin.group);
        let Some(wish) = wish.as_str().filter(|_| !peer.is_contained) else {
            return above;
        };
        let who = Credentials::of(peer);
        self.tree.revive(wish, who.caller());
        let is_inside = is_below(wish.trim_matches('/'), &self.tree.path(above));
        find_requested(&self.tree, &who, wish)
            .filter(|_| above.is_none() || is_inside)
            .or(above)
    }

    /// Returns where a process is or would begin, without registering it or making groups.
    pub(in crate::socket) fn would_begin(&self, request: DevicesRequest, verdict: &Verdict) -> Prospect {
        let (peer, group) = (request.peer, request.group);
        let key = super::key(&peer);
        if let Some(saved) = self.saved(key) {
            return Prospect {
                group: saved.group,
                devices: None,
            };
        }
        let origin = self.origin(key, &peer.stat);
        let who = Credentials::of(&peer);
        let facts = GroupFacts {
            above: self.binding(origin.as_ref(), verdict),
            verdict,
            wish: group.as_str(),
            names_job: false,
            who: &who,
        };
        facts.revive(&self.tree);
        foresee_group(&self.tree, &facts)
    }

    /// Returns the settings of a new process: those of the rules, and within them those that it asks for. If
    /// its user may not set the priority that it asks for, that is logged. Also returns where they come from.
    fn settings_of(&mut self, first: &FirstRegistration<'_>, group: Option<GroupId>) -> (Settings, Origins) {
        let now = self.tree.now();
        let ruled = first.verdict.process.settings();
        let mut origins = Origins::of_rule(first.verdict.rule.as_deref(), &ruled, now);
        let mut settings = ruled.clone();
        let bound = (!first.who.is_root(&self.tree)).then(|| self.tree.least_priority(&settings, group));
        let raised = settings.apply_request(&self.tree.without_jobs_limits(first.hello, group), bound);
        origins.note_difference(&ruled, &settings, &Origin::Asked, now);
        if settings.own(MEMORY_SWAP_MAX, None).is_none() && self.tree.enables_swap(group) {
            let before = settings.clone();
            // Cannot fail: there is no bound yet.
            let _ = settings.set(MEMORY_SWAP_MAX, None, Value::MAX, false);
            origins.note_difference(&before, &settings, &Origin::Group, now);
        }
        if let Some(least) = raised.filter(|_| self.may_log_of(first.who.uid)) {
            warn!(
                "{} ({}) of user {} does not get priority {}: {least} is the lowest number that its user may set",
                first.pid, first.stat.comm, first.who.uid, first.hello.priority
            );
        }
        (settings, origins)
    }

    /// Returns whether the request `wish` is fulfilled by `group`: that is the requested group or one below
    /// it; or the process, or its nearest governed ancestor, was in such a group by the same request
    /// (`before`) and was moved since.
    pub(super) fn is_kept(&self, wish: GroupName, group: Option<GroupId>, before: Option<GroupName>) -> bool {
        let Some(wanted) = wish.as_str() else { return true };
        before == Some(wish) || is_below(&self.tree.path(group), wanted)
    }

    /// Returns where a new process comes from: its own job, or the nearest ancestor that is governed or has a
    /// job. Where a parent has ended, its children were reparented and their origin is unknown.
    ///
    /// The parents are read from `/proc/PID/status`, which no process can block, and the start time only of
    /// an ancestor that may be the one: registration waits for this.
    pub(super) fn origin(&self, key: Key, stat: &Stat) -> Option<Ancestry> {
        if let Some(job) = self.tree.job_of_process(key.pid, Some(key.start_time)) {
            return Some(Ancestry::of_job(job));
        }
        let (mut chain, mut parent) = (vec![key.pid], stat.parent);
        while parent != 0 && chain.len() <= MAX_ANCESTORS {
            chain.push(parent);
            if self.ancestry(parent, None).is_some() {
                let start_time = match process::stat(parent) {
                    Ok(stat) => Some(stat.start_time),
                    // It blocks the read, which must not take its children out of its group.
                    Err(Errno::ETIMEDOUT) => None,
                    Err(_) => return None,
                };
                let ancestry = self.ancestry(parent, start_time);
                // Still each other's parents: so none of them had ended, and its pid gone to another process.
                let is_link =
                    |pair: &[u32]| matches!(pair, [of, above] if process::parent(*of) == Some(*above));
                if ancestry.is_some() {
                    return ancestry.filter(|_| chain.windows(2).all(is_link));
                }
            }
            parent = process::parent(parent)?;
        }
        None
    }

    /// Returns what a process gives to its children: the process with this pid and start time, or without
    /// one, with this pid.
    fn ancestry(&self, pid: u32, start_time: Option<u64>) -> Option<Ancestry> {
        let (known, saved) = match start_time.map(|start_time| Key { pid, start_time }) {
            Some(key) => (self.live.find(key), self.unregistered.get(key)),
            None => (self.live.find_pid(pid), self.unregistered.find_pid(pid)),
        };
        let registered = known.and_then(|known| known.registration.as_ref());
        let registered = registered.and_then(|registration| self.tree.group_of(registration.id));
        if let Some(group) = registered.or(saved.map(|saved| saved.group)) {
            return Some(Ancestry {
                group,
                wish: known.map_or(GroupName::NONE, |known| known.wish),
                is_inherited: true,
            });
        }
        self.tree.job_of_process(pid, start_time).map(Ancestry::of_job)
    }

    /// Returns the group in which a process begins by its origin. A rule's group counts instead of a job's
    /// that is outside of it.
    pub(super) fn binding(&self, origin: Option<&Ancestry>, verdict: &Verdict) -> Option<GroupId> {
        let origin = origin?;
        let group = origin.group?;
        let is_inside = |rule: &Group| is_below(&self.tree.path(Some(group)), &rule.path);
        let binds = origin.is_inherited || verdict.group.as_ref().is_none_or(is_inside);
        binds.then_some(group)
    }
}

/// Where a new process comes from.
pub(super) struct Ancestry {
    /// `None` for the root.
    group: Option<GroupId>,
    /// The group that was asked for there.
    wish: GroupName,
    /// Whether rules are not asked for a group: the ancestor is governed, or its job was started by a
    /// governed process.
    pub(super) is_inherited: bool,
}

impl Ancestry {
    fn of_job((group, is_inherited): (GroupId, bool)) -> Self {
        Self {
            group: Some(group),
            wish: GroupName::NONE,
            is_inherited,
        }
    }
}
