//! Reasons for which a process or a group waits.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::Gate;

use super::{Case, Line, Place, Subject};
use crate::text::{size, word};
use crate::tree::group::Group;
use crate::tree::process::{Process, is_closed, slots};
use crate::tree::settings::{COMPUTE_FREEZE, COMPUTE_MAX, IDLE, MEMORY_HIGH, SUSPEND, Setting};
use crate::tree::waits::{Wait, WaitsFor};
use crate::tree::{enforce, usage};

/// Most waits of a group's processes that are listed.
const MOST_WAITS: usize = 10;

impl Case<'_> {
    pub(super) fn waits(&self) -> Vec<Line> {
        let texts = match self.subject {
            Subject::Process(process) => self.waits_of(process),
            Subject::Group(group) => match self.settings_on(COMPUTE_FREEZE, None) {
                files if files.is_empty() => self.awaited_within(group),
                files => {
                    let state = match group.is_frozen(None) {
                        true => "all submitted work has completed",
                        false => "submitted work has not completed yet",
                    };
                    vec![format!("frozen by {}; {state}", files.join(", "))]
                }
            },
        };
        let (suspended, idle) = (self.suspended(), self.idle());
        texts
            .into_iter()
            .chain(suspended)
            .chain(idle)
            .map(Line::new)
            .collect()
    }

    /// Returns what is known of a suspension.
    fn suspended(&self) -> Vec<String> {
        let files = self.settings_on(SUSPEND, None).join(", ");
        let Subject::Process(process) = self.subject else {
            let asked = (!files.is_empty()).then(|| format!("suspended by {files}"));
            return asked.into_iter().collect();
        };
        let suspension = &process.suspension;
        let mut texts = Vec::new();
        if suspension.is_suspended() {
            let by = if files.is_empty() {
                "earlier".to_owned()
            } else {
                format!("by {files}")
            };
            let moved = size(suspension.moved(None));
            texts.push(format!("suspended {by}: {moved} of its memory are on the host"));
            if let Some(exchange) = suspension.exchange {
                texts.push(format!("it is to resume on GPU {}", exchange.to));
            }
        }
        if let Some(step) = suspension.step() {
            let way = if process.suspends() {
                "suspended"
            } else {
                "resumed"
            };
            texts.push(format!("it is being {way}: step {}", step.name()));
        }
        if let Some((step, reason)) = suspension.failure() {
            let way = if process.suspends() {
                "suspended"
            } else {
                "resumed"
            };
            texts.push(format!(
                "it could not be {way}: step {} has failed: {reason}",
                step.name()
            ));
        }
        texts
    }

    /// Returns what `gcgroup.idle` has done to a process, or why it does nothing.
    fn idle(&self) -> Option<String> {
        let Subject::Process(process) = self.subject else {
            return None;
        };
        let rule = process.idle_rule()?;
        let files = self.settings_on(IDLE, None).join(", ");
        if process.idle.is_away() {
            let moved = size(usage::swapped(process, None, &self.state.devices));
            return Some(format!(
                "away from the GPU, idle for {} s ({files}): {moved} are on the host; its next submission brings it back",
                rule.seconds
            ));
        }
        let reason = process.cannot_leave()?;
        Some(format!("{files} is without effect: {reason}"))
    }

    fn waits_of(&self, process: &Process) -> Vec<String> {
        let mut waits = Vec::new();
        if !process.is_hook_ok() {
            waits.push("the connection to its hook is lost: limits hold, counts may be old".to_owned());
        }
        for slot in slots(self.state.devices.len()) {
            let (Some(control), Some(usage)) =
                (process.control().devices.get(slot), process.usage().device(slot))
            else {
                continue;
            };
            let device = (slot < self.state.devices.len()).then_some(slot);
            let on = device.map_or("another GPU".to_owned(), |device| format!("GPU {device}"));
            let threads = match usage.nr_waiting() {
                0 => "no thread waits".to_owned(),
                1 => "1 thread waits".to_owned(),
                number => format!("{number} threads wait"),
            };
            if is_closed(control) {
                // The slot of other devices closes with the whole.
                let mut files = self.settings_on(COMPUTE_FREEZE, device);
                if process.suspension.freezes() {
                    files.push("a suspension".to_owned());
                }
                if process.idle.is_away() {
                    files.push("gcgroup.idle".to_owned());
                }
                if device.is_some() || usage.nr_waiting() > 0 {
                    let drained = match process.is_frozen(device, self.state.devices.len()) {
                        true => "submitted work has completed",
                        false => "submitted work has not completed yet",
                    };
                    waits.push(format!(
                        "frozen on {on} by {}; {threads}; {drained}",
                        files.join(", ")
                    ));
                }
            } else if device.is_some_and(|device| process.gate(device) == Gate::Throttled) {
                let files = self.settings_on(COMPUTE_MAX, device);
                let quota = match files.as_slice() {
                    [] => String::new(),
                    files => format!(" or for the next period of {}", files.join(", ")),
                };
                waits.push(format!("waits on {on} for its turn{quota}; {threads}"));
            } else if usage.nr_waiting() > 0 {
                waits.push(format!("{threads} on {on} for earlier work to complete"));
            }
            if usage.nr_waiting() > 0 && !is_closed(control) {
                waits.extend(
                    device
                        .into_iter()
                        .flat_map(|device| self.held_for_others(process, device)),
                );
            }
            if enforce::waits_above_high(process, slot) {
                let mut files = self.settings_on(MEMORY_HIGH, device);
                files.dedup();
                waits.push(format!(
                    "allocations on {on} wait for {} to be met",
                    files.join(", ")
                ));
            }
            if device.is_some() && control.pressure_answer.load(Relaxed) != usage.pressure_request() {
                waits.push(format!("waits for other processes to make room on {on}"));
            }
        }
        waits.extend(self.awaited(process));
        if self.state.asking.contains(&process.id) {
            waits.push(
                "waits for processes of its groups to register again before memory is granted".to_owned(),
            );
        }
        waits
    }

    /// Returns for which other processes those of a group wait now, the longest waits first.
    fn awaited_within(&self, group: &Group) -> Vec<String> {
        let mut all = Vec::new();
        for process in self.state.within(group.id) {
            let waits = self.state.waits_of(process).into_iter();
            all.extend(waits.filter(|wait| wait.is_now).map(|wait| (process, wait)));
        }
        all.sort_by_key(|(_, wait)| Reverse(wait.usec));
        let left = all.len().saturating_sub(MOST_WAITS);
        let shown = all.into_iter().take(MOST_WAITS).map(|(process, wait)| {
            let (pid, comm) = (process.identity.pid, word(&process.identity.comm));
            format!("process {pid} ({comm}) waits: {}", described(&wait))
        });
        let more = (left > 0).then(|| format!("{left} more waits like these"));
        shown.chain(more).collect()
    }

    /// Returns for which other processes it waits or has waited.
    fn awaited(&self, process: &Process) -> Vec<String> {
        self.state.waits_of(process).iter().map(described).collect()
    }

    /// Returns for which other processes a device was kept free lately.
    fn held_for_others(&self, process: &Process, device: usize) -> Vec<String> {
        let others = self
            .state
            .processes
            .values()
            .filter(|other| other.id != process.id);
        let held = others.filter_map(|other| {
            let percent = other.devices.get(device)?.held.percent(self.now);
            let pid = other.identity.pid;
            let text = format!("GPU {device} was kept idle for {pid}, {percent} % of the last 10 s");
            (percent > 0).then_some(text)
        });
        held.collect()
    }

    /// Returns the control files of a setting that bound the subject on a device, or as a whole.
    fn settings_on(&self, setting: &Setting, device: Option<usize>) -> Vec<String> {
        let applies = |place: &Place<'_>| {
            let value = place.settings().own(setting, self.uuid(place.device));
            let is_here = place.device.is_none() || place.device == device;
            is_here && value.is_some_and(|value| value != setting.default)
        };
        let places = self.places().into_iter().filter(applies);
        places.map(|place| self.file(place, setting.name)).collect()
    }
}

/// Describes a wait for another process.
fn described(wait: &Wait<'_>) -> String {
    let Wait {
        device, pid, usec, ..
    } = *wait;
    let priority = match wait.priority {
        Some(priority) => format!("priority {priority}"),
        None => "ended".to_owned(),
    };
    let what = match wait.what {
        WaitsFor::Turn => "the turn",
        WaitsFor::Memory => "the memory turn",
        WaitsFor::Room => "memory that is to move out",
    };
    let other = format!("process {pid} ({}, {priority})", word(wait.comm));
    let (seconds, part) = (usec / 1_000_000, usec / 1000 % 1000);
    match wait.is_now {
        true => format!("{other} has {what} on GPU {device}; waited for it {seconds}.{part:03} s so far"),
        false => format!("has waited {seconds}.{part:03} s for {other} to give up {what} on GPU {device}"),
    }
}
