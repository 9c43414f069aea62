//! Log of what happens to processes (refusals, freezes, moves of memory) and of what users change.
//!
//! Each kind has its own limit of lines about a user, so that a process that moves memory all the time hides
//! no refusal. Fields in capitals are for the journal; the text names them too.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gcgroup_abi::NO_LIMIT;
use parking_lot::Mutex;
use tracing::{debug, info, warn};

use crate::log_limit::LogLimit;
use gcgroupfs_model::text::word;
use gcgroupfs_model::tree::{
    Access, Action, Activity, DeviceActivity, Listener, Notice, ProcessId, Tree, UserChange,
};

#[derive(Debug)]
pub(super) struct ActivityLog {
    /// Weak, because the tree owns its listeners.
    tree: Weak<Tree>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Figures at the last look: of the process as a whole, then by device.
    seen: HashMap<ProcessId, Vec<DeviceActivity>>,
    refusals: LogLimit,
    freezes: LogLimit,
    moves: LogLimit,
    ends: LogLimit,
    changes: LogLimit,
}

impl ActivityLog {
    pub(super) fn new(tree: &Arc<Tree>) -> Self {
        Self {
            tree: Arc::downgrade(tree),
            known: Mutex::default(),
        }
    }

    /// Logs how many lines were suppressed. Returns the time until the next such line is due.
    pub(super) fn sum_up(&self, now: Instant) -> Option<Duration> {
        let mut known = self.known.lock();
        let known = &mut *known;
        let limits = [
            &mut known.refusals,
            &mut known.freezes,
            &mut known.moves,
            &mut known.ends,
            &mut known.changes,
        ];
        limits.into_iter().filter_map(|limit| limit.sum_up(now)).min()
    }
}

impl Listener for ActivityLog {
    fn notice(&self, notice: &Notice) {
        match notice {
            // The counts of a process that registers again, with another daemon too, are not news.
            Notice::Joined { id, .. } => {
                let activity = self.tree.upgrade().and_then(|tree| tree.activity(*id));
                if let Some(activity) = activity {
                    self.known.lock().seen.insert(*id, figures(&activity));
                }
            }
            Notice::Left { id, pid, start_time } => {
                let exited = self
                    .tree
                    .upgrade()
                    .and_then(|tree| tree.exit_line(*pid, *start_time));
                let mut known = self.known.lock();
                known.seen.remove(id);
                // A job has one line for all its processes.
                if let Some((identity, line, is_in_job)) = exited
                    && !is_in_job
                    && known.ends.allows(identity.uid, Instant::now())
                {
                    info!(PID = pid, UID = identity.uid, "ended: {line}");
                }
            }
            Notice::JobEnded { path, uid, line } if self.known.lock().ends.allows(*uid, Instant::now()) => {
                info!(UID = uid, GROUP = %format_args!("/{path}"), "job {path:?} ended: {line}");
            }
            Notice::Events(id) => {
                // Taken under the lock, so that two threads do not report one change twice.
                let mut known = self.known.lock();
                if let Some(activity) = self.tree.upgrade().and_then(|tree| tree.activity(*id)) {
                    known.look(*id, &activity);
                }
            }
            _ => {}
        }
    }

    fn user_change(&self, change: &UserChange) {
        let uid = change.caller.uid;
        if self.known.lock().changes.allows(uid, Instant::now()) {
            log_change(change);
        }
    }
}

/// Returns the figures of the process as a whole, then by device. As a whole, only the refusals of no device.
fn figures(activity: &Activity) -> Vec<DeviceActivity> {
    let nr_on_devices: u64 = activity.devices.iter().map(|device| device.nr_refused).sum();
    let whole = DeviceActivity {
        nr_refused: activity.whole.nr_refused.saturating_sub(nr_on_devices),
        nr_in: 0,
        nr_out: 0,
        is_frozen: false,
        ..activity.whole
    };
    [whole]
        .into_iter()
        .chain(activity.devices.iter().copied())
        .collect()
}

