//! Log of what happens to processes (refusals, freezes, moves of memory) and of what users change.
//!
//! Each kind has its own limit of lines about a user, so that a process that moves memory all the time hides
//! no refusal. Fields in capitals are for the journal; the text names them too.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gcgroup_abi::NO_LIMIT;
use parking_lot::Mutex;
use tracing::{debug, info, warn};

use crate::host::unix_time;
use crate::log_limit::LogLimit;
use gcgroupfs_model::event::{Event, LastEvents};
use gcgroupfs_model::text::word;
use gcgroupfs_model::tree::{
    Access, Action, Activity, DeviceActivity, Listener, Notice, ProcessId, Tree, UserChange,
};

#[derive(Debug)]
pub(super) struct ActivityLog {
    /// Weak, because the tree owns its listeners.
    tree: Weak<Tree>,
    known: Mutex<Known>,
    events: Mutex<LastEvents>,
}

#[derive(Debug, Default)]
struct Known {
    /// The process's states at the last look, and its figures: as a whole, then by device.
    seen: HashMap<ProcessId, ([bool; STATES.len()], Vec<DeviceActivity>)>,
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
            // Later numbers than those of an earlier daemon.
            events: Mutex::new(LastEvents::new(first_number())),
        }
    }

    /// Adds an event of now.
    pub(super) fn note(&self, event: Event) {
        self.events.lock().push(Event {
            time: unix_time(),
            ..event
        });
    }

    /// Returns the events with higher numbers than `number`, the oldest first.
    pub(super) fn events_after(&self, number: u64) -> Vec<Event> {
        self.events.lock().after(number).cloned().collect()
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
                    self.note(happened("joined", &activity, None));
                    let seen = (states(&activity), figures(&activity));
                    self.known.lock().seen.insert(*id, seen);
                }
            }
            Notice::Left { id, pid, start_time } => {
                let exited = self
                    .tree
                    .upgrade()
                    .and_then(|tree| tree.exited(*pid, *start_time));
                let mut known = self.known.lock();
                known.seen.remove(id);
                let Some(exited) = exited else { return };
                let (uid, line) = (exited.identity.uid, exited.to_string());
                self.note(Event {
                    what: "left".to_owned(),
                    pid: Some(*pid),
                    comm: Some(exited.identity.comm.to_string()),
                    uid,
                    group: Some(exited.group).filter(|group| !group.is_empty()),
                    text: line.clone(),
                    ..Event::default()
                });
                // A job has one line for all its processes.
                if !exited.is_in_job && known.ends.allows(uid, Instant::now()) {
                    info!(PID = pid, UID = uid, "ended: {line}");
                }
            }
            Notice::JobEnded { path, uid, line } => {
                self.note(Event {
                    what: "job-ended".to_owned(),
                    uid: *uid,
                    group: Some(path.clone()),
                    text: line.clone(),
                    ..Event::default()
                });
                if self.known.lock().ends.allows(*uid, Instant::now()) {
                    info!(UID = uid, GROUP = %format_args!("/{path}"), "job {path:?} ended: {line}");
                }
            }
            Notice::Events(id) => {
                // Taken under the lock, so that two threads do not report one change twice.
                let mut known = self.known.lock();
                if let Some(activity) = self.tree.upgrade().and_then(|tree| tree.activity(*id)) {
                    known.look(*id, &activity, |event| self.note(event));
                }
            }
            _ => {}
        }
    }

    fn user_change(&self, change: &UserChange) {
        let uid = change.caller.uid;
        self.note(changed(change));
        let (mut known, now) = (self.known.lock(), Instant::now());
        // A job has one line: that of its end.
        let is_allowed = match change.is_set_up {
            true => known.changes.allows_debug(uid, now),
            false => known.changes.allows(uid, now),
        };
        if is_allowed {
            log_change(change);
        }
    }
}

/// Returns a number for the first event: microseconds since 1970, because a daemon notes less than one event
/// in each.
fn first_number() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.map_or(1, |since| since.as_micros());
    u64::try_from(since).unwrap_or(1)
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

/// State of a process, with the names of its begin and of its end.
type StateRow = (fn(&Activity) -> bool, &'static str, &'static str);

/// States whose changes are events.
const STATES: &[StateRow] = &[
    (|activity| activity.is_suspended, "suspended", "resumed"),
    (|activity| activity.is_away, "away", "returned"),
];

fn states(activity: &Activity) -> [bool; STATES.len()] {
    std::array::from_fn(|at| STATES.get(at).is_some_and(|(is, ..)| is(activity)))
}

