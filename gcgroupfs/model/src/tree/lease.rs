//! Leases of groups: a time, and what holds for the group once it is over.
//!
//! The time of the end is stored as milliseconds since boot, so it stays valid over restarts of the daemon.
//! What the action requires is derived from the time at each start, write and end: a new lease ends it.

use super::kill::{KillCause, Killer};
use super::lease_action::{Effect, LEASE_ACTIONS, LeaseAction, lease_action};
use super::settings::{COMPUTE_FREEZE, Hold, Holder, LEASE, LEASE_ACTION, SUSPEND, Value};
use super::{Directory, Edit, Entity, Group, GroupId, Notice, ProcessId, Settings, State, Tree, View};
use crate::error::Result;

/// A lease that has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// Path of the group.
    pub path: String,
    /// Owner of the group.
    pub uid: u32,
    /// Name of the action.
    pub action: &'static str,
}

/// Returns the end of the lease in milliseconds since boot; `None` without a lease.
fn end(settings: &Settings) -> Option<u64> {
    let end = settings.of_group(LEASE, None);
    (end != Value::MAX).then(|| end.number())
}

fn action(settings: &Settings) -> &'static LeaseAction {
    let rank = settings.of_group(LEASE_ACTION, None).number();
    lease_action(rank).unwrap_or(&LEASE_ACTIONS[0])
}

/// Returns the value that the expired lease of a group holds.
fn held(group: &Group) -> Option<Hold> {
    let setting = match action(&group.settings).effect {
        Effect::Freezes => COMPUTE_FREEZE,
        Effect::Suspends => SUSPEND,
        Effect::Kills => return None,
    };
    let is_roots = group.settings.root(LEASE, None).is_some();
    Some(Hold {
        holder: Holder {
            pid: 0,
            start_time: 0,
            uid: if is_roots { 0 } else { group.access.owner.uid },
        },
        device: None,
        setting: setting.key.to_owned(),
        value: Value::Flag(true),
    })
}

/// Returns whether processes in the group itself are to be killed.
fn kills(group: &Group) -> bool {
    group.has_lease_expired && action(&group.settings).effect == Effect::Kills
}

fn killer(group: &Group) -> Killer {
    Killer {
        uid: group.access.owner.uid,
        cause: KillCause::Lease,
    }
}

impl Tree {
    /// Lets the leases expire whose time has come. Returns those, and the time until the next one in
    /// milliseconds.
    pub fn expire_leases(&self) -> (Vec<Expired>, Option<u64>) {
        self.update(|state, notices| {
            let now = state.since_boot();
            let mut expired = Vec::new();
            let ends = state.leases.iter().filter(|(_, end)| **end <= now);
            let over: Vec<GroupId> = ends.map(|(id, _)| *id).collect();
            for id in over {
                state.arm_lease(id, notices);
                expired.extend(state.groups.get(&id).map(|group| Expired {
                    path: state.path(Some(id)),
                    uid: group.access.owner.uid,
                    action: action(&group.settings).name,
                }));
            }
            let next = state.leases.values().min().map(|end| end.saturating_sub(now));
            (expired, next)
        })
    }
}

impl State {
    /// Returns the time since boot in milliseconds.
    pub(super) fn since_boot(&self) -> u64 {
        u64::try_from((self.devices.host.uptime)().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the time at which a lease of so many seconds ends that begins now.
    pub(super) fn lease_end(&self, seconds: Value) -> Value {
        match seconds {
            Value::MAX => Value::MAX,
            seconds => {
                let msec = seconds.number().saturating_mul(1000);
                Value::Number(self.since_boot().saturating_add(msec))
            }
        }
    }

    /// Applies the lease of a group: waits for its end, or carries out the action if it has expired.
    pub(super) fn arm_lease(&mut self, id: GroupId, notices: &mut Vec<Notice>) {
        let now = self.since_boot();
        self.leases.remove(&id);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let end = end(&group.settings);
        group.has_lease_expired = end.is_some_and(|end| end <= now);
        let awaited = end.filter(|_| !group.has_lease_expired);
        self.leases.extend(awaited.map(|end| (id, end)));
        let killer = kills(group).then(|| killer(group));
        let held = held(group).filter(|_| group.has_lease_expired);
        let change = |holds: &mut Vec<Hold>| {
            holds.retain(|hold| !hold.holder.is_lease());
            holds.extend(held);
        };
        self.change_holds(id.0, change, notices);
        self.change_standing(id, |_| {}, notices);
        if let Some(killer) = killer {
            notices.push(Notice::KillAsked(Directory::group(id), killer));
        }
    }

    /// Requests that a process that enters a group is killed, if the lease of the group or of one above has
    /// expired and says so.
    pub(super) fn kill_expired(&self, id: ProcessId, group: Option<GroupId>, notices: &mut Vec<Notice>) {
        let groups = self.chain(group).into_iter();
        let killers = groups.filter_map(|group| self.groups.get(&group).filter(|group| kills(group)));
        let asked = killers.map(|group| Notice::KillAsked(Directory::process(id), killer(group)));
        notices.extend(asked);
    }
}

impl Edit<'_> {
    /// Applies `gcgroup.lease` and `gcgroup.lease.action`.
    pub(super) fn note_lease(&mut self) -> Result<()> {
        if let Entity::Group(id) = self.directory().whose() {
            self.with_state(|state, notices| state.arm_lease(id, notices));
        }
        Ok(())
    }
}

impl View<'_> {
    /// Returns the seconds that are left of the lease, rounded up; 0 once it has expired.
    pub(super) fn lease_left(&self) -> Result<Value> {
        let (settings, _) = self.settings()?;
        Ok(match end(settings) {
            None => Value::MAX,
            Some(end) => Value::Number(end.saturating_sub(self.state().since_boot()).div_ceil(1000)),
        })
    }

    /// Returns whether the group's lease has expired; `None` without a lease.
    pub fn has_expired(&self) -> Option<bool> {
        let group = self.whole_group()?;
        end(&group.settings).map(|_| group.has_lease_expired)
    }
}

impl State {
    /// Says in words how long the lease of a group goes on and what follows; `None` without a lease.
    pub(super) fn describe_lease(&self, group: &Group) -> Option<String> {
        let (end, action) = (end(&group.settings)?, action(&group.settings).name);
        let left = end.saturating_sub(self.since_boot()).div_ceil(1000);
        Some(match group.has_lease_expired {
            true => format!("has expired: {action}"),
            false => format!("ends in {left} s, then {action}"),
        })
    }
}
