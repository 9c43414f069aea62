//! Changes between two snapshots: events, and which processes wait and why.

use std::collections::BTreeMap;

use gcgroup_client::node::{Pressure, State, Usage};
use serde::Serialize;

use crate::snapshot::{Process, Snapshot, UNMANAGED, now};

/// Maximum number of events of one change, so that a thousand processes that end do not displace all others.
const MAX_CHANGES: usize = 50;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Event {
    /// Seconds since 1970.
    pub(crate) time: u64,
    pub(crate) text: String,
}

impl Event {
    pub(crate) fn now(text: &str) -> Self {
        Self {
            time: now().as_secs(),
            text: text.to_owned(),
        }
    }
}

/// Process of which a thread has waited since the last snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Wait {
    pub(crate) pid: String,
    pub(crate) comm: String,
    /// Part of the time since the last snapshot, percent.
    pub(crate) percent: u64,
    pub(crate) reason: String,
}

/// Returns the events between two snapshots.
pub(crate) fn changes(last: &Snapshot, next: &Snapshot) -> Vec<Event> {
    let mut texts = Vec::new();
    let before: BTreeMap<_, _> = last
        .processes
        .iter()
        .map(|process| (process.of.pid, process))
        .collect();
    let after: BTreeMap<_, _> = next
        .processes
        .iter()
        .map(|process| (process.of.pid, process))
        .collect();
    // Processes beyond the cap come and go without starting or ending.
    let is_complete = last.processes_dropped == 0 && next.processes_dropped == 0;
    for (pid, process) in &after {
        match before.get(pid) {
            Some(last) => compare(
                &name(process),
                PROCESS_REFUSALS,
                [(&last.of.usage, last.state), (&process.of.usage, process.state)],
                &mut texts,
            ),
            None if is_complete => texts.push(format!("{} uses CUDA", name(process))),
            None => {}
        }
    }
    for (pid, process) in &before {
        if is_complete && !after.contains_key(pid) {
            texts.push(format!("{} has left", name(process)));
        }
    }
    for group in &next.groups {
        if let Some(last) = last.groups.iter().find(|last| last.of.path == group.of.path) {
            let name = format!("group /{}", group.of.path);
            compare(
                &name,
                GROUP_REFUSALS,
                [(&last.of.usage, last.state), (&group.of.usage, group.state)],
                &mut texts,
            );
        }
    }
    let unmanaged = |snapshot: &Snapshot| snapshot.root.key(UNMANAGED, "no_hook").unwrap_or(0);
    if unmanaged(next) > unmanaged(last) {
        texts.push(format!("{} uses of a GPU are unmanaged", unmanaged(next)));
    }
    texts.truncate(MAX_CHANGES);
    texts.iter().map(|text| Event::now(text)).collect()
}

fn name(process: &Process) -> String {
    format!("{} ({})", process.of.pid, process.of.comm)
}

/// Keys of a process's `memory.events` that count refusals, and what refused.
const PROCESS_REFUSALS: &[(&str, &str)] = &[("oom", "its limit"), ("group_max", "the limit of a group")];

/// Keys of a group's `memory.events` that count refusals, and what refused.
const GROUP_REFUSALS: &[(&str, &str)] = &[("oom", "a limit")];

/// Adds what has changed of a process or group.
fn compare(
    name: &str,
    refusals: &[(&str, &str)],
    [(last, before), (next, now)]: [(&Usage, State); 2],
    texts: &mut Vec<String>,
) {
    for (is, begun, ended) in [
        (State::is_frozen as fn(State) -> bool, "frozen", "thawed"),
        (State::is_suspended, "suspended", "resumed"),
    ] {
        match (is(before), is(now)) {
            (false, true) => texts.push(format!("{name} is {begun}")),
            (true, false) => texts.push(format!("{name} is {ended}")),
            _ => {}
        }
    }
    for (file, what) in [("memory.limit", "limit"), ("compute.priority", "priority")] {
        if let (Some(last), Some(next)) = (last.files.text(file), next.files.text(file))
            && last != next
        {
            texts.push(format!("{name}: {what} is {next}, was {last}"));
        }
    }
    for (key, by) in refusals {
        let refused = next.event(key).saturating_sub(last.event(key));
        if refused != 0 {
            texts.push(format!("{name}: {refused} allocations refused by {by}"));
        }
    }
}

/// Returns the processes that have waited between two snapshots, those that waited longest first.
pub(crate) fn waits(last: &Snapshot, next: &Snapshot) -> Vec<Wait> {
    let elapsed = next.time.saturating_sub(last.time).as_micros();
    let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX).max(1);
    let before: BTreeMap<_, _> = last
        .processes
        .iter()
        .map(|process| (process.of.pid, process))
        .collect();
    let mut waits = Vec::new();
    for process in &next.processes {
        let Some(last) = before.get(&process.of.pid) else {
            continue;
        };
        let waited = |of: fn(&Usage) -> &Option<Pressure>| {
            let total = |process: &Process| of(&process.of.usage).as_ref().map_or(0, |it| it.some.total_usec);
            total(process).saturating_sub(total(last))
        };
        let waited = [
            waited(|usage| &usage.compute.pressure),
            waited(|usage| &usage.memory.pressure),
        ];
        for (waited, is_compute) in waited.into_iter().zip([true, false]) {
            if waited == 0 {
                continue;
            }
            waits.push(Wait {
                pid: process.of.pid.to_string(),
                comm: process.of.comm.clone(),
                percent: (waited.saturating_mul(100) / elapsed).clamp(1, 100),
                reason: match is_compute {
                    true => compute_reason(process, next),
                    false => memory_reason(process),
                },
            });
        }
    }
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.percent));
    waits
}