impl Known {
    /// Logs and notes what has changed since the last look.
    fn look(&mut self, id: ProcessId, activity: &Activity, note: impl Fn(Event)) {
        let (now, uid) = (Instant::now(), activity.identity.uid);
        // A notice may come after that of the process's end.
        let Some(seen) = self.seen.get_mut(&id) else {
            return;
        };
        let now_seen = (states(activity), figures(activity));
        let (were, before) = std::mem::replace(seen, now_seen);
        for ((_, begun, ended), (was, is)) in STATES.iter().zip(were.into_iter().zip(seen.0)) {
            if was != is {
                note(happened(if is { begun } else { ended }, activity, None));
            }
        }
        for (at, current) in seen.1.iter().enumerate() {
            let before = before.get(at).copied().unwrap_or_default();
            let line = Line {
                activity,
                device: at.checked_sub(1),
                current,
            };
            let nr_refused = current.nr_refused.saturating_sub(before.nr_refused);
            let happened = |what, text| {
                note(Event {
                    text,
                    ..happened(what, activity, line.device)
                });
            };
            if nr_refused > 0 {
                happened("refused", line.refusals(nr_refused));
                if self.refusals.allows(uid, now) {
                    line.refused(nr_refused);
                }
            }
            if current.is_frozen != before.is_frozen {
                let what = if current.is_frozen { "frozen" } else { "thawed" };
                happened(what, String::new());
                if self.freezes.allows_debug(uid, now) {
                    line.debug(if current.is_frozen {
                        "frozen"
                    } else {
                        "no longer frozen"
                    });
                }
            }
            let nr_out = current.nr_out.saturating_sub(before.nr_out);
            let nr_in = current.nr_in.saturating_sub(before.nr_in);
            if nr_out + nr_in > 0 {
                let text = format!("{nr_out} allocations moved to the host, {nr_in} to the GPU");
                if self.moves.allows_debug(uid, now) {
                    line.debug(&text);
                }
                happened("swapped", text);
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

    fn refusals(&self, nr: u64) -> String {
        let current = self.current.current;
        let limit = match self.current.limit {
            NO_LIMIT => String::new(),
            limit => format!(", lowest limit {limit} bytes"),
        };
        format!("{nr} allocations refused{limit}, in use {current} bytes")
    }

    fn refused(&self, nr: u64) {
        let limit = self.current.limit;
        warn!(
            PID = self.activity.identity.pid,
            UID = self.activity.identity.uid,
            GROUP = %self.group(),
            GPU = self.device,
            LIMIT = (limit != NO_LIMIT).then_some(limit),
            "{}: {}",
            self.subject(),
            self.refusals(nr)
        );
    }

    fn debug(&self, text: &str) {
        debug!(
            PID = self.activity.identity.pid,
            UID = self.activity.identity.uid,
            GROUP = %self.group(),
            GPU = self.device,
            "{}: {text}",
            self.subject()
        );
    }
}

/// Returns an event of a process, as a whole or on a device.
fn happened(what: &str, activity: &Activity, gpu: Option<usize>) -> Event {
    let identity = &activity.identity;
    Event {
        what: what.to_owned(),
        pid: Some(identity.pid),
        comm: Some(identity.comm.to_string()),
        uid: identity.uid,
        group: Some(activity.group.clone()).filter(|group| !group.is_empty()),
        gpu,
        ..Event::default()
    }
}

/// Returns a change that a user has requested as an event.
fn changed(change: &UserChange) -> Event {
    let Described { what, values, .. } = described(&change.action);
    Event {
        what: what.to_owned(),
        pid: change.process,
        uid: change.caller.uid,
        group: change.group.clone(),
        gpu: change.device.map(usize::from),
        text: format!("{}{values}, by process {}", change.path(), change.caller.pid),
        ..Event::default()
    }
}

/// Words for an action.
struct Described {
    /// Kind of the event.
    what: &'static str,
    verb: &'static str,
    old: Option<String>,
    new: Option<String>,
    /// Text of both values.
    values: String,
}

fn described(action: &Action) -> Described {
    let access = |access: &Access| format!("{}:{} {:04o}", access.owner.uid, access.owner.gid, access.mode);
    let (what, verb, old, new) = match action {
        Action::Write { old, new, .. } => ("set", "wrote", old.clone(), Some(new.clone())),
        Action::Make => ("made", "made", None, None),
        Action::Remove => ("removed", "removed", None, None),
        Action::SetAccess { old, new, .. } => {
            let verb = "changed owner or mode of";
            ("access", verb, Some(access(old)), Some(access(new)))
        }
    };
    let values = match (&old, &new) {
        (Some(old), Some(new)) => format!(": {old:?} -> {new:?}"),
        (None, Some(new)) => format!(": {new:?}"),
        _ => String::new(),
    };
    Described {
        what,
        verb,
        old,
        new,
        values,
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
    let Described {
        verb,
        old,
        new,
        values,
        ..
    } = described(action);
    macro_rules! log {
        ($level:ident) => {
            $level!(
                PID = process,
                GROUP = group.as_ref().map(|group| format!("/{}", word(group))),
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
            )
        };
    }
    match change.is_set_up {
        true => log!(debug),
        false => log!(info),
    }
}