impl Known {
    /// Logs what has changed since the last look.
    fn look(&mut self, id: ProcessId, activity: &Activity) {
        let (now, uid) = (Instant::now(), activity.identity.uid);
        // A notice may come after that of the process's end.
        let Some(seen) = self.seen.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(seen, figures(activity));
        for (at, current) in seen.iter().enumerate() {
            let before = before.get(at).copied().unwrap_or_default();
            let line = Line {
                activity,
                device: at.checked_sub(1),
                current,
            };
            let nr_refused = current.nr_refused.saturating_sub(before.nr_refused);
            if nr_refused > 0 && self.refusals.allows(uid, now) {
                line.refused(nr_refused);
            }
            if current.is_frozen != before.is_frozen && self.freezes.allows_debug(uid, now) {
                line.froze();
            }
            let nr_out = current.nr_out.saturating_sub(before.nr_out);
            let nr_in = current.nr_in.saturating_sub(before.nr_in);
            if nr_out + nr_in > 0 && self.moves.allows_debug(uid, now) {
                line.moved(nr_out, nr_in);
            }
        }
    }
}

/// A line about a process on a device, or as a whole.
struct Line<'a> {
    activity: &'a Activity,
    device: Option<usize>,
    current: &'a DeviceActivity,
}

impl Line<'_> {
    /// Returns pid, name, user, group and device as the line's text begins.
    fn subject(&self) -> String {
        let identity = &self.activity.identity;
        let mut text = format!("{} ({}) of user {}", identity.pid, identity.comm, identity.uid);
        if !self.activity.group.is_empty() {
            text.push_str(&format!(" in {}", self.group()));
        }
        if let Some(device) = self.device {
            text.push_str(&format!(" on GPU {device}"));
        }
        text
    }

    fn group(&self) -> String {
        format!("/{}", word(&self.activity.group))
    }

    fn refused(&self, nr: u64) {
        let (limit, current) = (self.current.limit, self.current.current);
        let limit_text = if limit == NO_LIMIT {
            String::new()
        } else {
            format!(", lowest limit {limit} bytes")
        };
        warn!(
            PID = self.activity.identity.pid,
            UID = self.activity.identity.uid,
            GROUP = %self.group(),
            GPU = self.device,
            LIMIT = (limit != NO_LIMIT).then_some(limit),
            "{}: {nr} allocations refused{limit_text}, in use {current} bytes",
            self.subject()
        );
    }

    fn froze(&self) {
        debug!(
            PID = self.activity.identity.pid,
            UID = self.activity.identity.uid,
            GROUP = %self.group(),
            GPU = self.device,
            "{}: {}",
            self.subject(),
            if self.current.is_frozen { "frozen" } else { "no longer frozen" }
        );
    }

    fn moved(&self, nr_out: u64, nr_in: u64) {
        debug!(
            PID = self.activity.identity.pid,
            UID = self.activity.identity.uid,
            GROUP = %self.group(),
            GPU = self.device,
            "{}: {nr_out} allocations moved to the host, {nr_in} to the GPU",
            self.subject()
        );
    }
}

fn log_change(change: &UserChange) {
    let UserChange {
        caller,
        process,
        group,
        device,
        action,
        ..
    } = change;
    let access = |access: &Access| format!("{}:{} {:04o}", access.owner.uid, access.owner.gid, access.mode);
    let (verb, old, new) = match action {
        Action::Write { old, new, .. } => ("wrote", old.clone(), Some(new.clone())),
        Action::Make => ("made", None, None),
        Action::Remove => ("removed", None, None),
        Action::SetAccess { old, new, .. } => {
            ("changed owner or mode of", Some(access(old)), Some(access(new)))
        }
    };
    let values = match (&old, &new) {
        (Some(old), Some(new)) => format!(": {old:?} -> {new:?}"),
        (None, Some(new)) => format!(": {new:?}"),
        _ => String::new(),
    };
    info!(
        PID = process,
        GROUP = group,
        GPU = device,
        FILE = change.path(),
        OLD = old,
        NEW = new,
        BY_UID = caller.uid,
        BY_PID = caller.pid,
        "{} of user {} {verb} {}{values}",
        caller.pid,
        caller.uid,
        change.path()
    );
}