/// Returns why submissions of a process wait.
fn compute_reason(process: &Process, next: &Snapshot) -> String {
    if process.of.usage.compute.freeze {
        return "frozen".to_owned();
    }
    let path = process.of.group.as_deref().unwrap_or_default();
    let is_above = |group: &str| {
        path.strip_prefix(group)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let frozen = next
        .groups
        .iter()
        .find(|group| is_above(&group.of.path) && group.of.usage.compute.freeze);
    if let Some(group) = frozen {
        return format!("group /{} is frozen", group.of.path);
    }
    if process.state.is_frozen() {
        return "a group is frozen".to_owned();
    }
    match process.state {
        State::Throttled => {
            let priority = process.of.usage.compute.priority;
            format!("waits for a turn or a quota, at priority {priority}")
        }
        _ => "waits for its own queued work".to_owned(),
    }
}

/// Returns why allocations of a process wait.
fn memory_reason(process: &Process) -> String {
    let text = |file| process.of.usage.files.text(file).unwrap_or("unknown");
    format!(
        "waits for memory: uses {} bytes, limit {}",
        text("memory.current"),
        text("memory.limit")
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gcgroup_client::node::{self, Files};

    use super::*;
    use crate::owner::Owner;

    fn usage(pairs: &[(&str, &str)]) -> Usage {
        let mut files = Files::default();
        for (name, text) in pairs {
            files.insert(name, (*text).to_owned());
        }
        Usage::of(files)
    }

    fn snapshot(seconds: u64, processes: &[(&str, &[(&str, &str)])]) -> Snapshot {
        let process = |(pid, pairs): &(&str, &[(&str, &str)])| Process {
            of: node::Process {
                pid: pid.parse().unwrap(),
                comm: "a".to_owned(),
                group: Some("team/x".to_owned()),
                usage: usage(pairs),
                ..node::Process::default()
            },
            state: if pairs.contains(&("compute.freeze", "1\n")) {
                State::Freezing
            } else {
                State::Idle
            },
            owner: Owner::default(),
        };
        Snapshot {
            time: Duration::from_secs(seconds),
            took: Duration::ZERO,
            gpus: Vec::new(),
            processes: processes.iter().map(process).collect(),
            groups: Vec::new(),
            root: Files::default(),
            nr_processes: processes.len(),
            processes_dropped: 0,
            groups_dropped: 0,
            pods: crate::pods::Pods::default(),
        }
    }

    fn texts(last: &Snapshot, next: &Snapshot) -> Vec<String> {
        changes(last, next).into_iter().map(|event| event.text).collect()
    }

    #[test]
    fn changes_of_processes_become_events() {
        let last = snapshot(
            0,
            &[
                (
                    "1",
                    &[
                        ("compute.freeze", "0\n"),
                        ("memory.events", "oom 1\n"),
                        ("memory.limit", "max\n"),
                    ],
                ),
                ("2", &[]),
            ],
        );
        let mut next = snapshot(
            1,
            &[
                (
                    "1",
                    &[
                        ("compute.freeze", "1\n"),
                        ("memory.events", "oom 4\n"),
                        ("memory.limit", "7\n"),
                    ],
                ),
                ("3", &[]),
            ],
        );
        let expected = [
            "1 (a) is frozen",
            "1 (a): limit is 7, was max",
            "1 (a): 3 allocations refused by its limit",
            "3 (a) uses CUDA",
            "2 (a) has left",
        ];
        assert_eq!(texts(&last, &next), expected);
        assert_eq!(texts(&next, &next), [""; 0]);
        next.processes_dropped = 1;
        assert_eq!(texts(&last, &next), expected[..3]);
    }

    #[test]
    fn wait_names_the_frozen_group() {
        let pressure = |total| format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
        let (before, after) = (pressure(0), pressure(500_000));
        let last = snapshot(0, &[("1", &[("compute.pressure", &before)]), ("2", &[])]);
        let mut next = snapshot(1, &[("1", &[("compute.pressure", &after)]), ("2", &[])]);
        for path in ["tea", "team"] {
            next.groups.push(crate::snapshot::Group {
                of: node::Group {
                    path: path.to_owned(),
                    usage: usage(&[("compute.freeze", "1\n")]),
                    ..node::Group::default()
                },
                state: State::Idle,
                nr_processes: 1,
            });
        }
        let waits = waits(&last, &next);
        assert_eq!(waits.len(), 1);
        assert_eq!(
            (waits[0].percent, waits[0].reason.as_str()),
            (50, "group /team is frozen")
        );
    }
}
